"""NVIDIA's devices on this node: their numbers in the host's /proc, and their nodes in /dev.

A CDI spec gives the numbers of a device node, so that the container runtime makes the node in the
container, and the host need not have it. But runc cannot make a node in a container with a user
namespace of its own (``hostUsers: false``): it mounts the node from the same path of the host
(runc, rootfs_linux.go, createDevices: ``useBindMount``); CDI's ``hostPath`` does not reach runc. So
this program makes the nodes on the host too.

The kernel makes no node for an instance's capability. Sources of numbers: /proc/devices,
/proc/driver/nvidia/capabilities/gpu<minor>/mig/gi<id>[/ci<id>]/access.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from cdi.spec import DeviceNode, Edits
from kubeletplugin.errors import HostError
from kubeletplugin.host.roots import Roots, followed, inside

_log = logging.getLogger(__name__)

CAPS = "nvidia-caps"
UVM = "nvidia-uvm"
ANY_NODE = "/dev/nvidia"
MODESET = "/dev/nvidia-modeset"
_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_DEVICES = "/proc/devices"
_PARAMETERS = "/proc/driver/nvidia/params"
_GPU_MAJORS = ("nvidia", "nvidia-frontend")
_NULL = (1, 3)
_CONTROL_MINOR = 255
_MODESET_MINOR = 254
_WORLD = stat.S_IROTH | stat.S_IWOTH
_EVERYBODY = 0o666


def instance_capabilities(
    roots: Roots, *, gpu_minor: int, gi_id: int, ci_id: int
) -> tuple[DeviceNode, DeviceNode]:
    """Nodes of the capabilities of a GPU instance and of its compute instance.

    Raises:
        HostError: a file is missing or unreadable; names the file.
    """
    gi = f"gpu{gpu_minor}/mig/gi{gi_id}"
    return _capability(roots, gi), _capability(roots, f"{gi}/ci{ci_id}")


def monitor_capability(roots: Roots) -> DeviceNode:
    """Node of the capability to see all instances of all GPUs and to change none (mig/monitor).

    Raises:
        HostError: a file is missing or unreadable; names the file.
    """
    return _capability(roots, "mig/monitor")


def check_capabilities(roots: Roots) -> None:
    """Check that the driver shows MIG capabilities, of which every slice needs two.

    Raises:
        HostError: it shows none; says which file is missing, and the remedy.
    """
    _caps_major(roots)
    folder = roots.on_host(f"{_CAPABILITIES}/mig")
    if not folder.is_dir():
        raise HostError(
            f"there is no {folder}, where the NVIDIA driver shows MIG capabilities; reload the "
            "kernel module nvidia, or mount the host's /proc where --host-root says"
        )


def character_majors(roots: Roots) -> Mapping[str, int]:
    """Major numbers of character devices, by the driver's name in /proc/devices.

    Raises:
        HostError: /proc/devices cannot be read.
    """
    try:
        return _majors(roots.read(_DEVICES))
    except OSError as error:
        path = roots.on_host(_DEVICES)
        raise HostError(f"cannot read {path}: {error.strerror or error}") from error


@lru_cache(maxsize=1)
def _majors(text: str) -> Mapping[str, int]:
    majors: dict[str, int] = {}
    for line in text.partition("Block devices:")[0].splitlines():
        number, _, name = line.strip().partition(" ")
        if number.isdigit() and name:
            majors.setdefault(name.strip(), int(number))
    return MappingProxyType(majors)


def _caps_major(roots: Roots) -> int:
    major = character_majors(roots).get(CAPS)
    if major is None:
        raise HostError(
            f"{roots.on_host(_DEVICES)} has no {CAPS}: the NVIDIA driver's MIG capabilities are "
            "not set up; check that the kernel module nvidia is loaded and newer than 450.80"
        )
    return major


def _capability(roots: Roots, name: str) -> DeviceNode:
    major = _caps_major(roots)
    path = f"{_CAPABILITIES}/{name}/access" if "/gi" in name else f"{_CAPABILITIES}/{name}"
    try:
        text = roots.read(path)
    except OSError as error:
        raise HostError(
            f"cannot read MIG capability {roots.on_host(path)}: {error.strerror or error}; "
            "the driver shows it as soon as the instance exists"
        ) from error
    pairs = (line.partition(":") for line in text.splitlines())
    fields = {key.strip(): value.strip() for key, separator, value in pairs if separator}
    try:
        # The mode is printed in decimal: 292 is 0444.
        minor, mode = int(fields["DeviceFileMinor"]), int(fields["DeviceFileMode"])
    except (KeyError, ValueError) as error:
        raise HostError(
            f"MIG capability {roots.on_host(path)} is not understood: {text[:200]!r}"
        ) from error
    node = f"/dev/nvidia-caps/nvidia-cap{minor}"
    return DeviceNode(node, major=major, minor=minor, file_mode=mode)


def control_nodes(roots: Roots) -> Edits:
    """Nodes that every CUDA program needs: ``nvidiactl``, ``nvidia-uvm``, ``nvidia-uvm-tools``.

    Raises:
        HostError: a major number is not known, as the kernel module is not loaded.
    """
    majors = character_majors(roots)
    gpu, uvm = _gpu_major(majors), majors.get(UVM)
    if uvm is None:
        raise HostError(
            f"the kernel module nvidia-uvm is not loaded ({roots.on_host('/proc/devices')} does "
            "not name it), without which no CUDA program starts; load it with: modprobe nvidia-uvm "
            "(and at each boot: echo nvidia-uvm > /etc/modules-load.d/nvidia-uvm.conf)"
        )
    return node_edits([_control_node(roots, gpu), *_uvm_nodes(roots, uvm)])


def driver_nodes(roots: Roots) -> tuple[DeviceNode, ...]:
    """Nodes that NVML and CUDA open, as far as the kernel tells their numbers.

    Raises:
        HostError: /proc/devices or a file of the driver's below /proc cannot be read.
    """
    majors = character_majors(roots)
    gpu, uvm = _gpu_major(majors), majors.get(UVM)
    if gpu is None:
        return ()
    # Capabilities that belong to no instance: one to change instances, one to see all of them.
    general = ("mig/config", "mig/monitor") if CAPS in majors else ()
    return (
        _control_node(roots, gpu),
        *(gpu_node(roots, minor) for minor in listed_minors(roots)),
        *(() if uvm is None else _uvm_nodes(roots, uvm)),
        *(_capability(roots, name) for name in general),
    )


def gpu_node(roots: Roots, minor: int) -> DeviceNode:
    """Node of a GPU: ``/dev/nvidia<minor>``.

    Raises:
        HostError: the host has no such node, and the kernel does not tell the major number.
    """
    major = _gpu_major(character_majors(roots))
    return device_node(roots, f"/dev/nvidia{minor}", major=major, minor=minor)


def modeset_node(roots: Roots) -> DeviceNode | None:
    """Node ``/dev/nvidia-modeset``; None if its kernel module is not loaded."""
    major = character_majors(roots).get("nvidia-modeset")
    if major is None and _status(roots, MODESET) is None:
        return None
    return device_node(roots, MODESET, major=major, minor=_MODESET_MINOR)


def drm_nodes(roots: Roots, pci_address: str) -> Iterator[DeviceNode]:
    """Nodes ``/dev/dri/card<N>`` and ``/dev/dri/renderD<N>`` of a GPU.

    Each is yielded twice, the second time under its path with the PCI address.

    Raises:
        HostError: the host has no such node, and sysfs does not tell its numbers.
    """
    folder = inside(roots.host, f"/sys/bus/pci/devices/{pci_address}/drm")
    try:
        names = sorted(p.name for p in folder.iterdir() if p.name.startswith(("card", "renderD")))
    except OSError:
        return
    for name in names:
        try:
            numbers = (folder / name / "dev").read_text().partition(":")
            major, minor = int(numbers[0]), int(numbers[2])
        except (OSError, ValueError):
            major, minor = None, 0
        node = device_node(roots, f"/dev/dri/{name}", major=major, minor=minor)
        yield node
        kind = "render" if name.startswith("render") else "card"
        path = f"/dev/dri/by-path/pci-{pci_address}-{kind}"
        yield replace(node, path=path, host_path=node.host_path or node.path)


def device_node(roots: Roots, path: str, *, major: int | None, minor: int) -> DeviceNode:
    """Device node with the numbers of the kernel; mode and group as on the host.

    The node on the host may have outdated numbers, from an earlier load of the kernel module. Only
    if ``major`` is None are both numbers taken from it.

    Raises:
        HostError: ``major`` is None, and the host has no such node.
    """
    status = _status(roots, path)
    host_path = str(roots.driver_root / path.lstrip("/")) if _below_driver(roots) else ""
    if major is None:
        if status is None:
            raise HostError(
                f"no device {path}: {_seen(roots, path)} is no device node and /proc/devices has "
                "no major for it; load the driver's modules (modprobe nvidia nvidia-uvm)"
            )
        major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    mode, gid = _parameters(roots) if status is None else (status.st_mode, status.st_gid)
    if gid == 0 or mode & _WORLD == _WORLD:
        return DeviceNode(path, host_path, major=major, minor=minor)
    return DeviceNode(
        path, host_path, major=major, minor=minor, file_mode=stat.S_IMODE(mode), gid=gid
    )


def node_edits(nodes: Iterable[DeviceNode]) -> Edits:
    """Edits with the nodes, and with the groups of the nodes that not everybody may use."""
    found = tuple(nodes)
    gids = dict.fromkeys(node.gid for node in found if node.gid)
    return Edits(nodes=found, gids=tuple(gid for gid in gids if gid))


def make_nodes(roots: Roots, nodes: Iterable[DeviceNode]) -> str:
    """Make NVIDIA's nodes on the host, under the paths that they have in containers.

    Returns the reason why a node could not be made; empty if all are there. The kernel makes none
    of these nodes. NVIDIA's programs make only those that they open, as root and if the driver's
    parameter ModifyDeviceFiles allows it (nvidia-modprobe-utils.c, mknod_helper). A node with other
    numbers comes from an earlier load of the module, and is replaced. A file that is no character
    device is left alone.
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
    """True if device nodes can be made in the host's /dev; makes one and removes it."""
    path = roots.host / "dev/.dra-driver-nvidia-mig"
    try:
        path.unlink(missing_ok=True)  # an earlier process may have been killed before its unlink
        os.mknod(path, stat.S_IFCHR, os.makedev(*_NULL))
        path.unlink()
    except OSError:
        return False
    return True


