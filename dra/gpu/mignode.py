"""A node's inventory as a MigNode object, and back.

Most values are the same in both. A GPU differs: in the object it refers to its geometry by name,
and its number is part of its own name.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import fields, replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from msgspec import structs

from api import mignode as wire
from dra.common.resources import Obj, at
from dra.gpu.geometry import Engines, Geometry, Placement, Profile
from dra.gpu.inventory import (
    AllocatorKind,
    ClaimRef,
    Gpu,
    GpuFacts,
    GpuHealth,
    GpuReason,
    IdleInstance,
    Instance,
    InstanceState,
    Inventory,
    Publication,
)
from dra.gpu.names import parse_device

READY = "Ready"
SLICES_PUBLISHED = "SlicesPublished"
"""Condition that the node's ResourceSlices are published, where kube-scheduler allocates."""

MOST_PLACEMENTS = 64
"""Placements of a geometry, of all profiles together; products have up to 30."""

_USABLE_WHOLE = {GpuReason.NO_MIG, GpuReason.MIG_OFF}
_STATUS = {True: "True", False: "False", None: "Unknown"}
_FACTS = [f.name for f in fields(GpuFacts) if f.name in wire.GpuField.__struct_fields__]


def to_mignode(inventory: Inventory, *, transition_time: str = "") -> Obj:
    """The MigNode object of ``inventory``; GPUs of one kind share one entry in ``geometries``.

    ``transition_time`` is RFC 3339, for its conditions. A MigNode holds a limited number of
    geometries: GPUs with a further one are written as unavailable, with the reason.
    """
    known = [*dict.fromkeys(g.geometry for g in inventory.gpus if g.geometry is not None)]
    told = enumerate(known[: wire.MOST_GEOMETRIES])
    names = {geometry: f"geometry-{number}" for number, geometry in told}
    mode, progress = inventory.mode, inventory.progress
    status = wire.MigNodeStatus(
        driver_version=inventory.driver_version,
        cuda_driver_version=inventory.cuda_driver_version,
        cdi_hook=inventory.cdi_hook,
        resumed=inventory.resumed,
        mode=structs.replace(mode, message=wire.clipped(mode.message)) if mode else None,
        takeover=progress and structs.replace(progress, message=wire.clipped(progress.message)),
        failed_claims=inventory.failed_claims,
        capabilities=inventory.capabilities,
        geometries=[_geometry_out(name, geometry) for geometry, name in names.items()],
        gpus=[_gpu_out(g, names) for g in inventory.gpus],
        summary=_summary(inventory),
        conditions=_conditions_out(inventory, transition_time),
    )
    spec = wire.MigNodeSpec(
        driver=inventory.driver,
        pool=inventory.pool,
        allocator=inventory.allocator.value,
        drain=inventory.drain,
        takeover=inventory.takeover,
    )
    return wire.encode(wire.MigNode(name=inventory.node, spec=spec, status=status))


def from_mignode(obj: Obj) -> Inventory:
    """The inventory in a MigNode object.

    Raises:
        api.errors.InvalidObjectError: a field is missing, of a wrong type or out of bounds, or an
            instance is in a state that this version does not know.
        ValueError: an allocator that this version does not know, or placements that no GPU has.
    """
    node = wire.decode(obj)
    spec, status = node.spec, node.status
    geometries = {g.name: _geometry_in(g) for g in status.geometries}
    conditions = {c.type: c for c in status.conditions}
    ready = conditions.get(READY)
    return Inventory(
        node=node.name,
        pool=spec.pool,
        driver=spec.driver,
        allocator=AllocatorKind(spec.allocator),
        gpus=tuple(_gpu_in(g, geometries) for g in status.gpus),
        driver_version=status.driver_version,
        cuda_driver_version=status.cuda_driver_version,
        cdi_hook=status.cdi_hook,
        ready=ready is not None and ready.status == "True",
        message=ready.message if ready else "",
        publication=_publication_in(conditions.get(SLICES_PUBLISHED)),
        drain=spec.drain,
        takeover=spec.takeover,
        progress=status.takeover,
        resumed=status.resumed,
        failed_claims=status.failed_claims,
        mode=status.mode,
        capabilities=status.capabilities,
    )


