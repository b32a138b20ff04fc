"""GPU instances: profiles, placements, life cycle.

Profiles are asked for by enum and used by id. Profile information in the versioned form needs MIG
mode on, the old form does not; placements are the same list whatever is taken.
"""

from typing import Any

import pynvml

from sim.nvml.cabi import (
    RefusedError,
    Return,
    integer,
    pointer_field,
    put_handle,
    put_handles,
    put_uint,
    structure,
    versioned,
)
from sim.nvml.gpus import hardware
from sim.nvml.library import exported
from sim.nvml.products import GpuInstanceProfile
from sim.nvml.session import Session

_PROFILE_ENUM_COUNT = 18


def _by_enum(session: Session, device: Any, enum: Any) -> GpuInstanceProfile:
    _, product = session.device(device)
    # A driver of later products knows more profiles than the bindings do.
    count = max(_PROFILE_ENUM_COUNT, *(p.enum + 1 for p in product.gi_profiles), 0)
    if not 0 <= integer(enum) < count:
        raise RefusedError(Return.INVALID_ARGUMENT)
    for profile in product.gi_profiles:
        if profile.enum == integer(enum):
            return profile
    raise RefusedError(Return.NOT_SUPPORTED)


def _fill(info: Any, profile: GpuInstanceProfile) -> None:
    info.id = profile.id
    info.isP2pSupported = int(profile.p2p)
    info.sliceCount = profile.slice_count
    info.instanceCount = profile.instance_count
    info.multiprocessorCount = profile.multiprocessors
    info.copyEngineCount = profile.copy_engines
    info.decoderCount = profile.decoders
    info.encoderCount = profile.encoders
    info.jpegCount = profile.jpeg
    info.ofaCount = profile.ofa
    info.memorySizeMB = profile.memory_mib


@exported("nvmlDeviceGetGpuInstanceProfileInfo")
def profile_info(session: Session, device: Any, enum: Any, info: Any) -> None:
    """Profile by enum, first form."""
    profile = _by_enum(session, device, enum)
    _fill(structure(info, pynvml.c_nvmlGpuInstanceProfileInfo_t), profile)


@exported("nvmlDeviceGetGpuInstanceProfileInfoV")
def profile_info_v(session: Session, device: Any, enum: Any, info: Any) -> None:
    """Profile by enum, with its name; in no need of MIG mode (580.159 on H100)."""
    profile = _by_enum(session, device, enum)
    kind, version = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t, pynvml.nvmlGpuInstanceProfileInfo_v2
    found = versioned(info, kind, version)
    _fill(found, profile)
    found.name = f"MIG {profile.name}"


@exported("nvmlDeviceGetGpuInstancePossiblePlacements_v2")
def possible_placements(
    session: Session, device: Any, profile_id: Any, placements: Any, count: Any
) -> None:
    """Placements of a profile; without a buffer, or with too small a one, their number."""
    profile = hardware.profile_of(session.device(device)[1], integer(profile_id))
    room = structure(count, pynvml.c_uint)
    given, room.value = room.value, len(profile.starts)
    if placements is None:
        return
    if given < len(profile.starts):
        raise RefusedError(Return.INSUFFICIENT_SIZE)
    kind = pynvml.c_nvmlGpuInstancePlacement_t * len(profile.starts)
    for slot, start in zip(structure(placements, kind), profile.starts, strict=True):
        slot.start, slot.size = start, profile.size


@exported("nvmlDeviceGetGpuInstanceRemainingCapacity")
def remaining_capacity(session: Session, device: Any, profile_id: Any, count: Any) -> None:
    """Number of instances of a profile that still fit."""
    gpu, product = session.device(device)
    profile = hardware.profile_of(product, integer(profile_id))
    put_uint(count, hardware.remaining_capacity(gpu, product, profile))


def _create(
    session: Session, device: Any, profile_id: Any, *, placement: Any, instance: Any
) -> None:
    target = session.target(device, "device")
    with session.change() as state:
        gpu = session.gpu(state, target)
        product = session.store.product(gpu)
        profile = hardware.profile_of(product, integer(profile_id))
        if placement is not None and placement.size != profile.size:
            raise RefusedError(Return.INVALID_ARGUMENT)
        start = None if placement is None else placement.start
        kept = hardware.refused_by_gsp(gpu, product, profile_id=profile.id, start=start)
        created = (
            None
            if kept
            else hardware.create_gpu_instance(
                state, gpu, product, profile_id=profile.id, start=start
            )
        )
    if created is None:
        raise RefusedError(Return.INSUFFICIENT_RESOURCES)
    put_handle(instance, session.handle("gpu-instance", gpu, created.key))


@exported("nvmlDeviceCreateGpuInstance", mutation=True)
def create(session: Session, device: Any, profile_id: Any, instance: Any) -> None:
    """Creates where the driver likes."""
    _create(session, device, profile_id, placement=None, instance=instance)


@exported("nvmlDeviceCreateGpuInstanceWithPlacement", mutation=True)
def create_with_placement(
    session: Session, device: Any, profile_id: Any, placement: Any, instance: Any
) -> None:
    """Creates at a placement."""
    wanted = structure(placement, pynvml.c_nvmlGpuInstancePlacement_t)
    _create(session, device, profile_id, placement=wanted, instance=instance)


@exported("nvmlGpuInstanceDestroy", mutation=True)
def destroy(session: Session, handle: Any) -> None:
    """Destroys; IN_USE while it has compute instances or processes, or lingers.

    UNKNOWN where GSP has not followed: the instance is gone then, its place is not.
    """
    session.target(handle, "gpu-instance")
    in_part = False
    with session.change() as state:
        gpu, instance = session.gpu_instance(state, handle)
        lingers = instance.lingers > 0 and not instance.compute_instances
        if lingers:
            instance.lingers -= 1
        else:
            hardware.destroy_gpu_instance(gpu, instance)
            in_part = hardware.destroyed_in_part(state, gpu, instance)
    if lingers:
        raise RefusedError(Return.IN_USE)
    if in_part:
        raise RefusedError(Return.UNKNOWN)


@exported("nvmlDeviceGetGpuInstances")
def instances(session: Session, device: Any, profile_id: Any, handles: Any, count: Any) -> None:
    """Live instances of one profile; the array must have room for the profile's instanceCount."""
    gpu, product = session.device(device)
    profile = hardware.profile_of(product, integer(profile_id))
    live = [g for g in gpu.gpu_instances if g.profile == profile.id]
    found = [session.handle("gpu-instance", gpu, g.key) for g in live]
    put_handles(handles, found, room=profile.instance_count)
    put_uint(count, len(found))


@exported("nvmlDeviceGetGpuInstanceById")
def instance_by_id(session: Session, device: Any, gpu_instance_id: Any, handle: Any) -> None:
    """Live instance by id."""
    gpu, _ = session.device(device)
    hardware.require_mig(gpu)
    instance = gpu.instance(integer(gpu_instance_id))
    if instance is None:
        raise RefusedError(Return.NOT_FOUND)
    put_handle(handle, session.handle("gpu-instance", gpu, instance.key))


@exported("nvmlGpuInstanceGetInfo")
def info(session: Session, handle: Any, found: Any) -> None:
    """Parent, id, profile id and placement of a live instance."""
    gpu, instance = session.gpu_instance(session.store.read(), handle)
    filled = structure(found, pynvml.c_nvmlGpuInstanceInfo_t)
    filled.device = pointer_field(session.handle("device", gpu), pynvml.c_nvmlDevice_t)
    filled.id = instance.id
    filled.profileId = instance.profile
    filled.placement.start = instance.start
    filled.placement.size = instance.size
