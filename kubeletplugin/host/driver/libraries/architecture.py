"""The node's processor: its number in ELF files and its directory on Debian-like systems."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from kubeletplugin.host.driver.libraries.elf import AARCH64, X86_64


@dataclass(frozen=True, slots=True)
class Architecture:
    """``name`` is the kernel's, ``multiarch`` Debian's: ``x86_64-linux-gnu``."""

    name: str
    machine: int
    multiarch: str


ARCHITECTURES = (
    Architecture("x86_64", X86_64, "x86_64-linux-gnu"),
    Architecture("aarch64", AARCH64, "aarch64-linux-gnu"),
)


def this_architecture(name: str = "") -> Architecture:
    """Architecture of the machine on which this program runs, or the one called ``name``."""
    name = name or platform.machine()
    return next((a for a in ARCHITECTURES if a.name == name), ARCHITECTURES[0])
