"""Reservations: slices that a node makes for a claim before the claim is allocated.

The controller writes them into ``spec`` of the MigNode, the node answers in its ``status``, and
only then the claim is allocated. A reservation gives nothing away: two of the same place cannot
both be made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from api import mignode as wire
from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef

CAPABILITY = "Reservations"
"""Word in ``status.capabilities`` of a node that makes what is reserved."""

MOST = 64
"""Upper bound on the reservations of a node; that of api/crds/mignodes.yaml."""

MOST_DEVICES = 128
"""Upper bound on the slices in all of them, so that a MigNode stays small."""


@dataclass(frozen=True, slots=True)
class ReservedDevice:
    """A slice by its device name; ``gpu`` is the GPU's UUID, ``request`` what it is for."""

    device: str
    gpu: str
    request: str


@dataclass(frozen=True, slots=True)
class Reservation:
    """Slices reserved for a claim; ``id`` is used once, ``seconds`` are counted by the node."""

    id: str
    claim: ClaimRef
    devices: tuple[ReservedDevice, ...]
    seconds: int


def reservations_of(obj: Obj) -> tuple[Reservation, ...]:
    """The reservations in a MigNode object.

    Raises:
        api.errors.InvalidObjectError: a field is missing or of a wrong type.
    """
    if not (obj.get("spec") or {}).get("reservations"):
        return ()
    return tuple(map(_read, wire.decode({**obj, "status": {}}).spec.reservations))


def as_fields(reservations: Iterable[Reservation]) -> list[dict[str, Any]]:
    """``spec.reservations`` of a MigNode object."""
    return [msgspec.to_builtins(_written(each)) for each in reservations]


def _read(field: wire.ReservationField) -> Reservation:
    claim = field.claim
    return Reservation(
        field.id,
        ClaimRef(claim.namespace, claim.name, claim.uid),
        tuple(ReservedDevice(d.device, d.gpu, d.request) for d in field.devices),
        field.seconds,
    )


def _written(reservation: Reservation) -> wire.ReservationField:
    claim = reservation.claim
    return wire.ReservationField(
        id=reservation.id,
        claim=wire.ClaimField(namespace=claim.namespace, name=claim.name, uid=claim.uid),
        devices=[
            wire.ReservedDeviceField(device=d.device, gpu=d.gpu, request=d.request)
            for d in reservation.devices
        ],
        seconds=reservation.seconds,
    )