def heartbeat_of(obj: Obj) -> datetime | None:
    """Time of the last heartbeat in a MigNode object; None without one, as of an older plugin."""
    try:
        found = datetime.fromisoformat(at(obj, "status", "lastHeartbeatTime", default=""))
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo is not None else None


SILENT = timedelta(seconds=wire.SILENT_SECONDS)
"""Age of a heartbeat from which on its plugin counts as silent."""


def wishes_of(obj: Obj) -> wire.MigNode:
    """MigNode in ``obj``, of its status only the progress of a takeover.

    Raises:
        api.errors.InvalidObjectError: a field is missing or of a wrong type.
    """
    return wire.decode({**obj, "status": {"takeover": at(obj, "status", "takeover", default=None)}})


@lru_cache(maxsize=16)
def _geometry_out(name: str, geometry: Geometry) -> wire.GeometryField:
    """One object for all MigNodes: it is encoded at each change of a node, and stays the same.

    A profile is left out if no class can be made of its name: no claim could ask for it.
    """
    profiles = [
        wire.ProfileField(
            name=p.name,
            id=p.id,
            compute_slices=p.compute_slices,
            memory_slices=p.memory_slices,
            memory_mib=p.memory_mib,
            multiprocessors=p.multiprocessors,
            starts=[q.start for q in p.placements],
            **p.engines._asdict(),
        )
        for p in geometry.profiles
        if wire.PROFILE_NAME.match(p.name)
    ]
    return wire.GeometryField(name=name, profiles=profiles, memory_slices=geometry.slices)


def _geometry_in(field: wire.GeometryField) -> Geometry:
    if sum(len(p.starts) for p in field.profiles) > MOST_PLACEMENTS:
        raise ValueError(
            f"MigNode: geometry {field.name!r} has more than {MOST_PLACEMENTS} placements"
        )
    profiles = tuple(
        Profile(
            id=p.id,
            name=p.name,
            compute_slices=p.compute_slices,
            memory_mib=p.memory_mib,
            multiprocessors=p.multiprocessors,
            placements=tuple(_placement(start, p.memory_slices) for start in p.starts),
            engines=Engines(*(getattr(p, name) for name in Engines._fields)),
        )
        for p in field.profiles
    )
    return Geometry(profiles, field.memory_slices)


def _gpu_out(gpu: Gpu, names: dict[Geometry, str]) -> wire.GpuField:
    if gpu.geometry is None or gpu.geometry in names:
        return _gpu_field(gpu, names[gpu.geometry] if gpu.geometry else "")
    why = (
        f"the node's GPUs have more than {wire.MOST_GEOMETRIES} different geometries, the most "
        "that its MigNode holds: have fewer different layouts"
    )
    return _gpu_field(replace(gpu, unavailable=gpu.unavailable or why), "")


@lru_cache(maxsize=64)
def _gpu_field(gpu: Gpu, geometry: str) -> wire.GpuField:
    """A GPU whose geometry is called ``geometry`` in the MigNode; cached, as most do not change."""
    return wire.GpuField(
        name=gpu.name,
        uuid=gpu.uuid,
        mig_mode=wire.MigModeField(enabled=gpu.mig_enabled, pending=gpu.mig_pending),
        pcie_root=gpu.pcie_root,
        multiprocessors=gpu.multiprocessors,
        geometry=geometry,
        claims=gpu.claims[: wire.MOST_GPU_CLAIMS],
        instances=tuple(map(_clipped, gpu.instances)),
        reason=gpu.reason,
        message=wire.clipped(gpu.unavailable),
        idle=gpu.idle,
        layout=gpu.layout,
        sharing=_sharing_out(gpu.shares),
        slice_sharing=_sharing_out(gpu.slice_shares),
        health=gpu.health,
        **{name: getattr(gpu, name) for name in _FACTS},
    )


def _clipped(instance: Instance) -> Instance:
    return structs.replace(
        instance,
        message=wire.clipped(instance.message),
        unhealthy=wire.clipped(instance.unhealthy),
    )


