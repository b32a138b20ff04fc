"""Placement of a claim's devices as its classes and the claim itself configure it.

Each opaque configuration for this driver is decoded once; what a claim says of a field stands above
what the class says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from api.config import PlacementConfig, decode_placement, decode_share
from api.errors import InvalidObjectError
from dra.claims.claims import Claim, Request
from dra.claims.classes import DeviceClass
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import at
from dra.gpu.shares import NO_ASK, Ask


class _Entry(NamedTuple):
    """Fields that one configuration sets, for some requests or, without any, for all."""

    requests: frozenset[str]
    fields: Mapping[str, Any]
    share: Mapping[str, Any]
    kind: str


@dataclass(frozen=True, slots=True)
class Placements:
    """Configurations of a claim and, by name, of its classes; the later ones stand above."""

    of_classes: Mapping[str, tuple[_Entry, ...]]
    of_claim: tuple[_Entry, ...]

    def of(self, request: Request) -> PlacementConfig:
        """Configuration for one exact request of the claim."""
        fields: dict[str, Any] = {}
        for entry in self._entries(request):
            fields |= entry.fields
        return PlacementConfig(**fields)

    def share(self, request: Request) -> Ask:
        """Share that is configured for one exact request of the claim."""
        fields: dict[str, Any] = {}
        for entry in self._entries(request):
            fields |= entry.share
        if not fields:
            return NO_ASK
        anybody = fields.pop("tenants", "") == "any"
        return Ask(**fields, anybody=anybody)

    def kind_of_share(self, request: Request) -> str:
        """Kind of the last configuration that says how large a share is; empty without one."""
        found = ""
        for entry in self._entries(request):
            if Ask(entry.share.get("memory_mib"), entry.share.get("cores")).stated:
                found = entry.kind
        return found

    def _entries(self, request: Request) -> Iterable[_Entry]:
        names = {request.name, request.name.partition("/")[0]}
        return (
            entry
            for entry in (*self.of_classes[request.class_name], *self.of_claim)
            if not entry.requests or not names.isdisjoint(entry.requests)
        )


def read_placements(
    claim: Claim, classes: Mapping[str, DeviceClass], driver: str
) -> Placements | Obstacle:
    """Configurations of ``claim`` and of its classes, all of which are in ``classes``.

    The obstacle is the first configuration for ``driver`` that cannot be understood.
    """
    names = dict.fromkeys(c.class_name for r in claim.requests for c in r.choices)
    try:
        of_classes = {
            name: _decode(
                classes[name].config, f"DeviceClass {name!r} config", driver, of_class=True
            )
            for name in names
        }
        of_claim = _decode(claim.config, "spec.devices.config", driver, of_class=False)
        return Placements(of_classes, of_claim)
    except _BadConfigError as error:
        return Obstacle(Reason.BAD_CONFIG, str(error))


class _BadConfigError(Exception):
    """A configuration cannot be understood; says which and why."""


def _decode(
    entries: Iterable[Mapping[str, Any]], place: str, driver: str, *, of_class: bool
) -> tuple[_Entry, ...]:
    found = []
    for number, entry in enumerate(entries):
        if at(entry, "opaque", "driver") == driver:
            try:
                parameters = entry["opaque"].get("parameters")
                fields = decode_placement(parameters)
                share = decode_share(parameters, of_class=of_class)
            except InvalidObjectError as error:
                raise _BadConfigError(f"{place}[{number}].opaque.parameters: {error}") from error
            requests = frozenset(entry.get("requests") or ())
            found.append(_Entry(requests, fields, share, parameters["kind"]))
    return tuple(found)
