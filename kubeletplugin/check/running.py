"""The plugin that runs in the same container, and the options that it was given.

``kubectl exec`` starts a check beside it, without its arguments.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kubeletplugin.host.roots import Roots

_PROGRAM = "kubeletplugin"
_SIGN = "--node-name"
_OF_A_POD = "KUBERNETES_SERVICE_HOST"


def completed(
    context: click.Context,
    *,
    proc: Path = Path("/proc"),
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """The program's options, those not given replaced by those of a plugin in the same container.

    Outside of a pod nothing is replaced: a plugin that runs there may be any other.
    """
    program = context.parent
    if program is None:
        raise click.UsageError("check is a subcommand of the plugin's program", context)
    in_a_pod = _OF_A_POD in environment
    beside = _parsed(program.command, arguments(proc)) if in_a_pod else {}
    return {
        name: beside.get(name, value) if _is_default(program, name) else value
        for name, value in program.params.items()
    }


def arguments(proc: Path) -> list[str]:
    """The arguments of a plugin in this process's mount namespace; empty if there is none."""
    here = _namespace(proc / "self")
    found = (
        _of_the_program(folder) for folder in _running(proc) if here and _namespace(folder) == here
    )
    return next(found, [])


def plugins(roots: Roots) -> Iterator[Path]:
    """The folder in /proc of every plugin that runs on this machine, as far as it can be seen."""
    return _running(roots.on_host("/proc"))


def holds_devices(folder: Path) -> bool:
    """True if a process has a device file of NVIDIA's open, or does not let that be seen."""
    try:
        links = [str(file.readlink()) for file in (folder / "fd").iterdir()]
    except OSError:
        return True
    return any(link.startswith("/dev/nvidia") for link in links)


def _running(proc: Path) -> Iterator[Path]:
    return (folder for folder in sorted(proc.glob("[0-9]*")) if _of_the_program(folder))


def _of_the_program(folder: Path) -> list[str]:
    """The arguments of a process that is a plugin; empty if it is another program."""
    try:
        words = (folder / "cmdline").read_bytes().decode().rstrip("\0").split("\0")
    except (OSError, ValueError):
        return []
    if "-m" not in words:
        return []
    module = words.index("-m") + 1
    if words[module : module + 1] != [_PROGRAM]:
        return []
    rest = words[module + 1 :]
    return rest if any(w.partition("=")[0] == _SIGN for w in rest) else []


def _parsed(command: click.Command, words: list[str]) -> dict[str, Any]:
    try:
        return command.make_context(_PROGRAM, words).params if words else {}
    except click.ClickException:
        return {}  # of another version


def _is_default(context: click.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source in {ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP, None}


def _namespace(folder: Path) -> str:
    try:
        return str((folder / "ns/mnt").readlink())
    except OSError:
        return ""
