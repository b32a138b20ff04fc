"""NVML's files and versions: mapped into this process, on disk, and the kernel module's."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pynvml

from kubeletplugin.check.report import Versions
from kubeletplugin.host.driver.driverversions import installed, kernel_module, mapped_library
from kubeletplugin.host.roots import Roots
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.nvml.session.session import Session


def read_versions(
    session: Session, roots: Roots, *, maps: Path = Path("/proc/self/maps")
) -> Versions:
    """Versions, as far as each place tells one; the session may be closed."""

    def ask(function: str) -> str:
        try:
            return str(session.call(getattr(pynvml, function))) if session.is_open else ""
        except NvmlError:
            return ""

    try:
        cuda = session.cuda_version() if session.is_open else ""
    except NvmlError:
        cuda = ""
    return Versions(
        kernel_module=kernel_module(roots),
        nvml=ask("nvmlSystemGetNVMLVersion"),
        driver=ask("nvmlSystemGetDriverVersion"),
        cuda=cuda,
        mapped=mapped(maps),
        on_disk=tuple(installed(roots)),
        kernel=platform.release(),
        python=platform.python_version(),
        bindings=_bindings(),
    )


def mapped(maps: Path) -> str:
    """The file of NVML that a process has mapped; `` (deleted)`` ends one that was replaced."""
    found = mapped_library(maps)
    if found is None:
        return ""
    return f"{found.path} (deleted)" if found.deleted else str(found.path)


def _bindings() -> str:
    try:
        return version("nvidia-ml-py")
    except PackageNotFoundError:
        return ""
