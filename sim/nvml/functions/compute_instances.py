"""Compute instances: profiles and life cycle."""

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
from sim.nvml.products import ComputeInstanceProfile, GpuInstanceProfile
from sim.nvml.session import Session
from sim.nvml.state import Gpu, GpuInstance

_PROFILE_ENUM_COUNT = 9
_SHARED_ENGINES = 0


def _parent(session: Session, handle: Any) -> tuple[Gpu, GpuInstance, GpuInstanceProfile]:
    gpu, instance = session.gpu_instance(session.store.read(), handle)
    return gpu, instance, hardware.profile_of(session.store.product(gpu), instance.profile)


def _by_enum(parent: GpuInstanceProfile, enum: Any, engines: Any) -> ComputeInstanceProfile:
    known = 0 <= integer(enum) < _PROFILE_ENUM_COUNT
    if not known or integer(engines) != _SHARED_ENGINES:
        raise RefusedError(Return.INVALID_ARGUMENT)
    for profile in parent.ci_profiles:
        if profile.enum == integer(enum):
            return profile
    raise RefusedError(Return.NOT_SUPPORTED)


def _fill(info: Any, parent: GpuInstanceProfile, profile: ComputeInstanceProfile) -> None:
    info.id = profile.id
    info.sliceCount = profile.slice_count
    info.instanceCount = profile.instance_count
    info.multiprocessorCount = profile.multiprocessors
    info.sharedCopyEngineCount = parent.copy_engines
    info.sharedDecoderCount = parent.decoders
    info.sharedEncoderCount = parent.encoders
    info.sharedJpegCount = parent.jpeg
    info.sharedOfaCount = parent.ofa


@exported("nvmlGpuInstanceGetComputeInstanceProfileInfo")
def profile_info(session: Session, handle: Any, enum: Any, engines: Any, info: Any) -> None:
    """Profile by enum, first form."""
    parent = _parent(session, handle)[2]
    profile = _by_enum(parent, enum, engines)
    _fill(structure(info, pynvml.c_nvmlComputeInstanceProfileInfo_t), parent, profile)


@exported("nvmlGpuInstanceGetComputeInstanceProfileInfoV")
def profile_info_v(session: Session, handle: Any, enum: Any, engines: Any, info: Any) -> None:
    """Profile by enum, with its name."""
    parent = _parent(session, handle)[2]
    profile = _by_enum(parent, enum, engines)
    kind = pynvml.c_nvmlComputeInstanceProfileInfo_v2_t
    found = versioned(info, kind, pynvml.nvmlComputeInstanceProfileInfo_v2)
    _fill(found, parent, profile)
    found.name = f"MIG {profile.name}"


@exported("nvmlGpuInstanceCreateComputeInstance", mutation=True)
def create(session: Session, handle: Any, profile_id: Any, compute_instance: Any) -> None:
    """Creates, and with it the MIG device."""
    session.target(handle, "gpu-instance")
    with session.change() as state:
        gpu, instance = session.gpu_instance(state, handle)
        created = hardware.create_compute_instance(
            state,
            gpu,
            session.store.product(gpu),
            instance=instance,
            profile_id=integer(profile_id),
        )
    put_handle(compute_instance, session.handle("compute-instance", gpu, created.key))


@exported("nvmlComputeInstanceDestroy", mutation=True)
def destroy(session: Session, handle: Any) -> None:
    """Destroys; IN_USE while a process runs on it, or a monitor has it open."""
    target = session.target(handle, "compute-instance")
    with session.change() as state:
        gpu, instance, compute = session.compute_instance(state, target)
        refused = hardware.is_subscribed(compute)
        if not refused:
            hardware.destroy_compute_instance(gpu, instance, compute)
            instance.lingers = state.variants.instance_lingers
    if refused:
        raise RefusedError(Return.IN_USE)


@exported("nvmlGpuInstanceGetComputeInstances")
def instances(session: Session, handle: Any, profile_id: Any, handles: Any, count: Any) -> None:
    """Live compute instances of one profile; the array needs room for its instanceCount."""
    gpu, instance, parent = _parent(session, handle)
    profile = hardware.compute_profile_of(parent, integer(profile_id))
    live = [c for c in instance.compute_instances if c.profile == profile.id]
    found = [session.handle("compute-instance", gpu, c.key) for c in live]
    put_handles(handles, found, room=profile.instance_count)
    put_uint(count, len(found))


@exported("nvmlGpuInstanceGetComputeInstanceById")
def instance_by_id(session: Session, handle: Any, identifier: Any, found: Any) -> None:
    """Live compute instance by id."""
    gpu, instance, _ = _parent(session, handle)
    for compute in instance.compute_instances:
        if compute.id == integer(identifier):
            put_handle(found, session.handle("compute-instance", gpu, compute.key))
            return
    raise RefusedError(Return.NOT_FOUND)


@exported("nvmlComputeInstanceGetInfo_v2")
def info(session: Session, handle: Any, found: Any) -> None:
    """The MIG device, the GPU instance, id, profile id and placement of a compute instance."""
    target = session.target(handle, "compute-instance")
    gpu, instance, compute = session.compute_instance(session.store.read(), target)
    filled = structure(found, pynvml.c_nvmlComputeInstanceInfo_t)
    device = session.handle("mig-device", gpu, compute.key)
    parent = session.handle("gpu-instance", gpu, instance.key)
    filled.device = pointer_field(device, pynvml.c_nvmlDevice_t)
    filled.gpuInstance = pointer_field(parent, pynvml.c_nvmlGpuInstance_t)
    filled.id = compute.id
    filled.profileId = compute.profile
    filled.placement.start = compute.start
    filled.placement.size = compute.size
