"""Names that others parse: devices, DeviceClasses, extended resources.

They equal those of NVIDIA's DRA driver where that has them, because autoscalers, quotas and
monitoring read them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

DEFAULT_DRIVER = "mig.dra.dev"
NVIDIA_DRIVER = "gpu.nvidia.com"
"""Name of NVIDIA's DRA driver, under which this one may run in its place."""

_MIG_DEVICE = re.compile(
    r"gpu-(?P<minor>\d{1,5})-mig-(?P<profile>[0-9a-z]+(?:-[0-9a-z]+)*)-(?P<id>\d{1,5})-(?P<start>\d{1,3})"
    r"(?P<share>-share)?"
)
_GPU_DEVICE = re.compile(r"gpu-(?P<minor>\d{1,5})")


def on_failure(driver: str) -> str:
    """The label of a pod that says what becomes of it if its slice cannot be made.

    ``evict`` or ``wait``; it goes before the configuration of claims and classes.
    """
    return f"{driver}/on-failure"


def prepare_retry(driver: str) -> str:
    """The annotation of a pod whose change makes kubelet ask again for devices not yet prepared.

    Its value is the time (RFC 3339) of the event to which the write belongs, as the node reported
    it.
    """
    return f"{driver}/prepare-retry"


def movable(driver: str) -> str:
    """The label of a pod, with the value ``true``, that lets it be moved so that others have room.

    The pod is ended then, and the pod that its controller makes instead is served elsewhere.
    """
    return f"{driver}/movable"


def defrag(driver: str) -> str:
    """Key of a Node's label; with the value ``true`` the controller may move pods away from there.

    On a MigNode it is the key of the annotation by which an administrator asks for room on its node
    (``api.mignode.RoomRequest``).
    """
    return f"{driver}/defrag"


def finalizer(driver: str) -> str:
    """Our finalizer on claims, and the scheduling gate that we lift: ``mig.dra.dev/allocation``."""
    return f"{driver}/allocation"


class DeviceNameError(ValueError):
    """A device name that is not one of ours."""


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A whole GPU: ``gpu-<minor>``."""

    minor: int

    def __str__(self) -> str:
        return gpu_name(self.minor)


@dataclass(frozen=True, slots=True)
class MigDevice:
    """A placement on a GPU: ``gpu-<minor>-mig-<profile>-<profile id>-<start>``.

    ``minor`` names the GPU; it is not necessarily its minor number now. ``profile_label`` is the
    profile's name as a DNS label (``1g5gb``), which the profile id makes unique. ``shared``: a
    share of the slice, of which other claims have shares under the same name; that name ends in
    ``-share``.
    """

    minor: int
    profile_label: str
    profile_id: int
    start: int
    shared: bool = False

    def __str__(self) -> str:
        name = f"gpu-{self.minor}-mig-{self.profile_label}-{self.profile_id}-{self.start}"
        return f"{name}-share" if self.shared else name

    @property
    def gpu(self) -> str:
        """The name of the GPU that carries it: ``gpu-<minor>``."""
        return gpu_name(self.minor)


def gpu_name(minor: int) -> str:
    """``gpu-<minor>``."""
    return f"gpu-{minor}"


def profile_label(profile: str) -> str:
    """A profile's name as part of a DNS label: ``1g.5gb+me`` becomes ``1g5gb-me``."""
    return profile.replace(".", "").replace("+", "-")


def mig_device(
    minor: int, profile: str, *, profile_id: int, start: int, shared: bool = False
) -> MigDevice:
    """The device of ``profile`` (``1g.5gb``) at memory slice ``start`` of GPU ``minor``."""
    return MigDevice(minor, profile_label(profile), profile_id, start, shared)


@lru_cache(maxsize=4096)
def parse_device(name: str) -> GpuDevice | MigDevice:
    """The device that ``name`` stands for: ``gpu-<minor>``, or a name as of :class:`MigDevice`.

    Answers are kept by name, so that devices of one name on several nodes are mostly one object.

    Raises:
        DeviceNameError: the name has neither of these forms, or a number with leading zeros.
    """
    device: GpuDevice | MigDevice | None = None
    if match := _MIG_DEVICE.fullmatch(name):
        device = MigDevice(
            int(match["minor"]),
            match["profile"],
            int(match["id"]),
            int(match["start"]),
            shared=match["share"] is not None,
        )
    elif match := _GPU_DEVICE.fullmatch(name):
        device = GpuDevice(int(match["minor"]))
    if device is None or str(device) != name:
        shown = name if len(name) <= _SHOWN else name[:_SHOWN] + "..."
        raise DeviceNameError(
            f"device name {shown!r} is neither gpu-<minor> nor "
            "gpu-<minor>-mig-<profile>-<profile id>-<start>, with -share at its end or without"
        )
    return device


_SHOWN = 80


def class_name(profile: str) -> str:
    """The DeviceClass of a profile: ``mig-1g.5gb``; for ``1g.5gb+me`` ``mig-1g.5gb.me``."""
    return "mig-" + profile.replace("+", ".")


def nominal_gigabytes(profile: str) -> int:
    """The size in a profile's name, or label: 5 for ``1g.5gb+me``; 0 where there is none."""
    found = re.search(r"[.g](\d+)gb", profile)
    return int(found[1]) if found else 0


def extended_resource_name(profile: str) -> str:
    """The extended resource of a profile, as in the device plugin: ``nvidia.com/mig-1g.5gb``."""
    return "nvidia.com/" + class_name(profile)


def counter_set_name(minor: int) -> str:
    """The counter set of a GPU: ``gpu-<minor>-counter-set``."""
    return f"gpu-{minor}-counter-set"