def listed_gpus(roots: Roots) -> frozenset[str]:
    """PCI addresses of the GPUs that NVIDIA's kernel module lists; empty if they cannot be read."""
    try:
        folder = roots.on_host("/proc/driver/nvidia/gpus")
        return frozenset(path.name for path in folder.iterdir())
    except OSError as error:
        _log.debug("the kernel module's GPUs: %s", error)
        return frozenset()


def listed_minors(roots: Roots) -> tuple[int, ...]:
    """Minor numbers of the GPUs that NVIDIA's kernel module lists, as far as they can be read."""
    found: list[int] = []
    for address in listed_gpus(roots):
        with contextlib.suppress(OSError, ValueError):
            text = roots.read(f"/proc/driver/nvidia/gpus/{address}/information")
            _, _, rest = text.partition("Device Minor:")
            found.append(int(rest.partition("\n")[0]))
    return tuple(sorted(found))


def pcie_root(address: str, roots: Roots) -> str:
    """PCIe root of a PCI device, such as ``pci0000:00``, from sysfs; empty if it cannot be read."""
    try:
        target = roots.on_host(f"/sys/bus/pci/devices/{address}").readlink()
    except OSError:
        return ""
    return next((part for part in target.parts if part.startswith("pci")), "")


def _control_node(roots: Roots, major: int | None) -> DeviceNode:
    return device_node(roots, "/dev/nvidiactl", major=major, minor=_CONTROL_MINOR)


