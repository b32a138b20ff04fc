"""NVIDIA's nvidia-cdi-hook on the node, which a container runtime runs for containers.

It writes the image's loader cache anew and lets an image with a newer CUDA use its own libraries.
The program is the node's; nothing of it is brought along. Source for places and arguments:
nvidia-container-toolkit v1.20 (internal/discover, cmd/nvidia-cdi-hook).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from cdi.spec import CREATE_CONTAINER, Hook
from kubeletplugin.host.driver.libraries.insideroot import inside
from kubeletplugin.host.roots import Roots

AUTO = "auto"
NEVER = "never"
UPDATE_LDCACHE = "update-ldcache"
CREATE_SYMLINKS = "create-symlinks"
ENABLE_CUDA_COMPAT = "enable-cuda-compat"
HOOK_NAMES = (CREATE_SYMLINKS, ENABLE_CUDA_COMPAT, UPDATE_LDCACHE)

HOOK_PATHS = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",  # the GPU operator's toolkit container
    "/usr/local/bin/nvidia-cdi-hook",
    "/home/kubernetes/bin/nvidia/toolkit/nvidia-cdi-hook",  # the same on COS
    "/usr/bin/nvidia-ctk",
    "/usr/local/nvidia/toolkit/nvidia-ctk",
    "/usr/local/bin/nvidia-ctk",
)
LDCONFIG_PATHS = (
    "/sbin/ldconfig",  # what the hook takes by itself
    "/usr/sbin/ldconfig",
    "/usr/bin/ldconfig",
    "/usr/local/glibc/sbin/ldconfig",  # Talos
)
_MULTICALL = "nvidia-ctk"
_ENV = ("NVIDIA_CTK_DEBUG=false",)
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class HookProgram:
    """The program at ``path`` of the host; ``known`` are those of HOOK_NAMES that it has."""

    path: str
    ldconfig: str
    known: frozenset[str]

    def hook(self, name: str, *arguments: str) -> Hook:
        """Hook of the program."""
        program = self.path.rpartition("/")[2]
        command = (program, "hook") if program == _MULTICALL else (program,)
        return Hook(CREATE_CONTAINER, self.path, (*command, name, *arguments), _ENV)

    def symlinks(self, links: Iterable[str]) -> tuple[Hook, ...]:
        """Makes links in the container, each ``target::link``; none where there are none."""
        arguments = tuple(text for link in links for text in ("--link", link))
        return (self.hook(CREATE_SYMLINKS, *arguments),) if arguments else ()

    def common(self, *, driver_version: str, folders: Iterable[str]) -> tuple[Hook, ...]:
        """Forward compatibility, which counts only once the cache is written after it."""
        ldconfig = () if self.ldconfig == LDCONFIG_PATHS[0] else ("--ldconfig-path", self.ldconfig)
        arguments = tuple(text for folder in folders for text in ("--folder", folder))
        update = self.hook(UPDATE_LDCACHE, *ldconfig, *arguments)
        if ENABLE_CUDA_COMPAT not in self.known:
            return (update,)
        version = f"--host-driver-version={driver_version}"
        return (self.hook(ENABLE_CUDA_COMPAT, version), update)


def read_choice(text: str) -> str:
    """The value of ``--cdi-hook``.

    Raises:
        click.BadParameter: it is neither a word that is known nor an absolute path.
    """
    if text in {AUTO, NEVER} or text.startswith("/"):
        return text
    raise click.BadParameter(
        f"{text!r} is neither {AUTO} nor {NEVER} nor the absolute path of the program on the host"
    )


def find_hook(roots: Roots, choice: str) -> HookProgram | None:
    """The program that ``choice`` names: ``auto`` looks for it, ``never`` wants none.

    None if it is not there, is not executable, lacks update-ldcache or create-symlinks (very old
    versions), or has no ldconfig to run.
    """
    if choice == NEVER:
        return None
    ldconfig = next((p for p in LDCONFIG_PATHS if inside(roots.host, p).is_file()), None)
    if ldconfig is None:
        return None
    for path in HOOK_PATHS if choice == AUTO else (choice,):
        known = _known(inside(roots.host, path))
        if {UPDATE_LDCACHE, CREATE_SYMLINKS} <= known:
            return HookProgram(path, ldconfig, known)
    return None


def _known(program: Path) -> frozenset[str]:
    """Hooks whose names are in the program, or in the one that it is a wrapper of.

    An older version refuses a name that it does not know, and the container would not start.
    """
    real = program.with_name(f"{program.name}.real")
    for path in (real, program):
        try:
            if path.is_file() and os.access(path, os.X_OK):
                return _named(path)
        except OSError:
            continue
    return frozenset()


def _named(path: Path) -> frozenset[str]:
    wanted = {name: name.encode() for name in HOOK_NAMES}
    found: set[str] = set()
    overlap = b""
    with path.open("rb") as file:
        while len(found) < len(wanted) and (chunk := file.read(_CHUNK)):
            window = overlap + chunk
            found |= {name for name, text in wanted.items() if text in window}
            overlap = window[-32:]
    return frozenset(found)
