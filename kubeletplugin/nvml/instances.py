"""GPU instances and compute instances: found, made, destroyed, and read back after each change.

Instances are found by profile and id, never through MIG device handles: those exist only for
compute instances, so that a GPU instance without a compute instance would be invisible.

Several compute-instance profiles of a GPU instance may have its number of slices. On Hopper and
Blackwell the one with all multiprocessors of a double-memory slice is 1_SLICE_REV1
(dra-driver-nvidia-gpu#1454: 30 multiprocessors, and 18 with 1_SLICE); on A100 1_SLICE_REV1 is
reported and refused (go-nvlib#102), and so is 7_SLICE_NVL (dra-driver-nvidia-gpu#1480). So no
profile is chosen or skipped by its number.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

from dra.gpu.geometry import Geometry, Placement, Profile
from kubeletplugin.nvml.errors import (
    InstanceNotFoundError,
    InsufficientResourcesError,
    InUseError,
    NotSupportedError,
    NvmlError,
    ReadBackError,
    UndeliverableError,
)
from kubeletplugin.nvml.gpus import newest_form
from kubeletplugin.nvml.session import ComputeProfile, Session, together

T = TypeVar("T")
_SHARED_ENGINES = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
# The most instances of one profile that any GPU has: A30 reports too small a number.
_MOST_INSTANCES = 16
_NO_INSTANCE = 0xFFFFFFFF
_LOOKS = 3
"""Most looks in a row, each of which found an instance that could not be read."""
_UNREAD = "is there and cannot be read"
# Two 3g.20gb of one A100 show 20224 and 20096 MiB where the profile says 19968.
_LEAST_MEMORY_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance (nvmlGpuInstanceInfo_t)."""

    id: int
    profile_id: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance (nvmlComputeInstanceInfo_t); ``uuid``: of its MIG device."""

    id: int
    uuid: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """A new compute instance; all fields but ``id`` are attributes of its MIG device."""

    id: int
    uuid: str
    multiprocessors: int
    memory_mib: int


@together
def list_gpu_instances(session: Session, gpu: str, geometry: Geometry) -> tuple[GpuInstance, ...]:
    """All GPU instances on a GPU, whoever made them, ordered by placement.

    Raises:
        ReadBackError: an instance is listed again and again and cannot be read.
    """

    def look() -> tuple[GpuInstance, ...]:
        device = session.device(gpu)
        handles = (
            handle
            for profile in geometry.profiles
            for handle in gpu_instance_handles(session, device, profile.id, gpu=gpu)
        )
        found = {i.id: i for i in (read_gpu_instance(session, h, gpu=gpu) for h in handles)}
        return tuple(sorted(found.values(), key=lambda i: (i.placement, i.id)))

    return _read_again(look, "nvmlDeviceGetGpuInstances", f"one {_UNREAD}", gpu=gpu)


@together
def find_gpu_instance(session: Session, gpu: str, gi_id: int) -> GpuInstance | None:
    """The GPU instance that has this id now, None if there is none; NVML uses ids again.

    Raises:
        ReadBackError: the instance is there in each look and cannot be read.
    """
    by_id = pynvml.nvmlDeviceGetGpuInstanceById

    def look() -> GpuInstance | None:
        try:
            handle = session.call(by_id, session.device(gpu), gi_id, gpu=gpu)
        except InstanceNotFoundError:
            return None
        return read_gpu_instance(session, handle, gpu=gpu)

    return _read_again(look, by_id.__name__, f"GPU instance {gi_id} {_UNREAD}", gpu=gpu)


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
def processes(session: Session, gpu: str, gi_id: int | None = None) -> tuple[int, ...]:
    """Ids of the processes in a GPU instance, or on the whole GPU.

    A process of which NVML does not tell the instance may be in any.
    """
    device, found = session.device(gpu), set[int]()
    for ask in (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    ):
        for each in session.call(ask, device, gpu=gpu):
            if gi_id is None or each.gpuInstanceId in {gi_id, None, _NO_INSTANCE}:
                found.add(int(each.pid))
    return tuple(sorted(found))


@together
def create_gpu_instance(
    session: Session, gpu: str, *, profile: Profile, placement: Placement
) -> GpuInstance:
    """Make a GPU instance at ``placement`` and read it back.

    Raises:
        UndeliverableError: nothing was made; the driver does not support the profile.
        InsufficientResourcesError: nothing was made; the placement or an engine is taken.
        ReadBackError: the new instance had another placement or profile and was destroyed.
        NvmlError: other errors; an instance may have been made that could not be read back, which
            the caller has to look for at ``placement``.
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
        # An InsufficientResourcesError would tell the caller that nothing was made.
        detail = "what was just made could not be read back"
        raise NvmlError(error.operation, error.code, gpu=gpu, detail=detail) from error
    if (made.profile_id, made.placement) != (profile.id, placement):
        session.call(pynvml.nvmlGpuInstanceDestroy, handle, gpu=gpu)
        raise ReadBackError(
            create.__name__,
            gpu=gpu,
            detail=f"asked for profile {profile.id} at {placement}, "
            f"got profile {made.profile_id} at {made.placement}",
        )
    return made


