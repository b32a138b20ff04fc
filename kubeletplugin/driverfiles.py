"""The driver's user-space files and device nodes that every container with a GPU gets.

Libraries are found where the driver root keeps them and mounted under the same directory. No hook
runs ldconfig in the container, so each is mounted under its SONAME too: the links beside it say
which that is.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from cdi.spec import DeviceNode, Edits, Mount
from kubeletplugin.caps import character_majors
from kubeletplugin.errors import HostError
from kubeletplugin.roots import Roots

LIBRARY_DIRECTORIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
_BINARIES = ("usr/bin/nvidia-smi",)
_GPU_MAJORS = ("nvidia", "nvidia-frontend")
_CONTROL_MINOR = 255
_ENV = ("NVIDIA_VISIBLE_DEVICES=void",)


def common_edits(roots: Roots, *, driver_version: str) -> Edits:
    """Control nodes, libraries and nvidia-smi.

    NVIDIA_VISIBLE_DEVICES=void keeps the NVIDIA runtime from adding devices of its own.

    Raises:
        HostError: the driver's libraries or its control devices are not where the roots say.
    """
    majors = character_majors(roots)
    gpu_major = next((majors[n] for n in _GPU_MAJORS if n in majors), None)
    uvm_major = majors.get("nvidia-uvm")
    return Edits(
        env=_ENV,
        nodes=(
            _node(roots, "/dev/nvidiactl", major=gpu_major, minor=_CONTROL_MINOR),
            _node(roots, "/dev/nvidia-uvm", major=uvm_major, minor=0),
            _node(roots, "/dev/nvidia-uvm-tools", major=uvm_major, minor=1),
        ),
        mounts=tuple(_mounts(roots, driver_version)),
    )


def gpu_node(roots: Roots, minor: int) -> DeviceNode:
    """The node of a GPU: ``/dev/nvidia<minor>``.

    Raises:
        HostError: neither the node nor its major number is known.
    """
    majors = character_majors(roots)
    major = next((majors[n] for n in _GPU_MAJORS if n in majors), None)
    return _node(roots, f"/dev/nvidia{minor}", major=major, minor=minor)


def _node(roots: Roots, path: str, *, major: int | None, minor: int) -> DeviceNode:
    """The node with its numbers, so that it need not exist when the container starts."""
    in_driver = (roots.driver_seen / "dev").is_dir() and roots.driver_root != Path("/")
    seen = roots.driver_seen / path.lstrip("/") if in_driver else roots.on_host(path)
    host_path = str(roots.driver_root / path.lstrip("/")) if in_driver else ""
    try:
        status = seen.stat()
    except OSError:
        status = None
    if status is not None and stat.S_ISCHR(status.st_mode):
        return DeviceNode(
            path, host_path, major=os.major(status.st_rdev), minor=os.minor(status.st_rdev)
        )
    if major is None:
        raise HostError(
            f"no device {path}: {seen} is no device node and /proc/devices has no major for it; "
            "load the driver's modules (modprobe nvidia nvidia-uvm)"
        )
    return DeviceNode(path, host_path, major=major, minor=minor)


def _mounts(roots: Roots, driver_version: str) -> Iterator[Mount]:
    root = roots.driver_seen
    directory = _library_directory(root, driver_version)
    if directory is None:
        places = ", ".join(LIBRARY_DIRECTORIES)
        raise HostError(
            f"found no libcuda.so.{driver_version} below {root} (in {places}); "
            "set --driver-root to the root of the NVIDIA driver's files"
        )
    links = _links(root / directory)
    for library in sorted((root / directory).glob(f"*.so.{driver_version}")):
        host_path = str(roots.driver_root / directory / library.name)
        plain = library.name.removesuffix(f".{driver_version}")
        for name in sorted({library.name, *links.get(library.name, {f"{plain}.1"})}):
            yield Mount(host_path, f"/{directory}/{name}")
    for binary in _BINARIES:
        if (root / binary).is_file():
            yield Mount(str(roots.driver_root / binary), f"/{binary}")


def _library_directory(root: Path, driver_version: str) -> str | None:
    for directory in LIBRARY_DIRECTORIES:
        if (root / directory / f"libcuda.so.{driver_version}").is_file():
            return directory
    return None


def _links(directory: Path) -> dict[str, set[str]]:
    """File name to the names of the links that lead to it, directly or over another link."""
    targets = {path.name: str(path.readlink()) for path in directory.iterdir() if path.is_symlink()}
    links: dict[str, set[str]] = {}
    for name in targets:
        end, steps = name, 0
        while end in targets and steps < len(targets):
            end, steps = targets[end], steps + 1
        links.setdefault(end, set()).add(name)
    return links
