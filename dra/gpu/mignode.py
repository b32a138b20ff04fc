"""A node's inventory as a MigNode object, and back."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from api import mignode as wire
from dra.gpu.geometry import Geometry, Profile
from dra.gpu.inventory import (
    AllocatorKind,
    Answer,
    AnswerState,
    ClaimRef,
    Drain,
    FailedClaim,
    Gpu,
    InstanceState,
    Inventory,
    NodeMode,
    Publication,
)
from dra.gpu.mignode_gpus import decode_geometry, decode_gpu, encode_geometry, encode_gpu

READY = "Ready"
SLICES_PUBLISHED = "SlicesPublished"
"""Condition that the node's ResourceSlices are published, where kube-scheduler allocates."""
_ANSWER_CHARACTERS = 512
_STATUS = {True: "True", False: "False", None: "Unknown"}


def to_mignode(inventory: Inventory, *, transition_time: str = "") -> dict[str, Any]:
    """The MigNode object of ``inventory``; GPUs of one kind share one entry in ``geometries``.

    ``transition_time`` is RFC 3339, for its conditions. Nothing is placed on GPUs whose geometry
    would be one more than a MigNode holds; they say so.
    """
    known = [*dict.fromkeys(g.geometry for g in inventory.gpus if g.geometry is not None)]
    told = enumerate(known[: wire.MOST_GEOMETRIES])
    names = {geometry: f"geometry-{number}" for number, geometry in told}
    status = wire.MigNodeStatus(
        driver_version=inventory.driver_version,
        cuda_driver_version=inventory.cuda_driver_version,
        cdi_hook=inventory.cdi_hook,
        resumed=inventory.resumed,
        mode=_mode_out(inventory.mode),
        failed_claims=[_failed_out(f) for f in inventory.failed_claims],
        capabilities=[*inventory.capabilities],
        reservations=[
            wire.AnswerField(id=a.id, state=a.state.value, message=a.message[:_ANSWER_CHARACTERS])
            for a in inventory.answers
        ],
        geometries=[encode_geometry(name, geometry) for geometry, name in names.items()],
        gpus=[_gpu_out(g, names) for g in inventory.gpus],
        summary=_summary(inventory),
        conditions=_conditions_out(inventory, transition_time),
    )
    spec = wire.MigNodeSpec(
        driver=inventory.driver,
        pool=inventory.pool,
        allocator=inventory.allocator.value,
        drain=_drain_out(inventory.drain),
    )
    return wire.encode(wire.MigNode(name=inventory.node, spec=spec, status=status))


def _gpu_out(gpu: Gpu, names: dict[Geometry, str]) -> wire.GpuField:
    if gpu.geometry is None or gpu.geometry in names:
        return encode_gpu(gpu, names[gpu.geometry] if gpu.geometry else "")
    why = (
        f"the node's GPUs have more than {wire.MOST_GEOMETRIES} different geometries, the most "
        "that its MigNode holds: have fewer different layouts"
    )
    return encode_gpu(replace(gpu, unavailable=gpu.unavailable or why), "")


def from_mignode(obj: dict[str, Any]) -> Inventory:
    """The inventory in a MigNode object.

    Raises:
        api.errors.InvalidObjectError: a field is missing, of a wrong type or out of bounds.
        dra.gpu.names.DeviceNameError: a GPU's name is not ``gpu-<minor>``.
        ValueError: an allocator or an instance state that this version does not know, or placements
            that no GPU has.
    """
    node = wire.decode(obj)
    geometries = {g.name: decode_geometry(g) for g in node.status.geometries}
    conditions = {c.type: c for c in node.status.conditions}
    ready = conditions.get(READY)
    return Inventory(
        node=node.name,
        pool=node.spec.pool,
        driver=node.spec.driver,
        allocator=AllocatorKind(node.spec.allocator),
        gpus=tuple(decode_gpu(g, geometries) for g in node.status.gpus),
        driver_version=node.status.driver_version,
        cuda_driver_version=node.status.cuda_driver_version,
        cdi_hook=node.status.cdi_hook,
        ready=ready is not None and ready.status == "True",
        message=ready.message if ready else "",
        publication=_publication_in(conditions.get(SLICES_PUBLISHED)),
        drain=_drain_in(node.spec.drain),
        resumed=node.status.resumed,
        failed_claims=tuple(_failed_in(f) for f in node.status.failed_claims),
        mode=_mode_in(node.status.mode),
        capabilities=tuple(node.status.capabilities),
        answers=tuple(
            Answer(a.id, AnswerState(a.state), a.message)
            for a in node.status.reservations
            if a.state in set(AnswerState)
        ),
    )


