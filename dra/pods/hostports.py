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

    def __str__(self) -> str:
        where = "" if self.address == _EVERY_ADDRESS else f" of {self.address}"
        return f"{self.protocol} {self.number}{where}"


def read_host_ports(spec: Mapping[str, Any]) -> tuple[HostPort, ...]:
    """The host ports of a pod's containers and sidecars; other init containers take none."""
    containers = [*at(spec, "containers")]
    containers += [c for c in at(spec, "initContainers") if c.get("restartPolicy") == "Always"]
    return tuple(dict.fromkeys(port for c in containers for port in _of(c)))


class TakenPorts:
    """Host ports that pods take on a node, found by their number: there may be thousands."""

    def __init__(self, ports: Iterable[HostPort]) -> None:
        self._taken: dict[tuple[str, int], set[str]] = {}
        for port in ports:
            self._taken.setdefault((port.protocol, port.number), set()).add(port.address)

    def find_conflict(self, wanted: Iterable[HostPort]) -> HostPort | None:
        """The first of ``wanted`` that one of these rules out: a node cannot have both."""
        return next(filter(self._rules_out, wanted), None)

    def _rules_out(self, port: HostPort) -> bool:
        taken = self._taken.get((port.protocol, port.number))
        if not taken or port.address == _EVERY_ADDRESS:
            return bool(taken)
        return not taken.isdisjoint((port.address, _EVERY_ADDRESS))


def _of(container: Mapping[str, Any]) -> Iterator[HostPort]:
    for port in at(container, "ports"):
        if number := port.get("hostPort"):
            address, protocol = port.get("hostIP"), port.get("protocol")
            yield HostPort(address or _EVERY_ADDRESS, protocol or "TCP", number)
