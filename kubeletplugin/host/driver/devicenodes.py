"""Device nodes of a container, with the numbers and groups that they have on the host.

Numbers are given with the node, so that it need not exist when the container starts.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from cdi.spec import DeviceNode, Edits
from kubeletplugin.errors import HostError
from kubeletplugin.host.driver.caps import Capability, character_majors
from kubeletplugin.host.driver.libraries.insideroot import followed
from kubeletplugin.host.roots import Roots

UVM = "nvidia-uvm"
MODESET = "/dev/nvidia-modeset"
_GPU_MAJORS = ("nvidia", "nvidia-frontend")
_CONTROL_MINOR = 255
_MODESET_MINOR = 254
_PARAMETERS = "/proc/driver/nvidia/params"
_ROOT = Path("/")
_WORLD = stat.S_IROTH | stat.S_IWOTH


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
            device_node(roots, "/dev/nvidia-uvm", major=uvm, minor=0),
            device_node(roots, "/dev/nvidia-uvm-tools", major=uvm, minor=1),
        ]
    )


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
