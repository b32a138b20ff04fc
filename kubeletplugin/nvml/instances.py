"""GPU instances and compute instances, as they are now.

Instances are found by profile and id, never through MIG device handles: those exist only for
compute instances, so a GPU instance without one would be invisible.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pynvml

from dra.gpu.geometry import Geometry, Placement
from kubeletplugin.nvml.errors import (
    InstanceNotFoundError,
    NotSupportedError,
    NvmlError,
    ReadBackError,
)
from kubeletplugin.nvml.gpus import newest_form
from kubeletplugin.nvml.session import ComputeProfile, ProfileKey, Session, together

_SHARED_ENGINES = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
# The most instances of one profile that any GPU has: A30 reports too small a number.
_MOST_INSTANCES = 16
LOOKS = 3
"""Times that instances are looked for of which one was there and could not be read."""


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """nvmlGpuInstanceInfo_t."""

    id: int
    profile_id: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """nvmlComputeInstanceInfo_t with the UUID of its MIG device."""

    id: int
    uuid: str


@together
def list_gpu_instances(session: Session, gpu: str, geometry: Geometry) -> tuple[GpuInstance, ...]:
    """Every GPU instance on a GPU, whoever made it, by start.

    Raises:
        ReadBackError: one is listed again and again and cannot be read.
    """
    for _ in range(LOOKS):
        found, unread = _listed(session, gpu, geometry)
        if unread is None:
            return found
        # Destroyed by someone else since it was listed, as the next list shows; or NVML errs.
    raise ReadBackError("nvmlDeviceGetGpuInstances", gpu=gpu, detail=_unread("one", unread))


def _listed(
    session: Session, gpu: str, geometry: Geometry
) -> tuple[tuple[GpuInstance, ...], InstanceNotFoundError | None]:
    """GPU instances that can be read, and why one cannot."""
    device = session.device(gpu)
    found: dict[int, GpuInstance] = {}
    unread: InstanceNotFoundError | None = None
    for profile in geometry.profiles:
        buffer = (pynvml.c_nvmlGpuInstance_t * _MOST_INSTANCES)()
        count = ctypes.c_uint(_MOST_INSTANCES)
        session.call(
            pynvml.nvmlDeviceGetGpuInstances,
            device,
            profile.id,
            buffer,
            ctypes.byref(count),
            gpu=gpu,
        )
        for handle in buffer[: count.value]:
            try:
                instance = read_gpu_instance(session, handle, gpu=gpu)
            except InstanceNotFoundError as error:
                unread = error
            else:
                found[instance.id] = instance
    return tuple(sorted(found.values(), key=lambda i: (i.placement, i.id))), unread


def _unread(instance: str, error: InstanceNotFoundError | None) -> str:
    return f"{instance} is there and cannot be read: {error}"


@together
def list_compute_instances(session: Session, gpu: str, gi_id: int) -> tuple[ComputeInstance, ...]:
    """Every compute instance in a GPU instance.

    Raises:
        InstanceNotFoundError: there is no such GPU instance.
    """
    gi = session.call(pynvml.nvmlDeviceGetGpuInstanceById, session.device(gpu), gi_id, gpu=gpu)
    return tuple(
        read_compute_instance(session, handle, gpu=gpu)
        for handle in compute_handles(session, gi, gpu=gpu)
    )


@together
def find_gpu_instance(session: Session, gpu: str, gi_id: int) -> GpuInstance | None:
    """The GPU instance with this id, if it is there; ids are used again.

    Raises:
        ReadBackError: it is there again and again and cannot be read.
    """
    unread: InstanceNotFoundError | None = None
    for _ in range(LOOKS):
        try:
            handle = session.call(
                pynvml.nvmlDeviceGetGpuInstanceById, session.device(gpu), gi_id, gpu=gpu
            )
        except InstanceNotFoundError:
            return None
        try:
            return read_gpu_instance(session, handle, gpu=gpu)
        except InstanceNotFoundError as error:
            unread = error
    raise ReadBackError(
        "nvmlDeviceGetGpuInstanceById", gpu=gpu, detail=_unread(f"GPU instance {gi_id}", unread)
    )


@together
def find_compute_instance(
    session: Session, gpu: str, *, gi_id: int, ci_id: int
) -> ComputeInstance | None:
    """The compute instance with these ids, if it is there."""
    try:
        gi = session.call(pynvml.nvmlDeviceGetGpuInstanceById, session.device(gpu), gi_id, gpu=gpu)
        handle = session.call(pynvml.nvmlGpuInstanceGetComputeInstanceById, gi, ci_id, gpu=gpu)
        return read_compute_instance(session, handle, gpu=gpu)
    except InstanceNotFoundError:
        return None


def processes(session: Session, gpu: str, gi_id: int | None = None) -> tuple[int, ...]:
    """Ids of the compute processes in a GPU instance, or on the whole GPU."""
    running = session.call(
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3, session.device(gpu), gpu=gpu
    )
    return tuple(sorted({int(p.pid) for p in running if gi_id in {None, p.gpuInstanceId}}))


def read_gpu_instance(session: Session, handle: Any, *, gpu: str) -> GpuInstance:
    """Read a GPU instance from its handle."""
    info = session.call(pynvml.nvmlGpuInstanceGetInfo, handle, gpu=gpu)
    placement = Placement(info.placement.start, info.placement.size)
    return GpuInstance(info.id, info.profileId, placement)


def read_compute_instance(session: Session, handle: Any, *, gpu: str) -> ComputeInstance:
    """Read a compute instance from its handle."""
    # The info's device is the MIG device's handle: no enumeration by index is needed.
    info = session.call(pynvml.nvmlComputeInstanceGetInfo_v2, handle, gpu=gpu)
    return ComputeInstance(info.id, session.call(pynvml.nvmlDeviceGetUUID, info.device, gpu=gpu))


def compute_handles(session: Session, gi: Any, *, gpu: str) -> list[Any]:
    """The handles of all compute instances in the GPU instance of handle ``gi``."""
    handles: list[Any] = []
    for profile_id in _compute_profile_ids(session, gi, gpu=gpu):
        buffer = (pynvml.c_nvmlComputeInstance_t * _MOST_INSTANCES)()
        count = ctypes.c_uint(_MOST_INSTANCES)
        session.call(
            pynvml.nvmlGpuInstanceGetComputeInstances,
            gi,
            profile_id,
            buffer,
            ctypes.byref(count),
            gpu=gpu,
        )
        handles.extend(buffer[: count.value])
    return handles


def _compute_profile_ids(session: Session, gi: Any, *, gpu: str) -> tuple[int, ...]:
    """Ids of the compute-instance profiles of a GPU instance; one wrong answer is not kept."""
    profile = session.call(pynvml.nvmlGpuInstanceGetInfo, gi, gpu=gpu).profileId
    key = (session.generation, gpu, int(profile))
    found = session.compute_profiles.certain(key) or ask_compute_profiles(session, gi, key)
    return tuple(dict.fromkeys(p.id for p in found))


def ask_compute_profiles(session: Session, gi: Any, key: ProfileKey) -> tuple[ComputeProfile, ...]:
    """The compute-instance profiles of a GPU instance, as NVML tells them now."""
    found = tuple(
        ComputeProfile(enum, info.id, info.sliceCount, info.multiprocessorCount)
        for enum, info in compute_profiles(session, gi, gpu=key[1])
    )
    session.compute_profiles.take(key, found)
    return found


def compute_profiles(session: Session, gi: Any, *, gpu: str) -> Iterator[tuple[int, Any]]:
    """Compute-instance profiles of a GPU instance, with their enum."""
    for enum in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            yield (
                enum,
                newest_form(
                    session,
                    pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfoV,
                    gi,
                    enum,
                    _SHARED_ENGINES,
                    gpu=gpu,
                ),
            )
        except NotSupportedError:
            continue
        except NvmlError as error:
            # A driver that is older than this list of enums.
            if error.code != pynvml.NVML_ERROR_INVALID_ARGUMENT:
                raise