def _uvm_nodes(roots: Roots, major: int) -> tuple[DeviceNode, DeviceNode]:
    return (
        device_node(roots, "/dev/nvidia-uvm", major=major, minor=0),
        device_node(roots, "/dev/nvidia-uvm-tools", major=major, minor=1),
    )


def _make(path: Path, node: DeviceNode, device: int) -> None:
    mode = _EVERYBODY if node.file_mode is None else node.file_mode
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):  # another claim's thread was quicker
        os.mknod(path, stat.S_IFCHR | mode, device)
    path.chmod(mode)  # whatever this process' umask is
    if node.gid is not None:
        os.chown(path, -1, node.gid)


def _gpu_major(majors: Mapping[str, int]) -> int | None:
    return next((majors[name] for name in _GPU_MAJORS if name in majors), None)


def _below_driver(roots: Roots) -> bool:
    """True if device nodes are looked for in the driver's root, not in the host's."""
    return roots.driver_root != Path("/") and (roots.driver_seen / "dev").is_dir()


def _seen(roots: Roots, path: str) -> str:
    return followed(str(roots.driver_seen if _below_driver(roots) else roots.host), path)


def _status(roots: Roots, path: str) -> os.stat_result | None:
    try:
        status = os.stat(_seen(roots, path))  # noqa: PTH116 - there is no Path
    except OSError:
        return None
    return status if stat.S_ISCHR(status.st_mode) else None


def _parameters(roots: Roots) -> tuple[int, int]:
    """Mode and group for new device nodes, from the driver's parameters."""
    try:
        text = roots.read(_PARAMETERS)
    except OSError:
        return _WORLD, 0
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        return int(fields["DeviceFileMode"]), int(fields["DeviceFileGID"])
    except (KeyError, ValueError):
        return _WORLD, 0
