"""Hosts as distributions lay them out, with a driver."""

from __future__ import annotations

from pathlib import Path

from kubeletplugin.host.driverfiles import DriverFiles, DriverSearch
from kubeletplugin.host.roots import Roots
from sim.nvml.driverfiles import empty_library

VERSION = "570.86.15"
DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
236 nvidia-caps-imex-channels
237 nvidia-caps
509 nvidia-uvm

Block devices:
259 blkext
238 nvidia-caps
"""
SONAMES = {
    "libcuda.so": "libcuda.so.1",
    "libnvidia-ml.so": "libnvidia-ml.so.1",
    "libnvidia-nvvm.so": "libnvidia-nvvm.so.4",
    "libnvidia-ptxjitcompiler.so": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-gpucomp.so": f"libnvidia-gpucomp.so.{VERSION}",
}
PLACES = {
    "Debian-like": "usr/lib/x86_64-linux-gnu",
    "Red-Hat-like": "usr/lib64",
    "Debian's own packages": "usr/lib/x86_64-linux-gnu/nvidia/current",
    "COS": "home/kubernetes/bin/nvidia/lib64",
    "Talos": "usr/local/glibc/usr/lib",
    "Bottlerocket": "usr/lib/nvidia/tesla",
}


def roots(host: Path, driver: str = "/") -> Roots:
    return Roots(
        host=host,
        driver=Path(driver),
        cdi=host / "cdi",
        kubelet=host / "kubelet",
        state=host / "state",
    )


def kernel(host: Path) -> Path:
    """A host whose modules are loaded."""
    (host / "proc/driver/nvidia/capabilities/mig").mkdir(parents=True)
    (host / "proc/devices").write_text(DEVICES)
    return host


def library(path: Path, soname: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(empty_library(soname))


def install(root: Path, directory: str = "usr/lib/x86_64-linux-gnu") -> Path:
    """Put a driver there: libraries, one of which has no version in its name, and nvidia-smi."""
    for name, soname in SONAMES.items():
        library(root / directory / f"{name}.{VERSION}", soname)
    library(root / directory / "libnvidia-nvvm70.so.4", "libnvidia-nvvm70.so.4")
    library(root / directory / "libother.so.1", "libother.so.1")
    program(root / "usr/bin/nvidia-smi")
    return root / directory


def program(path: Path, content: str = "#!/bin/sh\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    path.chmod(0o755)


def hook_program(path: Path, *names: str) -> None:
    """A program that knows these hooks, as far as reading it tells."""
    program(path, "\x7fELF" + " ".join(names))


def find(host: Path, driver: str = "/", *, hook: str = "auto") -> DriverFiles:
    return DriverSearch(roots(host, driver), hook=hook).find(VERSION)


def mounted(files: DriverFiles) -> dict[str, str]:
    """Container path to host path of what every container gets."""
    return {m.container_path: m.host_path for m in files.common.mounts}
