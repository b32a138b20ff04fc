"""What kube-scheduler does with published devices: first fit in list order, with counters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dra.resourceslices.resourceslices import SliceLayout

_UNITS = {"Mi": 1, "Gi": 1024, "Ti": 1024 * 1024}


def amounts(counters: dict[str, Any]) -> dict[str, int]:
    """Counters as numbers; memory in MiB."""
    return {name: _number(counter["value"]) for name, counter in counters.items()}


def _number(quantity: str) -> int:
    unit = quantity[-2:]
    return int(quantity[:-2]) * _UNITS[unit] if unit in _UNITS else int(quantity)


class FirstFit:
    """Allocates from slices as they are published.

    As the allocator of 1.36 does it: counters of the whole pool have to be sufficient, also those
    that a device does not consume.
    """

    def __init__(self, specs: Iterable[dict[str, Any]]) -> None:
        self.devices: list[dict[str, Any]] = []
        self.left: dict[tuple[str, str], int] = {}
        self.held: set[str] = set()
        for spec in specs:
            self.devices += spec.get("devices", [])
            for each in spec.get("sharedCounters", []):
                for name, amount in amounts(each["counters"]).items():
                    self.left[each["name"], name] = amount

    @classmethod
    def of(cls, layout: SliceLayout) -> FirstFit:
        """From a layout, its slices in the order of their names."""
        order = sorted(range(len(layout)), key=lambda i: layout.names()[i])
        return cls(layout.spec(i, generation=1) for i in order)

    def allocate(self, matches: Callable[[dict[str, Any]], bool]) -> str | None:
        """The first device that matches and fits, from now on held; None if there is none."""
        for device in self.devices:
            if device["name"] in self.held or device.get("taints") or not matches(device):
                continue
            if self.fits(device):
                self.take(device, 1)
                return str(device["name"])
        return None

    def fits(self, device: dict[str, Any]) -> bool:
        """Whether the counters suffice for one more device."""
        taken = self._taken(device)
        return all(amount >= taken.get(key, 0) for key, amount in self.left.items())

    def take(self, device: dict[str, Any], count: int) -> None:
        """Hold a device, or give it back."""
        (self.held.add if count > 0 else self.held.discard)(device["name"])
        for key, amount in self._taken(device).items():
            self.left[key] -= count * amount

    @staticmethod
    def _taken(device: dict[str, Any]) -> dict[tuple[str, str], int]:
        return {
            (each["counterSet"], name): amount
            for each in device.get("consumesCounters", [])
            for name, amount in amounts(each["counters"]).items()
        }


def profile(name: str) -> Callable[[dict[str, Any]], bool]:
    """Selects devices of a profile."""
    return lambda device: device["attributes"].get("profile") == {"string": name}