def _gpu_in(field: wire.GpuField, geometries: dict[str, Geometry]) -> Gpu:
    layout = field.layout
    for placement in layout.ready if layout else ():
        _placement(placement.start, placement.size)
    return Gpu(
        minor=parse_device(field.name).minor,
        uuid=field.uuid,
        pcie_root=field.pcie_root,
        multiprocessors=field.multiprocessors,
        mig_enabled=field.mig_mode.enabled,
        mig_pending=field.mig_mode.pending,
        geometry=geometries.get(field.geometry),
        claims=field.claims,
        instances=tuple(map(_kept_once, field.instances)),
        unavailable=field.message,
        reason=field.reason,
        idle=tuple(map(_idle_kept_once, field.idle)),
        layout=layout,
        shares=field.sharing.shares if field.sharing else 0,
        slice_shares=field.slice_sharing.shares if field.slice_sharing else 0,
        health=_one_health(field.health),
        **{name: getattr(field, name) for name in _FACTS},
    )


@lru_cache(maxsize=64)
def _one_health(health: GpuHealth | None) -> GpuHealth | None:
    """The same object for all equal values: most GPUs are well."""
    return health


def _kept_once(instance: Instance) -> Instance:
    """The instance, with a placement and names that it shares with all equal ones."""
    claim = instance.claim
    return structs.replace(
        instance,
        placement=_placement(instance.placement.start, instance.placement.size),
        profile=sys.intern(instance.profile),
        claim=claim and ClaimRef(*map(sys.intern, structs.astuple(claim))),
    )


def _idle_kept_once(idle: IdleInstance) -> IdleInstance:
    placement = _placement(idle.placement.start, idle.placement.size)
    return structs.replace(idle, placement=placement, namespace=sys.intern(idle.namespace))


@lru_cache(maxsize=256)
def _placement(start: int, size: int) -> Placement:
    """The same object for all GPUs, which have few different placements.

    Raises:
        ValueError: it ends behind the last memory slice that a GPU may have.
    """
    if start + size > wire.MEMORY_SLICES:
        raise ValueError(
            f"MigNode: a placement of {size} memory slices from {start} on ends behind "
            f"{wire.MEMORY_SLICES}, the most that a GPU has"
        )
    return Placement(start, size)


def _sharing_out(shares: int) -> wire.SharingField | None:
    return wire.SharingField(shares=shares) if shares else None


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
    blocked = [g for g in inventory.gpus if g.unavailable and g.reason not in _USABLE_WHOLE]
    reasons = Counter(gpu.reason or GpuReason.UNAVAILABLE for gpu in blocked)
    best = max(placeable, key=lambda p: (p.memory_mib, p.compute_slices), default=None)
    return wire.SummaryField(
        products=", ".join(f"{n}x {product}" for product, n in sorted(products.items())),
        gpus=len(inventory.gpus),
        slices=sum(t.slices for _, t in taken),
        free_memory=f"{sum(t.free_mib for t in room) // 1024}Gi",
        largest=best.name if best else "",
        unavailable=", ".join(f"{n} {reason}" for reason, n in sorted(reasons.items())),
    )


class _Taken(NamedTuple):
    """Room on a GPU. ``slices``: number of slices that claims have.

    ``free_mib``: memory that no instance takes. ``largest``: largest profile that still fits.
    """

    slices: int
    free_mib: int = 0
    largest: Profile | None = None


@lru_cache(maxsize=64)
def _taken(gpu: Gpu) -> _Taken:
    """Cached, as most GPUs of a node do not change; nothing is free without a geometry."""
    held = (InstanceState.PREPARED, InstanceState.PREPARING)
    slices = len({i.placement for i in gpu.instances if i.state in held})
    geometry = gpu.geometry
    if geometry is None or not geometry.memory_slices:
        return _Taken(slices)
    usage, size = gpu.usage, geometry.memory_slices
    free = gpu.memory_mib * (size - usage.mask.bit_count()) // size
    return _Taken(slices, free, geometry.largest_placeable(usage))
