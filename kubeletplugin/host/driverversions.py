"""Versions of NVIDIA's driver: the kernel module's, the installed and the mapped library's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pynvml

from kubeletplugin.host.libraries import LIBRARY_DIRECTORIES, library_directories
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.errors import NvmlError

_KERNEL = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)")
_LIBRARY = "libnvidia-ml.so."
_NAME = re.compile(r"libnvidia-ml\.so(\.\d+|\.(?P<version>\d+(\.\d+)+))?")
_MAPS = Path("/proc/self/maps")
_DELETED = " (deleted)"


@dataclass(frozen=True, slots=True)
class Mapped:
    """The library file that this process has mapped; ``version`` is empty if its name has none."""

    path: Path
    version: str
    deleted: bool = False

    def __str__(self) -> str:
        """The version, or the path of a file that does not tell it."""
        gone = " (its file was replaced since)" if self.deleted else ""
        return f"{self.version or self.path}{gone}"


def explain(
    error: Exception, roots: Roots, directories: Sequence[str] = LIBRARY_DIRECTORIES
) -> str:
    """The error's text; of a version mismatch, with all three versions.

    ``directories`` are those below the driver's root in which the libraries may be.
    """
    if not is_mismatch(error):
        return str(error)
    return f"{error}; {compare(roots, directories, mapped_library())}"


def is_mismatch(error: Exception) -> bool:
    """True if NVML says that its version is not the kernel module's."""
    mismatch = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    return isinstance(error, NvmlError) and error.code == mismatch


def compare(roots: Roots, directories: Sequence[str], mapped: Mapped | None) -> str:
    """The three versions, in words."""
    libraries = ", ".join(installed(roots, directories)) or "unknown"
    return (
        f"kernel module {kernel_module(roots) or 'unknown'}, installed library {libraries}, "
        f"library of this process {mapped or 'unknown'}"
    )


def mapped_library(maps: Path = _MAPS) -> Mapped | None:
    """The file of NVML's library in this process; None before it is loaded."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        path = line.partition("/")[2]
        name = path.rpartition("/")[2].removesuffix(_DELETED)
        if match := _NAME.fullmatch(name):
            whole = Path(f"/{path.removesuffix(_DELETED)}")
            return Mapped(whole, match["version"] or "", deleted=path.endswith(_DELETED))
    return None


def kernel_module(roots: Roots) -> str:
    """Version of the kernel module that is loaded; empty where none is, or it cannot be told."""
    try:
        text = roots.on_host("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    found = _KERNEL.search(text)
    return found.group(1) if found else ""


def installed(roots: Roots, directories: Sequence[str] = LIBRARY_DIRECTORIES) -> list[str]:
    """Versions of the libraries below the driver root; links without a full version left out."""
    names = {
        path.name.removeprefix(_LIBRARY)
        for directory in library_directories(roots.driver_seen, directories).values()
        for path in directory.glob(f"{_LIBRARY}*.*")
    }
    return sorted(names)
