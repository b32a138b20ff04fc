"""Files that a package of the driver puts on the simulated host's disk."""

from pathlib import Path

from sim.nvml.files import mps_control
from sim.nvml.files.elf import empty_library
from sim.nvml.files.nvidia_smi import script

_LIBRARIES = Path("usr/lib/x86_64-linux-gnu")
# Name of the file to what follows in the SONAME; empty where that is the whole version.
_VERSIONED = {
    "libcuda.so": "1",
    "libcudadebugger.so": "1",
    "libnvcuvid.so": "1",
    "libnvidia-allocator.so": "1",
    "libnvidia-cfg.so": "1",
    "libnvidia-encode.so": "1",
    "libnvidia-gpucomp.so": "",
    "libnvidia-ml.so": "1",
    "libnvidia-nvvm.so": "4",
    "libnvidia-opencl.so": "1",
    "libnvidia-opticalflow.so": "1",
    "libnvidia-pkcs11.so": "",
    "libnvidia-pkcs11-openssl3.so": "",
    "libnvidia-ptxjitcompiler.so": "1",
    "libEGL_nvidia.so": "0",
    "libGLESv1_CM_nvidia.so": "1",
    "libGLESv2_nvidia.so": "2",
    "libGLX_nvidia.so": "0",
    "libnvidia-eglcore.so": "",
    "libnvidia-fbc.so": "1",
    "libnvidia-glcore.so": "",
    "libnvidia-glsi.so": "",
    "libnvidia-glvkspirv.so": "",
    "libnvidia-ngx.so": "1",
    "libnvidia-rtcore.so": "",
    "libnvidia-tls.so": "",
    "libnvoptix.so": "1",
}
_UNVERSIONED = ("libnvidia-nvvm70.so.4",)
_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
_CONFIGURATION = {
    "etc/OpenCL/vendors/nvidia.icd": "libnvidia-opencl.so.1\n",
    "usr/share/glvnd/egl_vendor.d/10_nvidia.json": "{}\n",
    "usr/share/vulkan/icd.d/nvidia_icd.json": "{}\n",
}


def install(root: Path, version: str, *, libraries: bool = True) -> None:
    """Puts the files of a version where a Debian-like host has them."""
    folder = root / _LIBRARIES
    folder.mkdir(parents=True, exist_ok=True)
    if libraries:
        for name, major in _VERSIONED.items():
            file = f"{name}.{version}"
            _library(folder / file, f"{name}.{major}" if major else file)
        for name in _UNVERSIONED:
            _library(folder / name, name)
    for name in _PROGRAMS:
        path = root / "usr/bin" / name
        _write(path, _program(name, version))
        path.chmod(0o755)
    for name, content in _CONFIGURATION.items():
        _write(root / name, content)


def remove_libraries(root: Path) -> None:
    """Takes the libraries away, of whatever version."""
    for name in (*_VERSIONED, *(u.rpartition(".")[0] for u in _UNVERSIONED)):
        for path in (root / "usr").rglob(f"{name}.*"):
            path.unlink()


def library_file(root: Path, version: str) -> Path | None:
    """The file of NVML's library of a version, if it is installed."""
    return next(iter(sorted((root / "usr").rglob(f"libnvidia-ml.so.{version}"))), None)


def replace(root: Path, new: str) -> None:
    """Exchanges the installed files, as a package of another version does."""
    remove_libraries(root)
    install(root, new)


def _program(name: str, version: str) -> str:
    if name == "nvidia-smi":
        return script(version)
    if name == "nvidia-cuda-mps-control":
        return mps_control.SCRIPT
    return f"#!/bin/sh\necho 'simulated {name} {version}'\n"


def _library(path: Path, soname: str) -> None:
    """Leaves the file alone where it is: a process may have it mapped."""
    if not path.exists():
        path.write_bytes(empty_library(soname))


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