def drain_of(obj: dict[str, Any]) -> Drain | None:
    """Drain that the MigNode object in ``obj`` asks for.

    Raises:
        api.errors.InvalidObjectError: a field is missing or of a wrong type.
    """
    return _drain_in(wire.decode({**obj, "status": {}}).spec.drain)


def _failed_in(field: wire.FailedClaimField) -> FailedClaim:
    claim = ClaimRef(field.namespace, field.name, field.uid)
    return FailedClaim(claim, field.time, field.passing, field.gpu)


def _failed_out(failed: FailedClaim) -> wire.FailedClaimField:
    claim = failed.claim
    return wire.FailedClaimField(
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        time=failed.time,
        passing=failed.passing,
        gpu=failed.gpu,
    )


def _drain_in(field: wire.DrainField | None) -> Drain | None:
    return None if field is None else Drain(tuple(field.gpus), field.reason, field.since)


def _drain_out(drain: Drain | None) -> wire.DrainField | None:
    if drain is None:
        return None
    return wire.DrainField(gpus=[*drain.gpus], reason=drain.reason, since=drain.since)


def _mode_out(mode: NodeMode | None) -> wire.ModeField | None:
    if mode is None:
        return None
    return wire.ModeField(
        mode=mode.mode,
        state=mode.state,
        layout=mode.layout,
        message=wire.clipped(mode.message),
    )


def _mode_in(field: wire.ModeField | None) -> NodeMode | None:
    return None if field is None else NodeMode(field.mode, field.state, field.layout, field.message)


def _conditions_out(inventory: Inventory, transition_time: str) -> list[wire.ConditionField]:
    reason = "Serving" if inventory.ready else "NotServing"
    found: list[tuple[str, bool | None, str, str]] = [
        (READY, inventory.ready, reason, inventory.message)
    ]
    if (published := inventory.publication) is not None:
        found.append((SLICES_PUBLISHED, published.done, published.reason, published.message))
    return [
        wire.ConditionField(
            type=kind,
            status=_STATUS[value],
            reason=reason,
            message=wire.clipped(message),
            last_transition_time=transition_time,
        )
        for kind, value, reason, message in found
    ]


def _publication_in(condition: wire.ConditionField | None) -> Publication | None:
    if condition is None:
        return None
    done = next((value for value, text in _STATUS.items() if text == condition.status), None)
    return Publication(done, condition.reason, condition.message)


def _summary(inventory: Inventory) -> wire.SummaryField:
    products = Counter(g.product_name.removeprefix("NVIDIA ") for g in inventory.gpus)
    taken = [(gpu, _taken(gpu)) for gpu in inventory.gpus]
    room = [t for gpu, t in taken if not gpu.unavailable and not inventory.is_drained(gpu.name)]
    placeable = [t.largest for t in room if t.largest is not None]
    best = max(placeable, key=lambda p: (p.memory_mib, p.compute_slices), default=None)
    return wire.SummaryField(
        products=", ".join(f"{n}x {product}" for product, n in sorted(products.items())),
        gpus=len(inventory.gpus),
        slices=sum(t.slices for _, t in taken),
        free_memory=f"{sum(t.free_mib for t in room) // 1024}Gi",
        largest=best.name if best else "",
    )


class _Taken(NamedTuple):
    """Slices of claims on a GPU, the memory that they and all others leave, and what fits there."""

    slices: int
    free_mib: int = 0
    largest: Profile | None = None


@lru_cache(maxsize=64)
def _taken(gpu: Gpu) -> _Taken:
    """Kept, as of most GPUs of a node nothing has changed; nothing is free without a geometry."""
    held = (InstanceState.PREPARED, InstanceState.PREPARING)
    slices = len({i.placement for i in gpu.instances if i.state in held})
    geometry = gpu.geometry
    if geometry is None or not geometry.memory_slices:
        return _Taken(slices)
    usage, size = gpu.usage, geometry.memory_slices
    free = gpu.memory_mib * (size - usage.mask.bit_count()) // size
    return _Taken(slices, free, geometry.largest_placeable(usage))
