"""Creation and destruction of instances: every success is read back before it counts."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

import pynvml

from dra.gpu.geometry import Placement, Profile
from kubeletplugin.nvml.errors import (
    InstanceNotFoundError,
    InsufficientResourcesError,
    InUseError,
    NotSupportedError,
    NvmlError,
    ReadBackError,
    UndeliverableError,
)
from kubeletplugin.nvml.instances import (
    LOOKS,
    GpuInstance,
    compute_handles,
    processes,
    read_gpu_instance,
)
from kubeletplugin.nvml.session import Session, together


@together
def create_gpu_instance(
    session: Session, gpu: str, *, profile: Profile, placement: Placement
) -> GpuInstance:
    """Make a GPU instance at ``placement`` and read it back.

    Raises:
        UndeliverableError: nothing was made; the driver does not support the profile.
        InsufficientResourcesError: nothing was made; the place or an engine is taken.
        NvmlError: nothing was made, or nothing that could be read back; look by placement.
        ReadBackError: it landed elsewhere and was destroyed again.
    """
    device = session.device(gpu)
    wanted = pynvml.c_nvmlGpuInstancePlacement_t(start=placement.start, size=placement.size)
    create = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement
    try:
        handle = session.call(create, device, profile.id, ctypes.byref(wanted), gpu=gpu)
    except NotSupportedError as error:
        if error.code != pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        detail = "the driver does not support a GPU instance of it"
        raise UndeliverableError(
            error.operation, error.code, gpu=gpu, profile=profile.name, detail=detail
        ) from error
    try:
        made = read_gpu_instance(session, handle, gpu=gpu)
    except InsufficientResourcesError as error:
        # As it is, it would say that nothing was made.
        detail = "what was just made could not be read back"
        raise NvmlError(error.operation, error.code, gpu=gpu, detail=detail) from error
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
def destroy_compute_instances(session: Session, gpu: str, gi_id: int) -> None:
    """Destroy the compute instances of a GPU instance; those that are gone already are fine.

    Raises:
        InUseError: processes hold one; ``pids`` names them.
        ReadBackError: NVML said success and one is still there.
    """
    unread: InstanceNotFoundError | None = None
    for _ in range(LOOKS):
        gi = _gpu_instance(session, gpu, gi_id)
        if gi is None:
            return
        try:
            left = _without_compute_instances(session, gi, gpu=gpu, gi_id=gi_id)
        except InstanceNotFoundError as error:
            unread = error  # gone meanwhile, as the next look shows; or NVML errs
            continue
        if left:
            detail = f"a compute instance of GPU instance {gi_id} is still there"
            raise ReadBackError("nvmlComputeInstanceDestroy", gpu=gpu, detail=detail)
        return
    detail = f"GPU instance {gi_id} is there and its compute instances cannot be read: {unread}"
    raise ReadBackError("nvmlGpuInstanceGetComputeInstances", gpu=gpu, detail=detail)


def _without_compute_instances(session: Session, gi: Any, *, gpu: str, gi_id: int) -> bool:
    """Destroy the compute instances; True if one is left."""
    handles = compute_handles(session, gi, gpu=gpu)
    for handle in handles:
        _destroy(session, pynvml.nvmlComputeInstanceDestroy, handle, gpu=gpu, gi_id=gi_id)
    return bool(handles) and bool(compute_handles(session, gi, gpu=gpu))


@together
def destroy_gpu_instance(session: Session, gpu: str, gi_id: int) -> None:
    """Destroy a GPU instance without compute instances; one that is gone already is fine.

    Raises:
        InUseError: something holds it; ``pids`` names the processes that NVML could name.
        ReadBackError: NVML said success and it is still there.
    """
    gi = _gpu_instance(session, gpu, gi_id)
    if gi is None:
        return
    _destroy(session, pynvml.nvmlGpuInstanceDestroy, gi, gpu=gpu, gi_id=gi_id)
    try:
        session.call(pynvml.nvmlDeviceGetGpuInstanceById, session.device(gpu), gi_id, gpu=gpu)
    except InstanceNotFoundError:
        return
    raise ReadBackError(
        "nvmlGpuInstanceDestroy", gpu=gpu, detail=f"GPU instance {gi_id} is still there"
    )


def _gpu_instance(session: Session, gpu: str, gi_id: int) -> Any:
    """The handle of a GPU instance; None where NVML says twice that it is gone.

    What is taken for gone is forgotten, and would stay for ever if it were there.
    """
    device = session.device(gpu)
    for _ in range(2):
        with suppress(InstanceNotFoundError):
            return session.call(pynvml.nvmlDeviceGetGpuInstanceById, device, gi_id, gpu=gpu)
    return None


def _destroy(session: Session, function: Any, handle: Any, *, gpu: str, gi_id: int) -> None:
    try:
        session.call(function, handle, gpu=gpu)
    except InstanceNotFoundError:
        return
    except InUseError as error:
        raise InUseError(
            error.operation,
            error.code,
            gpu=gpu,
            detail=f"GPU instance {gi_id}",
            pids=_pids(session, gpu, gi_id),
            nameless=not session.names_processes,
        ) from error


def _pids(session: Session, gpu: str, gi_id: int) -> tuple[int, ...]:
    """Processes in a GPU instance, as far as NVML tells: none where it refuses."""
    try:
        return processes(session, gpu, gi_id)
    except NvmlError:
        return ()
