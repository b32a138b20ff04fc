"""Handles of GPUs: taken by index or PCI address, verified by UUID, kept until the next nvmlInit.

nvml.h lets nvmlDeviceGetHandleByUUID answer GPU_IS_LOST as soon as any GPU is lost, and initialise
others on its way. By index and by PCI address only the GPU that is asked for answers.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

_STALE_KEPT = 256
"""Handles of earlier generations that a call may still be about to use."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU that answered: its UUID, its handle, and its PCI address if it would tell."""

    uuid: str
    handle: Any
    address: str = ""


class Handles:
    """Handles by UUID; ``generation`` counts initialisations of NVML. Thread-safe.

    Values that are read are never changed, only replaced, so that reading takes no lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[int, Device]] = {}
        self._addresses: dict[str, str] = {}
        self._owners: dict[int, tuple[Any, str]] = {}

    def keep(self, device: Device, generation: int) -> None:
        """Remember a verified handle."""
        with self._lock:
            self._kept[device.uuid] = (generation, device)
            if device.address:
                self._addresses[device.uuid] = device.address
            self._owners[id(device.handle)] = (device.handle, device.uuid)
            kept = {id(d.handle) for _, d in self._kept.values()}
            stale = [key for key in self._owners if key not in kept]
            for key in stale[:-_STALE_KEPT]:
                del self._owners[key]

    def get(self, uuid: str, generation: int) -> Device | None:
        """The GPU's handle of this generation, if there is one."""
        found = self._kept.get(uuid)
        return found[1] if found is not None and found[0] == generation else None

    def are_current(self, arguments: tuple[Any, ...], generation: int) -> bool:
        """True unless one of these objects was the handle of a GPU that has another one by now."""
        for argument in arguments:
            owned = self._owners.get(id(argument))
            if owned is None or owned[0] is not argument:
                continue
            kept = self._kept.get(owned[1])
            if kept is None or kept[0] != generation or kept[1].handle is not argument:
                return False
        return True

    def address(self, uuid: str) -> str:
        """The PCI address at which the GPU was last seen; empty if none is known."""
        return self._addresses.get(uuid, "")

    def forget(self, uuid: str) -> None:
        """Drop a GPU's handle: the next is taken and verified anew."""
        with self._lock:
            self._kept.pop(uuid, None)

    def owner(self, handle: Any) -> str:
        """The UUID of the GPU whose handle this object is or was; empty for any other object."""
        found = self._owners.get(id(handle))
        return found[1] if found is not None and found[0] is handle else ""
