"""Which driver runs and which library is installed, for when NVML says that they do not match."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pynvml

from kubeletplugin.host.libraries import LIBRARY_DIRECTORIES, library_directories
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.roots import Roots

_KERNEL = re.compile(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)")
_LIBRARY = "libnvidia-ml.so."


def explain(
    error: Exception, roots: Roots, directories: Sequence[str] = LIBRARY_DIRECTORIES
) -> str:
    """The error's text; of a version mismatch, with both versions.

    ``directories`` are those below the driver's root in which the libraries may be.
    """
    mismatch = pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    if not isinstance(error, NvmlError) or error.code != mismatch:
        return str(error)
    libraries = ", ".join(installed(roots, directories)) or "unknown"
    return f"{error}; kernel module {kernel_module(roots) or 'unknown'}, library {libraries}"


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
