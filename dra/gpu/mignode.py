"""A node's inventory as a MigNode object, and back."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

from api import mignode as wire
from dra.gpu.geometry import Engines, Geometry, Placement, Profile, Usage
from dra.gpu.inventory import (
    AllocatorKind,
    Answer,
    AnswerState,
    ClaimRef,
    Drain,
    FailedClaim,
    Gpu,
    GpuLayout,
    IdleInstance,
    Instance,
    InstanceState,
    Inventory,
    NodeMode,
    Publication,
)
from dra.gpu.names import DeviceNameError, GpuDevice, parse_device
from dra.gpu.shares import UNENFORCED, ShareOffer

READY = "Ready"
SLICES_PUBLISHED = "SlicesPublished"
"""Condition that the node's ResourceSlices are published, where kube-scheduler allocates."""
_STATUS = {True: "True", False: "False", None: "Unknown"}


def to_mignode(inventory: Inventory, *, transition_time: str = "") -> dict[str, Any]:
    """The MigNode object of ``inventory``; GPUs of one kind share one entry in ``geometries``.

    ``transition_time`` is RFC 3339, for its conditions.
    """
    names: dict[Geometry, str] = {}
    for gpu in inventory.gpus:
        if gpu.geometry is not None and gpu.geometry not in names:
            names[gpu.geometry] = f"geometry-{len(names)}"
    status = wire.MigNodeStatus(
        driver_version=inventory.driver_version,
        cuda_driver_version=inventory.cuda_driver_version,
        cdi_hook=inventory.cdi_hook,
        resumed=inventory.resumed,
        mode=_mode_out(inventory.mode),
        failed_claims=[_failed_out(f) for f in inventory.failed_claims],
        capabilities=[*inventory.capabilities],
        reservations=[
            wire.AnswerField(id=a.id, state=a.state.value, message=a.message)
            for a in inventory.answers
        ],
        geometries=[_geometry_out(name, geometry) for geometry, name in names.items()],
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


def from_mignode(obj: dict[str, Any]) -> Inventory:
    """The inventory in a MigNode object.

    Raises:
        api.errors.InvalidObjectError: a field is missing or of a wrong type.
        dra.gpu.names.DeviceNameError: a GPU's name is not ``gpu-<minor>``.
        ValueError: an allocator or an instance state that this version does not know.
    """
    node = wire.decode(obj)
    geometries = {g.name: _geometry_in(g) for g in node.status.geometries}
    conditions = {c.type: c for c in node.status.conditions}
    ready = conditions.get(READY)
    return Inventory(
        node=node.name,
        pool=node.spec.pool,
        driver=node.spec.driver,
        allocator=AllocatorKind(node.spec.allocator),
        gpus=tuple(_gpu_in(g, geometries) for g in node.status.gpus),
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
    return FailedClaim(claim, field.time, field.passing)


def _failed_out(failed: FailedClaim) -> wire.FailedClaimField:
    claim = failed.claim
    return wire.FailedClaimField(
        namespace=claim.namespace,
        name=claim.name,
        uid=claim.uid,
        time=failed.time,
        passing=failed.passing,
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
        mode=mode.mode, state=mode.state, layout=mode.layout, message=mode.message
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
            message=message,
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
    free = 0
    used: dict[tuple[Geometry, Usage], None] = {}  # few differ among the GPUs of a node
    for gpu in inventory.gpus:
        if gpu.geometry is None or gpu.unavailable or not gpu.geometry.memory_slices:
            continue
        if inventory.is_drained(gpu.name):
            continue
        usage = gpu.usage
        taken = usage.mask.bit_count()
        free += gpu.memory_mib * (gpu.geometry.memory_slices - taken) // gpu.geometry.memory_slices
        used[gpu.geometry, usage] = None
    placeable = [p for g, usage in used if (p := g.largest_placeable(usage)) is not None]
    best = max(placeable, key=lambda p: (p.memory_mib, p.compute_slices), default=None)
    held = (InstanceState.PREPARED, InstanceState.PREPARING)
    return wire.SummaryField(
        products=", ".join(f"{n}x {product}" for product, n in sorted(products.items())),
        gpus=len(inventory.gpus),
        slices=sum(
            len({i.placement for i in g.instances if i.state in held}) for g in inventory.gpus
        ),
        free_memory=f"{free // 1024}Gi",
        largest=best.name if best else "",
    )


@lru_cache(maxsize=16)
def _geometry_out(name: str, geometry: Geometry) -> wire.GeometryField:
    """One object for all MigNodes: it is encoded at each change of a node, and stays the same."""
    profiles = [_profile_out(p) for p in geometry.profiles]
    return wire.GeometryField(name=name, profiles=profiles, memory_slices=geometry.slices)


def _profile_out(profile: Profile) -> wire.ProfileField:
    return wire.ProfileField(
        name=profile.name,
        id=profile.id,
        compute_slices=profile.compute_slices,
        memory_slices=profile.memory_slices,
        memory_mib=profile.memory_mib,
        multiprocessors=profile.multiprocessors,
        starts=[p.start for p in profile.placements],
        **profile.engines._asdict(),
    )


def _gpu_out(gpu: Gpu, names: dict[Geometry, str]) -> wire.GpuField:
    return wire.GpuField(
        name=gpu.name,
        uuid=gpu.uuid,
        mig_mode=wire.MigModeField(enabled=gpu.mig_enabled, pending=gpu.mig_pending),
        product_name=gpu.product_name,
        brand=gpu.brand,
        architecture=gpu.architecture,
        cuda_compute_capability=gpu.cuda_compute_capability,
        pci_bus_id=gpu.pci_bus_id,
        pcie_root=gpu.pcie_root,
        memory_mib=gpu.memory_mib,
        multiprocessors=gpu.multiprocessors,
        geometry=names[gpu.geometry] if gpu.geometry is not None else "",
        instances=[_instance_out(i) for i in gpu.instances],
        reason=gpu.reason,
        message=gpu.unavailable,
        idle=[
            wire.IdleField(
                placement=wire.PlacementField(start=i.placement.start, size=i.placement.size),
                profile_id=i.profile_id,
                namespace=i.namespace,
            )
            for i in gpu.idle
        ],
        layout=_layout_out(gpu.layout),
        sharing=_sharing_out(gpu.sharing),
        slice_sharing=_sharing_out(gpu.slice_sharing),
    )


def _layout_out(layout: GpuLayout | None) -> wire.LayoutField | None:
    if layout is None:
        return None
    ready = [wire.PlacementField(start=p.start, size=p.size) for p in layout.ready]
    return wire.LayoutField(name=layout.name, ready=ready)


def _layout_in(field: wire.LayoutField | None) -> GpuLayout | None:
    if field is None:
        return None
    return GpuLayout(field.name, tuple(Placement(p.start, p.size) for p in field.ready))


def _instance_out(instance: Instance) -> wire.InstanceField:
    claim = instance.claim
    return wire.InstanceField(
        placement=wire.PlacementField(start=instance.placement.start, size=instance.placement.size),
        state=instance.state.value,
        profile=instance.profile,
        profile_id=instance.profile_id,
        gpu_instance_id=instance.gpu_instance_id,
        compute_instance_id=instance.compute_instance_id,
        uuid=instance.uuid,
        claim=wire.ClaimField(namespace=claim.namespace, name=claim.name, uid=claim.uid)
        if claim
        else None,
        message=instance.message,
        unhealthy=instance.unhealthy,
    )


def _geometry_in(field: wire.GeometryField) -> Geometry:
    return Geometry(tuple(_profile_in(p) for p in field.profiles), field.memory_slices)


def _profile_in(field: wire.ProfileField) -> Profile:
    return Profile(
        id=field.id,
        name=field.name,
        compute_slices=field.compute_slices,
        memory_mib=field.memory_mib,
        multiprocessors=field.multiprocessors,
        placements=tuple(Placement(start, field.memory_slices) for start in field.starts),
        engines=Engines(*(getattr(field, name) for name in Engines._fields)),
    )


def _gpu_in(field: wire.GpuField, geometries: dict[str, Geometry]) -> Gpu:
    device = parse_device(field.name)
    if not isinstance(device, GpuDevice):
        raise DeviceNameError(f"MigNode: GPU name {field.name!r} names a slice, not a GPU")
    return Gpu(
        minor=device.minor,
        uuid=field.uuid,
        product_name=field.product_name,
        brand=field.brand,
        architecture=field.architecture,
        cuda_compute_capability=field.cuda_compute_capability,
        pci_bus_id=field.pci_bus_id,
        pcie_root=field.pcie_root,
        memory_mib=field.memory_mib,
        multiprocessors=field.multiprocessors,
        mig_enabled=field.mig_mode.enabled,
        mig_pending=field.mig_mode.pending,
        geometry=geometries.get(field.geometry),
        instances=tuple(_instance_in(i) for i in field.instances),
        unavailable=field.message,
        reason=field.reason,
        idle=tuple(
            IdleInstance(Placement(i.placement.start, i.placement.size), i.profile_id, i.namespace)
            for i in field.idle
        ),
        layout=_layout_in(field.layout),
        sharing=_sharing_in(field.sharing),
        slice_sharing=_sharing_in(field.slice_sharing),
    )


def _sharing_out(sharing: ShareOffer | None) -> wire.SharingField | None:
    if sharing is None:
        return None
    enforcer = "" if sharing.enforcer == UNENFORCED else sharing.enforcer
    return wire.SharingField(shares=sharing.shares, enforcer=enforcer)


def _sharing_in(field: wire.SharingField | None) -> ShareOffer | None:
    return None if field is None else ShareOffer(field.shares, field.enforcer or UNENFORCED)


def _instance_in(field: wire.InstanceField) -> Instance:
    claim = field.claim
    return Instance(
        placement=Placement(field.placement.start, field.placement.size),
        state=InstanceState(field.state),
        profile_id=field.profile_id,
        profile=field.profile,
        gpu_instance_id=field.gpu_instance_id,
        compute_instance_id=field.compute_instance_id,
        uuid=field.uuid,
        claim=ClaimRef(claim.namespace, claim.name, claim.uid) if claim else None,
        message=field.message,
        unhealthy=field.unhealthy,
    )
