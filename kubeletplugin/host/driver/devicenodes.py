"""Device nodes of a container, with the numbers and groups that they have on the host.

Numbers are given with the node, so that it need not exist when a container starts that is in the
host's user namespace. In one of its own (``hostUsers: false``) runc cannot make it, and mounts it
from the same path of the host (runc, rootfs_linux.go, createDevices: ``useBindMount``); CDI's
``hostPath`` does not reach runc. So nodes are made on the host too.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from cdi.spec import DeviceNode, Edits
from kubeletplugin.errors import HostError
from kubeletplugin.host.driver.caps import (
    CAPS,
    Capability,
    character_majors,
    global_capabilities,
)
from kubeletplugin.host.driver.libraries.insideroot import followed
from kubeletplugin.host.pci import listed_minors
from kubeletplugin.host.roots import Roots

ANY_NODE = "/dev/nvidia"
UVM = "nvidia-uvm"
MODESET = "/dev/nvidia-modeset"
_GPU_MAJORS = ("nvidia", "nvidia-frontend")
_NULL = (1, 3)
_CONTROL_MINOR = 255
_MODESET_MINOR = 254
_PARAMETERS = "/proc/driver/nvidia/params"
_ROOT = Path("/")
_WORLD = stat.S_IROTH | stat.S_IWOTH
_EVERYBODY = 0o666


def control_nodes(roots: Roots) -> Edits:
    """``nvidiactl``, ``nvidia-uvm``, ``nvidia-uvm-tools``.

    Raises:
        HostError: a major number is not known: the kernel module is not loaded.
    """
    majors = character_majors(roots)
    gpu, uvm = _gpu_major(majors), majors.get(UVM)
    if uvm is None:
        raise HostError(
            f"the kernel module nvidia-uvm is not loaded ({roots.on_host('/proc/devices')} does "
            "not name it), without which no CUDA program starts; load it with: modprobe nvidia-uvm "
            "(and at each boot: echo nvidia-uvm > /etc/modules-load.d/nvidia-uvm.conf)"
        )
    return node_edits(
        [
            device_node(roots, "/dev/nvidiactl", major=gpu, minor=_CONTROL_MINOR),
            *_uvm_nodes(roots, uvm),
        ]
    )


def _uvm_nodes(roots: Roots, major: int) -> tuple[DeviceNode, DeviceNode]:
    return (
        device_node(roots, "/dev/nvidia-uvm", major=major, minor=0),
        device_node(roots, "/dev/nvidia-uvm-tools", major=major, minor=1),
    )


def driver_nodes(roots: Roots) -> tuple[DeviceNode, ...]:
    """Nodes that NVML opens, and those of CUDA, as far as the kernel names their numbers.

    Raises:
        HostError: /proc/devices or a file of the driver's below /proc cannot be read.
    """
    majors = character_majors(roots)
    gpu, uvm = _gpu_major(majors), majors.get(UVM)
    if gpu is None:
        return ()
    caps = global_capabilities(roots) if CAPS in majors else ()
    return (
        device_node(roots, "/dev/nvidiactl", major=gpu, minor=_CONTROL_MINOR),
        *(gpu_node(roots, minor) for minor in listed_minors(roots)),
        *(() if uvm is None else _uvm_nodes(roots, uvm)),
        *(capability_node(c) for c in caps),
    )


def make_nodes(roots: Roots, nodes: Iterable[DeviceNode]) -> str:
    """Have NVIDIA's nodes on the host, under their paths in containers; why one could not be made.

    The kernel makes none of them, and NVIDIA's programs only those that they open, as root and if
    the driver's parameter ModifyDeviceFiles allows it (nvidia-modprobe-utils.c, mknod_helper). One
    with other numbers is of an earlier load of a module. What is no device there is left alone.
    """
    for node in nodes:
        if not node.path.startswith(ANY_NODE) or node.major is None or node.minor is None:
            continue
        path, device = f"{roots.host}/{node.path}", os.makedev(node.major, node.minor)
        try:
            try:
                found = os.stat(path)  # noqa: PTH116 - for each claim, and a Path is slow
            except FileNotFoundError:
                _make(Path(path), node, device)
                continue
            if stat.S_ISCHR(found.st_mode) and found.st_rdev != device:
                Path(path).unlink(missing_ok=True)
                _make(Path(path), node, device)
        except OSError as error:
            return f"device {roots.on_host(node.path)} cannot be made: {error.strerror or error}"
    return ""


def can_make_nodes(roots: Roots) -> bool:
    """True if device nodes can be made in the host's /dev, as found by making one."""
    path = roots.host / "dev/.dra-driver-nvidia-mig"
    try:
        path.unlink(missing_ok=True)  # of a process that was killed here
        os.mknod(path, stat.S_IFCHR, os.makedev(*_NULL))
        path.unlink()
    except OSError:
        return False
    return True


