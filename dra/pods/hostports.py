"""Host ports: a port of a node is for one pod, on all addresses or on one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dra.common.resources import at

_EVERY_ADDRESS = "0.0.0.0"  # noqa: S104 - compared, not bound


class HostPort(NamedTuple):
    """A port of the node that a container takes."""

    address: str
    protocol: str
    number: int

    def conflicts(self, other: HostPort) -> bool:
        """True if a node cannot have both."""
        if (self.protocol, self.number) != (other.protocol, other.number):
            return False
        return self.address == other.address or _EVERY_ADDRESS in (self.address, other.address)

    def __str__(self) -> str:
        where = "" if self.address == _EVERY_ADDRESS else f" of {self.address}"
        return f"{self.protocol} {self.number}{where}"


def read_host_ports(spec: Mapping[str, Any]) -> tuple[HostPort, ...]:
    """The host ports of a pod's containers and sidecars; other init containers take none."""
    containers = [*at(spec, "containers")]
    containers += [c for c in at(spec, "initContainers") if c.get("restartPolicy") == "Always"]
    return tuple(dict.fromkeys(port for c in containers for port in _of(c)))


def find_conflict(wanted: Iterable[HostPort], taken: Iterable[HostPort]) -> HostPort | None:
    """The first of ``wanted`` that one of ``taken`` rules out."""
    all_taken = [*taken]
    return next((w for w in wanted if any(w.conflicts(t) for t in all_taken)), None)


def _of(container: Mapping[str, Any]) -> Iterator[HostPort]:
    for port in at(container, "ports"):
        if number := port.get("hostPort"):
            address, protocol = port.get("hostIP"), port.get("protocol")
            yield HostPort(address or _EVERY_ADDRESS, protocol or "TCP", number)
