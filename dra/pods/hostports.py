"""Host ports: a port of a node is for one pod, on all addresses or on one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from dra.common.resources import at

_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - compared, not bound


class HostPort(NamedTuple):
    """A port of the node that a container takes."""

    address: str
    protocol: str
    number: int

    def __str__(self) -> str:
        where = "" if self.address == _EVERY_ADDRESS else f" of {self.address}"
        return f"{self.protocol} {self.number}{where}"


def read_host_ports(spec: Mapping[str, Any]) -> tuple[HostPort, ...]:
    """The host ports of a pod's containers and sidecars; other init containers take none."""
    containers = [*at(spec, "containers")]
    containers += [c for c in at(spec, "initContainers") if c.get("restartPolicy") == "Always"]
    return tuple(dict.fromkeys(port for c in containers for port in _of(c)))


class Holder(Protocol):
    """Whoever takes host ports; it is hashed by its identity."""

    @property
    def host_ports(self) -> tuple[HostPort, ...]:
        """The ports."""


class WantedPorts:
    """Host ports that a pod wants, compared with those of each holder once: there may be thousands.

    Many pods may have the needs that are a holder, on many nodes.
    """

    def __init__(self, wanted: Iterable[HostPort]) -> None:
        self._places: dict[HostPort, int] = {}
        self._of_number: dict[tuple[str, int], list[HostPort]] = {}
        for place, port in enumerate(wanted):
            self._places[port] = place
            self._of_number.setdefault((port.protocol, port.number), []).append(port)
        self._known: dict[Holder, HostPort | None] = {}

    def find_conflict(self, holders: Iterable[Holder]) -> HostPort | None:
        """The first wanted one that one of ``holders`` rules out: a node cannot have both."""
        if not self._places:
            return None
        found = (self._of(holder) for holder in holders if holder.host_ports)
        ports = (port for port in found if port is not None)
        return min(ports, key=self._places.__getitem__, default=None)

    def _of(self, holder: Holder) -> HostPort | None:
        if holder not in self._known:
            self._known[holder] = self._compare(holder.host_ports)
        return self._known[holder]

    def _compare(self, taken: Iterable[HostPort]) -> HostPort | None:
        ruled_out = (
            port
            for other in taken
            for port in self._of_number.get((other.protocol, other.number), ())
            if port.address == other.address or _EVERY_ADDRESS in (port.address, other.address)
        )
        return min(ruled_out, key=self._places.__getitem__, default=None)


def _of(container: Mapping[str, Any]) -> Iterator[HostPort]:
    for port in at(container, "ports"):
        if number := port.get("hostPort"):
            address, protocol = port.get("hostIP"), port.get("protocol")
            yield HostPort(address or _EVERY_ADDRESS, protocol or "TCP", number)
