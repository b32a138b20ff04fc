"""GPUs of a node as the fields of a MigNode, and back: geometries, instances, layouts, shares."""

from __future__ import annotations

import sys
from dataclasses import fields
from functools import lru_cache
from typing import Any

from api import mignode as wire
from dra.gpu.geometry import Engines, Geometry, Placement, Profile
from dra.gpu.inventory import (
    ClaimRef,
    Gpu,
    GpuFacts,
    GpuHealth,
    GpuLayout,
    IdleInstance,
    Instance,
    InstanceState,
)
from dra.gpu.names import DeviceNameError, GpuDevice, parse_device
from dra.gpu.shares import UNENFORCED, ShareOffer

MOST_PLACEMENTS = 64
"""Placements of a geometry, of all profiles together; products have up to 30."""

_FACTS = [f.name for f in fields(GpuFacts) if f.name in wire.GpuField.__struct_fields__]


@lru_cache(maxsize=16)
def encode_geometry(name: str, geometry: Geometry) -> wire.GeometryField:
    """One object for all MigNodes: it is encoded at each change of a node, and stays the same.

    A profile of whose name no class can be made is left out: nobody could ask for it.
    """
    named = (p for p in geometry.profiles if wire.PROFILE_NAME.match(p.name))
    profiles = [_profile_out(p) for p in named]
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


@lru_cache(maxsize=64)
def encode_gpu(gpu: Gpu, geometry: str) -> wire.GpuField:
    """A GPU, whose geometry has that name in this MigNode; of most GPUs nothing has changed."""
    return wire.GpuField(
        name=gpu.name,
        uuid=gpu.uuid,
        mig_mode=wire.MigModeField(enabled=gpu.mig_enabled, pending=gpu.mig_pending),
        pcie_root=gpu.pcie_root,
        multiprocessors=gpu.multiprocessors,
        geometry=geometry,
        instances=[_instance_out(i) for i in gpu.instances],
        reason=gpu.reason,
        message=wire.clipped(gpu.unavailable),
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
        **_facts(gpu),
        health=_health_out(gpu.health),
    )


def _facts(gpu: Gpu | wire.GpuField) -> dict[str, Any]:
    return {name: getattr(gpu, name) for name in _FACTS}


def _layout_out(layout: GpuLayout | None) -> wire.LayoutField | None:
    if layout is None:
        return None
    ready = [wire.PlacementField(start=p.start, size=p.size) for p in layout.ready]
    return wire.LayoutField(name=layout.name, ready=ready)


def _layout_in(field: wire.LayoutField | None) -> GpuLayout | None:
    if field is None:
        return None
    return GpuLayout(field.name, tuple(_placement_in(p.start, p.size) for p in field.ready))


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
        message=wire.clipped(instance.message),
        unhealthy=wire.clipped(instance.unhealthy),
    )


def decode_geometry(field: wire.GeometryField) -> Geometry:
    """The geometry in a field of a MigNode.

    Raises:
        ValueError: its placements end behind the last memory slice, or are too many.
    """
    if sum(len(p.starts) for p in field.profiles) > MOST_PLACEMENTS:
        raise ValueError(
            f"MigNode: geometry {field.name!r} has more than {MOST_PLACEMENTS} placements"
        )
    return Geometry(tuple(_profile_in(p) for p in field.profiles), field.memory_slices)


def _profile_in(field: wire.ProfileField) -> Profile:
    placements = tuple(_placement_in(start, field.memory_slices) for start in field.starts)
    return Profile(
        id=field.id,
        name=field.name,
        compute_slices=field.compute_slices,
        memory_mib=field.memory_mib,
        multiprocessors=field.multiprocessors,
        placements=placements,
        engines=Engines(*(getattr(field, name) for name in Engines._fields)),
    )


def decode_gpu(field: wire.GpuField, geometries: dict[str, Geometry]) -> Gpu:
    """The GPU in a field of a MigNode that has these ``geometries`` by name.

    Raises:
        DeviceNameError: its name is not ``gpu-<minor>``.
        ValueError: an instance is in a state that this version does not know.
    """
    device = parse_device(field.name)
    if not isinstance(device, GpuDevice):
        raise DeviceNameError(f"MigNode: GPU name {field.name!r} names a slice, not a GPU")
    return Gpu(
        minor=device.minor,
        uuid=field.uuid,
        pcie_root=field.pcie_root,
        multiprocessors=field.multiprocessors,
        mig_enabled=field.mig_mode.enabled,
        mig_pending=field.mig_mode.pending,
        geometry=geometries.get(field.geometry),
        instances=tuple(_instance_in(i) for i in field.instances),
        unavailable=field.message,
        reason=field.reason,
        idle=tuple(
            IdleInstance(
                _placement_in(i.placement.start, i.placement.size), i.profile_id, i.namespace
            )
            for i in field.idle
        ),
        layout=_layout_in(field.layout),
        sharing=_sharing_in(field.sharing),
        slice_sharing=_sharing_in(field.slice_sharing),
        **_facts(field),
        health=_health_in(field.health),
    )


def _health_out(health: GpuHealth | None) -> wire.HealthField | None:
    if health is None:
        return None
    return wire.HealthField(
        recovery_action=health.recovery,
        fabric=health.fabric,
        compute_mode=health.compute_mode,
        notes=[*health.notes],
        open_in=[*health.open_in],
    )


def _health_in(field: wire.HealthField | None) -> GpuHealth | None:
    if field is None:
        return None
    words = (field.recovery_action, field.fabric, field.compute_mode)
    return _health(*words, notes=tuple(field.notes), open_in=tuple(field.open_in))


@lru_cache(maxsize=64)
def _health(
    recovery: str, fabric: str, mode: str, *, notes: tuple[str, ...], open_in: tuple[str, ...]
) -> GpuHealth:
    """One value for all GPUs, most of which are well."""
    return GpuHealth(recovery, fabric, mode, notes, open_in)


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
        placement=_placement_in(field.placement.start, field.placement.size),
        state=InstanceState(field.state),
        profile_id=field.profile_id,
        profile=sys.intern(field.profile),
        gpu_instance_id=field.gpu_instance_id,
        compute_instance_id=field.compute_instance_id,
        uuid=field.uuid,
        claim=_claim_in(claim) if claim else None,
        message=field.message,
        unhealthy=field.unhealthy,
    )


@lru_cache(maxsize=256)
def _placement_in(start: int, size: int) -> Placement:
    """One value for all GPUs, which have few placements between them.

    Raises:
        ValueError: it ends behind the last memory slice that a GPU may have.
    """
    if start + size > wire.MEMORY_SLICES:
        raise ValueError(
            f"MigNode: a placement of {size} memory slices from {start} on ends behind "
            f"{wire.MEMORY_SLICES}, the most that a GPU has"
        )
    return Placement(start, size)


def _claim_in(field: wire.ClaimField) -> ClaimRef:
    """The claim, its names kept once, whatever else has them: it is known by itself too."""
    return ClaimRef(sys.intern(field.namespace), sys.intern(field.name), sys.intern(field.uid))
