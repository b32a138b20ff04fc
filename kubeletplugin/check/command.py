"""Command line of ``python -m kubeletplugin check``.

Roots and names come from the program's own options, which stand before ``check``. In the container
of a plugin, where ``kubectl exec`` starts a check without these options, the check executes itself
anew with the plugin's command line; it then also uses simulated GPUs if the plugin does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click
from click.core import ParameterSource
from msgspec.structs import replace

from kubeletplugin.check.creating import Creation, Refused
from kubeletplugin.check.reading import read
from kubeletplugin.check.report import Stopwatch, draw, encode
from kubeletplugin.errors import PluginError
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.session import Session
from kubeletplugin.options import Options

_STANDARD_OUTPUT = "<stdout>"


@click.command(context_settings={"max_content_width": 100})
@click.option(
    "--json",
    "json_file",
    type=click.File("wb", lazy=False),
    metavar="FILE",
    help="Write the whole report there, to attach it to a bug report; it holds no secrets. With - "
    "it goes to the standard output, and the screen to the standard error.",
)
@click.option(
    "--create",
    "gpu_name",
    metavar="GPU",
    help="Make and remove slices on this idle GPU in MIG mode (index, UUID or gpu-<n>), and to "
    "write down what came of it; before it removes what an earlier --create has left. Asks first.",
)
@click.option("--yes", is_flag=True, help="Answer the question of --create with yes.")
@click.pass_context
def check(
    context: click.Context,
    *,
    json_file: BinaryIO | None,
    gpu_name: str | None,
    yes: bool,
) -> None:
    """Look at this node: what is there for slices, what is missing, and the remedy.

    Only reads, unless --create is given. Ends with 0 if slices can be made here and
    with 1 if not.
    """
    options = Options.read(_given(context))
    roots = options.roots
    stopwatch = Stopwatch()
    session = Session(seconds=options.nvml_timeout, on_call=stopwatch)
    try:
        taken = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        report = read(session, options, taken=taken)
        if gpu_name is not None:
            creation = Creation(
                session=session,
                roots=roots,
                has_released=context.obj or partial(plugin_has_released, roots),
                ask=partial(_ask, yes=yes),
                say=partial(click.echo, err=True),
            )
            report = replace(report, trials=creation.run(gpu_name))
    except (NvmlError, PluginError) as error:
        raise click.ClickException(str(error)) from error
    finally:
        session.close()
    report = replace(report, times=stopwatch.times())
    if json_file is not None:
        json_file.write(encode(report) + b"\n")
    to_output = json_file is not None and json_file.name == _STANDARD_OUTPUT
    click.echo(draw(report), nl=False, err=to_output)
    context.exit(0 if report.works else 1)


def _ask(question: str, *, yes: bool) -> bool:
    """Put a question to the person at the terminal; True if the answer is yes.

    Raises:
        Refused: there is no terminal, and no --yes.
    """
    if not yes and not sys.stdin.isatty():
        raise Refused(f"{question}? There is no terminal to ask; answer it with --yes")
    return yes or click.confirm(question)


_PROGRAM = "kubeletplugin"
_SIGN = "--node-name"
_OF_A_POD = "KUBERNETES_SERVICE_HOST"
_PROC = Path("/proc")


def _given(context: click.Context) -> dict[str, Any]:
    """The program's options, as given on the command line.

    Does not return in a pod, without --node-name on the command line, if a plugin runs in the same
    container: the process then executes itself anew with that plugin's options. Outside of a pod
    this is not done, as a plugin that runs there may serve another purpose.
    """
    program = context.parent
    if program is None:
        raise click.UsageError("check is a subcommand of the plugin's program", context)
    is_told = program.get_parameter_source("node_name") is ParameterSource.COMMANDLINE
    if _OF_A_POD in os.environ and not is_told and (beside := plugin_beside(_PROC)):
        os.execv(sys.executable, [sys.executable, *beside, *sys.argv[1:]])  # noqa: S606 - our own
    return program.params


def plugin_beside(proc: Path) -> list[str]:
    """Command line, without Python itself, of a plugin in this mount namespace; else empty."""
    here = _namespace(proc / "self")
    found = (_command(f) for f in _folders(proc) if here and _namespace(f) == here)
    return next(filter(None, found), [])


def plugin_has_released(roots: Roots) -> bool:
    """True if no plugin on this node has a device file of NVIDIA's open; False if none is seen."""
    found = [_holds_devices(folder) for folder in _running(roots.on_host("/proc"))]
    return bool(found) and not any(found)


def _holds_devices(folder: Path) -> bool:
    try:
        links = [str(file.readlink()) for file in (folder / "fd").iterdir()]
    except OSError:
        return True
    return any(link.startswith("/dev/nvidia") for link in links)


def _running(proc: Path) -> Iterator[Path]:
    return (f for f in _folders(proc) if _command(f)[1:2] == [_PROGRAM])


def _folders(proc: Path) -> list[Path]:
    return sorted(proc.glob("[0-9]*"))


def _command(folder: Path) -> list[str]:
    """Command line from ``-m`` on of a process that is a plugin; empty for any other process."""
    try:
        words = (folder / "cmdline").read_bytes().decode().rstrip("\0").split("\0")
    except (OSError, ValueError):
        return []
    words = words[words.index("-m") :] if "-m" in words else []
    return words if any(w.partition("=")[0] == _SIGN for w in words) else []


def _namespace(folder: Path) -> str:
    try:
        return str((folder / "ns/mnt").readlink())
    except OSError:
        return ""