def _make(path: Path, node: DeviceNode, device: int) -> None:
    mode = _EVERYBODY if node.file_mode is None else node.file_mode
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):  # another claim's thread was quicker
        os.mknod(path, stat.S_IFCHR | mode, device)
    path.chmod(mode)  # whatever this process' umask is
    if node.gid is not None:
        os.chown(path, -1, node.gid)


def gpu_node(roots: Roots, minor: int) -> DeviceNode:
    """The node of a GPU: ``/dev/nvidia<minor>``.

    Raises:
        HostError: neither the node nor its major number is known.
    """
    return device_node(
        roots, f"/dev/nvidia{minor}", major=_gpu_major(character_majors(roots)), minor=minor
    )


def modeset_node(roots: Roots) -> DeviceNode | None:
    """``/dev/nvidia-modeset``; None where its module is not loaded."""
    major = character_majors(roots).get("nvidia-modeset")
    if major is None and _status(roots, MODESET) is None:
        return None
    return device_node(roots, MODESET, major=major, minor=_MODESET_MINOR)


def device_node(roots: Roots, path: str, *, major: int | None, minor: int) -> DeviceNode:
    """A node with the kernel's numbers, which a node of an earlier load of a module may not have.

    Without ``major`` the node on the host tells both numbers.

    Raises:
        HostError: it does not exist.
    """
    status = _status(roots, path)
    host_path = str(roots.driver_root / path.lstrip("/")) if _below_driver(roots) else ""
    if major is None:
        if status is None:
            seen = _seen(roots, path)
            raise HostError(
                f"no device {path}: {seen} is no device node and /proc/devices has no major for "
                "it; load the driver's modules (modprobe nvidia nvidia-uvm)"
            )
        major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    mode, gid = _parameters(roots) if status is None else (status.st_mode, status.st_gid)
    if gid == 0 or mode & _WORLD == _WORLD:
        return DeviceNode(path, host_path, major=major, minor=minor)
    return DeviceNode(
        path, host_path, major=major, minor=minor, file_mode=stat.S_IMODE(mode), gid=gid
    )


def capability_node(capability: Capability) -> DeviceNode:
    """The node of a MIG capability, which the kernel does not make."""
    return DeviceNode(
        capability.path,
        major=capability.major,
        minor=capability.minor,
        file_mode=capability.mode,
    )


def node_edits(nodes: Iterable[DeviceNode]) -> Edits:
    """The nodes, and the groups that may use those that the world may not."""
    found = tuple(nodes)
    gids = dict.fromkeys(node.gid for node in found if node.gid)
    return Edits(nodes=found, gids=tuple(gid for gid in gids if gid))


def _gpu_major(majors: Mapping[str, int]) -> int | None:
    return next((majors[name] for name in _GPU_MAJORS if name in majors), None)


def _below_driver(roots: Roots) -> bool:
    """True if the nodes hang under the driver's root and not under the host's."""
    return roots.driver_root != _ROOT and (roots.driver_seen / "dev").is_dir()


def _seen(roots: Roots, path: str) -> str:
    return followed(str(roots.driver_seen if _below_driver(roots) else roots.host), path)


def _status(roots: Roots, path: str) -> os.stat_result | None:
    try:
        status = os.stat(_seen(roots, path))  # noqa: PTH116 - there is no Path
    except OSError:
        return None
    return status if stat.S_ISCHR(status.st_mode) else None


def _parameters(roots: Roots) -> tuple[int, int]:
    """Mode and group that the driver gives to nodes that are made later, by its parameters."""
    try:
        text = roots.read(_PARAMETERS)
    except OSError:
        return _WORLD, 0
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        return int(fields["DeviceFileMode"]), int(fields["DeviceFileGID"])
    except (KeyError, ValueError):
        return _WORLD, 0