@together
def create_compute_instance(
    session: Session, gpu: str, *, gi_id: int, profile: Profile
) -> Delivered:
    """Make a compute instance that takes all of an empty GPU instance, and check the result.

    Raises:
        UndeliverableError: the driver makes no compute instance with what the profile advertises;
            none is left.
        NotSupportedError: a call is not supported, which says nothing of the profile.
        ReadBackError: NVML said success, and the compute instance is not there.
    """
    gi = session.call(pynvml.nvmlDeviceGetGpuInstanceById, session.device(gpu), gi_id, gpu=gpu)
    create = pynvml.nvmlGpuInstanceCreateComputeInstance
    choices, asked = _whole_compute_profiles(session, gi, profile, gpu=gpu)
    refused: list[str] = []
    for choice in choices:
        if choice.multiprocessors < profile.multiprocessors:
            break
        try:
            handle = session.call(create, gi, choice.id, gpu=gpu)
        except (NotSupportedError, InsufficientResourcesError) as error:
            if error.code == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            session.compute_profiles.pop((gpu, profile.id), None)
            refused.append(f"{choice.multiprocessors} multiprocessors (id {choice.id}): {error}")
            continue
        made = _delivered(session, handle, profile, gpu=gpu)
        try:
            by_id = pynvml.nvmlGpuInstanceGetComputeInstanceById
            again = session.call(by_id, gi, made.id, gpu=gpu)
            found = read_compute_instance(session, again, gpu=gpu)
        except InstanceNotFoundError:
            found = None
        if found != ComputeInstance(made.id, made.uuid):
            raise ReadBackError(create.__name__, gpu=gpu, detail=f"{made.uuid} is not there")
        if not refused:
            session.compute_profiles[gpu, profile.id] = asked
        return made
    raise _undeliverable(choices, refused, profile, gpu=gpu)


@together
def destroy_compute_instances(session: Session, gpu: str, gi_id: int) -> None:
    """Destroy all compute instances of a GPU instance; it is no error if they are gone already.

    Raises:
        InUseError: processes hold a compute instance; the error's ``pids`` are their ids.
        ReadBackError: NVML said success, and a compute instance is still there.
    """

    def destroy() -> None:
        gi = _gpu_instance(session, gpu, gi_id)
        handles = [] if gi is None else compute_handles(session, gi, gpu=gpu)
        for handle in handles:
            _destroy(session, pynvml.nvmlComputeInstanceDestroy, handle, gpu=gpu, gi_id=gi_id)
        if handles and compute_handles(session, gi, gpu=gpu):
            detail = f"a compute instance of GPU instance {gi_id} is still there"
            raise ReadBackError("nvmlComputeInstanceDestroy", gpu=gpu, detail=detail)

    what = f"GPU instance {gi_id} is there and its compute instances cannot be read"
    _read_again(destroy, "nvmlGpuInstanceGetComputeInstances", what, gpu=gpu)


@together
def destroy_gpu_instance(session: Session, gpu: str, gi_id: int) -> None:
    """Destroy a GPU instance that has no compute instances; it is no error if it is gone already.

    Raises:
        InUseError: the instance is in use; the error's ``pids`` are the processes that NVML names.
        ReadBackError: NVML said success, and the instance is still there.
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


def gpu_instance_handles(session: Session, device: Any, profile_id: int, *, gpu: str) -> list[Any]:
    """The handles of all GPU instances of one profile."""
    buffer = (pynvml.c_nvmlGpuInstance_t * _MOST_INSTANCES)()
    count = ctypes.c_uint(_MOST_INSTANCES)
    ask = pynvml.nvmlDeviceGetGpuInstances
    session.call(ask, device, profile_id, buffer, ctypes.byref(count), gpu=gpu)
    return list(buffer[: count.value])


def compute_handles(session: Session, gi: Any, *, gpu: str) -> list[Any]:
    """The handles of all compute instances in the GPU instance of handle ``gi``."""
    profile = session.call(pynvml.nvmlGpuInstanceGetInfo, gi, gpu=gpu).profileId
    known = session.compute_profiles.get((gpu, int(profile)))
    profiles = known or _ask_compute_profiles(session, gi, gpu=gpu)
    handles: list[Any] = []
    for profile_id in dict.fromkeys(p.id for p in profiles):
        buffer = (pynvml.c_nvmlComputeInstance_t * _MOST_INSTANCES)()
        count = ctypes.c_uint(_MOST_INSTANCES)
        ask = pynvml.nvmlGpuInstanceGetComputeInstances
        session.call(ask, gi, profile_id, buffer, ctypes.byref(count), gpu=gpu)
        handles.extend(buffer[: count.value])
    return handles


def compute_profiles(session: Session, gi: Any, *, gpu: str) -> Iterator[tuple[int, Any]]:
    """Compute-instance profiles of a GPU instance, as pairs of NVML's enum and profile info."""
    ask = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfoV
    for enum in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            yield enum, newest_form(session, ask, gi, enum, _SHARED_ENGINES, gpu=gpu)
        except NotSupportedError:
            continue
        except NvmlError as error:
            # INVALID_ARGUMENT: the driver is older than the enum.
            if error.code != pynvml.NVML_ERROR_INVALID_ARGUMENT:
                raise


