"""GPUs and parts of them that kubelet gives to pods for other drivers and for device plugins.

A device plugin's device has the UUID of GPU or MIG device in its id (k8s-device-plugin,
internal/rm); NVIDIA's DRA driver names a device as this one does, with the GPU's minor number in
it, and its CDI id ends in that name (dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/cdi.go).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdi.spec import claim_kind
from kubeletplugin.host.podresources import PodDevices

_OF_GPUS = ("nvidia.com/gpu", "nvidia.com/mig-", "mig.das.com/", "instaslice.", "volcano.sh/vgpu")
"""Resources of device plugins for GPUs, as they begin. Ids of others that name no GPU count as of
other hardware."""
_DRA_OF_GPUS = ("gpu.nvidia.com", ".project-hami.io")
_UUIDS = ("GPU-", "MIG-")


@dataclass(frozen=True, slots=True)
class OtherUses:
    """All such devices at one moment: their ids or names by pod, and resource or DRA driver."""

    uses: dict[tuple[str, str], list[str]]

    def of(self, *names: str) -> str:
        """The pods that have a GPU or an instance, in words; empty if none has.

        ``names``: its UUIDs, and its name in NVIDIA's DRA driver.
        """
        uuids = [name for name in names if name.startswith(_UUIDS)]
        return self._named(lambda each: each in names or any(uuid in each for uuid in uuids))

    def unclear(self) -> str:
        """The pods with devices that may be of any GPU, in words; empty if there are none."""
        return self._named(lambda each: not (each.startswith("gpu-") or has_uuid(each)))

    def _named(self, is_it: Callable[[str], bool]) -> str:
        uses = self.uses.items()
        return ", ".join(f"pod {pod} ({by})" for (pod, by), ids in uses if any(map(is_it, ids)))


def other_uses(*pods: PodDevices, driver: str) -> OtherUses:
    """Devices of ``pods`` that ``driver``, this program, has not given them."""
    own, found = f"{claim_kind(driver)}=", dict[tuple[str, str], list[str]]()
    for pod in pods:
        name = f"{pod.namespace}/{pod.name}"
        for resource, each in sorted(pod.plugin_devices):
            if is_of_gpus(resource, each):
                found.setdefault((name, resource), []).append(each)
        for device in sorted(pod.claim_devices, key=lambda d: d.device):
            marked = [*filter(has_uuid, device.cdi_ids)]
            is_own = any(each.startswith(own) for each in device.cdi_ids)
            if not is_own and (marked or device.driver.endswith((*_DRA_OF_GPUS, driver))):
                found.setdefault((name, device.driver), []).extend(marked or [device.device])
    return OtherUses(found)


def is_of_gpus(resource: str, device: str) -> bool:
    """True if a device plugin's device is a GPU or a part of one, or may be."""
    return resource.startswith(_OF_GPUS) or has_uuid(device)


def has_uuid(device: str) -> bool:
    """True if an id has the UUID of a GPU or MIG device in it."""
    return any(mark in device for mark in _UUIDS)
