"""Making and destroying instances: every success is read back before it counts."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from dra.geometry import Placement, Profile
from kubeletplugin.nvml.errors import (
    InUseError,
    NotFoundError,
    NotSupportedError,
    NvmlError,
    ReadBackError,
)
from kubeletplugin.nvml.instances import (
    ComputeInstance,
    GpuInstance,
    compute_handles,
    compute_profiles,
    find_compute_instance,
    processes,
    read_compute_instance,
    read_gpu_instance,
)
from kubeletplugin.nvml.session import Session, together

# 1_SLICE_REV1 and 7_SLICE_NVL are reported on GPUs that then refuse to make them.
_REFUSED_ENUMS = frozenset({7, 8})
# Two 3g.20gb of one A100 show 20224 and 20096 MiB where the profile says 19968.
_LEAST_MEMORY_SHARE = 0.9


@together
def create_gpu_instance(
    session: Session, gpu: str, *, profile: Profile, placement: Placement
) -> GpuInstance:
    """Make a GPU instance at ``placement`` and read it back.

    Raises:
        NvmlError: nothing was made, or nothing that could be read back; look by placement.
        ReadBackError: it landed elsewhere and was destroyed again.
    """
    wanted = pynvml.c_nvmlGpuInstancePlacement_t(start=placement.start, size=placement.size)
    handle = session.call(
        pynvml.nvmlDeviceCreateGpuInstanceWithPlacement,
        session.device(gpu),
        profile.id,
        ctypes.byref(wanted),
        gpu=gpu,
    )
    made = read_gpu_instance(session, handle, gpu=gpu)
    if (made.profile_id, made.placement) != (profile.id, placement):
        session.call(pynvml.nvmlGpuInstanceDestroy, handle, gpu=gpu)
        raise ReadBackError(
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            gpu=gpu,
            detail=f"asked for profile {profile.id} at {placement}, "
            f"got profile {made.profile_id} at {made.placement}",
        )
    return made


@together
def create_compute_instance(
    session: Session, gpu: str, *, gi_id: int, profile: Profile
) -> ComputeInstance:
    """Make the compute instance that takes a whole GPU instance, and check what came of it.

    Raises:
        NotSupportedError: the driver offers no compute instance of that size.
        ReadBackError: the MIG device has fewer multiprocessors or less memory than its profile.
    """
    gi = session.call(pynvml.nvmlDeviceGetGpuInstanceById, session.device(gpu), gi_id, gpu=gpu)
    wanted = _whole_compute_profile(session, gi, profile, gpu=gpu)
    handle = session.call(pynvml.nvmlGpuInstanceCreateComputeInstance, gi, wanted.id, gpu=gpu)
    info = session.call(pynvml.nvmlComputeInstanceGetInfo_v2, handle, gpu=gpu)
    made = read_compute_instance(session, handle, gpu=gpu)
    attributes = session.call(pynvml.nvmlDeviceGetAttributes_v2, info.device, gpu=gpu)
    shown = (attributes.multiprocessorCount, attributes.memorySizeMB)
    least = profile.memory_mib * _LEAST_MEMORY_SHARE
    if shown[0] != wanted.multiprocessorCount or shown[1] < least:
        raise ReadBackError(
            "nvmlGpuInstanceCreateComputeInstance",
            gpu=gpu,
            detail=f"{made.uuid} of profile {profile.name} has {shown[0]} multiprocessors and "
            f"{shown[1]} MiB; expected {wanted.multiprocessorCount} and {profile.memory_mib} MiB",
        )
    if find_compute_instance(session, gpu, gi_id=gi_id, ci_id=made.id) != made:
        raise ReadBackError(
            "nvmlGpuInstanceCreateComputeInstance", gpu=gpu, detail=f"{made.uuid} is not there"
        )
    return made


@together
def destroy_compute_instances(session: Session, gpu: str, gi_id: int) -> None:
    """Destroy the compute instances of a GPU instance; those that are gone already are fine.

    Raises:
        InUseError: processes hold one; ``pids`` names them.
        ReadBackError: NVML said success and one is still there.
    """
    device = session.device(gpu)
    try:
        gi = session.call(pynvml.nvmlDeviceGetGpuInstanceById, device, gi_id, gpu=gpu)
        handles = compute_handles(session, gi, gpu=gpu)
        for handle in handles:
            _destroy(session, pynvml.nvmlComputeInstanceDestroy, handle, gpu=gpu, gi_id=gi_id)
        left = compute_handles(session, gi, gpu=gpu) if handles else []
    except NotFoundError:
        return
    if left:
        raise ReadBackError(
            "nvmlComputeInstanceDestroy",
            gpu=gpu,
            detail=f"a compute instance of GPU instance {gi_id} is still there",
        )


@together
def destroy_gpu_instance(session: Session, gpu: str, gi_id: int) -> None:
    """Destroy a GPU instance without compute instances; one that is gone already is fine.

    Raises:
        InUseError: something holds it; ``pids`` names the processes that NVML could name.
        ReadBackError: NVML said success and it is still there.
    """
    device = session.device(gpu)
    try:
        gi = session.call(pynvml.nvmlDeviceGetGpuInstanceById, device, gi_id, gpu=gpu)
        _destroy(session, pynvml.nvmlGpuInstanceDestroy, gi, gpu=gpu, gi_id=gi_id)
        session.call(pynvml.nvmlDeviceGetGpuInstanceById, device, gi_id, gpu=gpu)
    except NotFoundError:
        return
    raise ReadBackError(
        "nvmlGpuInstanceDestroy", gpu=gpu, detail=f"GPU instance {gi_id} is still there"
    )


def _destroy(session: Session, function: Any, handle: Any, *, gpu: str, gi_id: int) -> None:
    try:
        session.call(function, handle, gpu=gpu)
    except NotFoundError:
        return
    except InUseError as error:
        raise InUseError(
            error.operation,
            error.code,
            gpu=gpu,
            detail=f"GPU instance {gi_id}",
            pids=_pids(session, gpu, gi_id),
        ) from error


def _pids(session: Session, gpu: str, gi_id: int) -> tuple[int, ...]:
    """Processes in a GPU instance, as far as NVML tells: none where it refuses."""
    try:
        return processes(session, gpu, gi_id)
    except NvmlError:
        return ()


def _whole_compute_profile(session: Session, gi: Any, profile: Profile, *, gpu: str) -> Any:
    for enum, info in compute_profiles(session, gi, gpu=gpu):
        if enum not in _REFUSED_ENUMS and info.sliceCount == profile.compute_slices:
            return info
    raise NotSupportedError(
        "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        gpu=gpu,
        detail=f"the driver offers no compute instance of {profile.compute_slices} slices in "
        f"profile {profile.name}",
    )