def _ask_compute_profiles(session: Session, gi: Any, *, gpu: str) -> tuple[ComputeProfile, ...]:
    return tuple(
        ComputeProfile(enum, info.id, info.sliceCount, info.multiprocessorCount)
        for enum, info in compute_profiles(session, gi, gpu=gpu)
    )


def _whole_compute_profiles(
    session: Session, gi: Any, profile: Profile, *, gpu: str
) -> tuple[list[ComputeProfile], tuple[ComputeProfile, ...]]:
    """Compute-instance profiles with all compute slices of ``profile``, most multiprocessors first.

    The second value is all profiles that the driver reported. Asking for them takes up to two calls
    for each of a dozen, so that an answer by which a slice was made is kept in the session. If no
    profile has enough multiprocessors, the driver is asked once more: one wrong answer must not
    rule ``profile`` out.
    """
    asked = session.compute_profiles.get((gpu, profile.id), ())
    best: list[ComputeProfile] = []
    for _ in range(2):
        asked = asked or _ask_compute_profiles(session, gi, gpu=gpu)
        whole = (p for p in asked if p.slices == profile.compute_slices)
        best = sorted(whole, key=lambda p: (-p.multiprocessors, p.enum))
        if best and best[0].multiprocessors >= profile.multiprocessors:
            return best, asked
        asked = ()
    return best, asked


def _delivered(session: Session, handle: Any, profile: Profile, *, gpu: str) -> Delivered:
    """Read a new compute instance; destroys it if it has less than its profile advertises.

    Raises:
        UndeliverableError: the compute instance had less, and was destroyed.
    """
    info = session.call(pynvml.nvmlComputeInstanceGetInfo_v2, handle, gpu=gpu)
    uuid = session.call(pynvml.nvmlDeviceGetUUID, info.device, gpu=gpu)
    shown = session.call(pynvml.nvmlDeviceGetAttributes_v2, info.device, gpu=gpu)
    found = Delivered(info.id, uuid, shown.multiprocessorCount, shown.memorySizeMB)
    least = profile.memory_mib * _LEAST_MEMORY_SHARE
    if found.multiprocessors >= profile.multiprocessors and found.memory_mib >= least:
        return found
    session.call(pynvml.nvmlComputeInstanceDestroy, handle, gpu=gpu)
    raise UndeliverableError(
        "nvmlGpuInstanceCreateComputeInstance",
        pynvml.NVML_SUCCESS,
        gpu=gpu,
        profile=profile.name,
        detail=f"it advertises {profile.multiprocessors} multiprocessors and {profile.memory_mib} "
        f"MiB, and the slice had {found.multiprocessors} and {found.memory_mib} MiB",
    )


def _undeliverable(
    choices: list[ComputeProfile], refused: list[str], profile: Profile, *, gpu: str
) -> UndeliverableError:
    most = choices[0].multiprocessors if choices else 0
    detail = f"it advertises {profile.multiprocessors} multiprocessors, and "
    if refused:
        detail += f"the driver refused a compute instance of {'; '.join(refused)}"
    elif choices:
        detail += f"the driver reports no compute instance with more than {most}"
    else:
        detail += f"the driver reports no compute instance of {profile.compute_slices} slices"
    return UndeliverableError(
        "nvmlGpuInstanceCreateComputeInstance",
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        gpu=gpu,
        profile=profile.name,
        detail=detail,
        # Without a refusal, the driver's largest number is all that the GPU instance has.
        deliverable=0 if refused else most,
    )


def _gpu_instance(session: Session, gpu: str, gi_id: int) -> Any:
    """Handle of a GPU instance; None if NVML says twice that it is gone.

    The caller forgets an instance that is gone: after a wrong answer it would stay for ever.
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
        pids: tuple[int, ...] = ()
        with suppress(NvmlError):
            pids = processes(session, gpu, gi_id)
        raise InUseError(
            error.operation,
            error.code,
            gpu=gpu,
            detail=f"GPU instance {gi_id}",
            pids=pids,
            nameless=not session.names_processes,
        ) from error


def _read_again(look: Callable[[], T], operation: str, what: str, *, gpu: str) -> T:
    """Result of ``look``, which is called again if an instance was listed and not found after that.

    Either somebody destroyed the instance between both, as the next look shows, or NVML errs.

    Raises:
        ReadBackError: an instance is there in each look and cannot be read.
    """
    unread: InstanceNotFoundError | None = None
    for _ in range(_LOOKS):
        try:
            return look()
        except InstanceNotFoundError as error:
            unread = error
    raise ReadBackError(operation, gpu=gpu, detail=f"{what}: {unread}")
