"""Profiles, placements and instances of one GPU, with the enums by which NVML was asked."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import partial, wraps
from typing import Any

import pynvml

from kubeletplugin.check.looking.asker import Asker
from kubeletplugin.check.report import ComputeProfile, Instance, Profile
from kubeletplugin.nvml.errors import NotSupportedError, NvmlError
from kubeletplugin.nvml.instances import (
    compute_handles,
    compute_profiles,
    read_compute_instance,
    read_gpu_instance,
)
from kubeletplugin.nvml.versions import newest_form

_MOST_INSTANCES = 16
_NAME_PREFIX = "MIG "


def read_profiles(ask: Asker, device: Any, *, mig_on: bool) -> tuple[Profile, ...]:
    """The profiles that the GPU has, in the order of NVML's enum; also with MIG mode off."""
    found: list[Profile] = []
    for enum in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = ask.tried(partial(_info, ask, device, enum, mig_on=mig_on), None)
        if info is not None:
            found.append(_profile(ask, device, info, enum=enum, mig_on=mig_on))
    return tuple(found)


def read_instances(ask: Asker, device: Any, profiles: tuple[Profile, ...]) -> tuple[Instance, ...]:
    """The GPU instances that are there, by start."""
    found = {
        instance.id: instance
        for profile_id in dict.fromkeys(p.id for p in profiles)
        for handle in _handles(ask, device, profile_id)
        if (instance := ask.tried(partial(read_instance, ask, handle), None)) is not None
    }
    return tuple(sorted(found.values(), key=lambda i: (i.start, i.id)))


def read_instance(ask: Asker, handle: Any) -> Instance:
    """One GPU instance.

    Raises:
        NvmlError: it cannot be asked, or is gone.
    """
    instance = read_gpu_instance(ask.session, handle, gpu=ask.gpu)
    inside = [
        read_compute_instance(ask.session, compute, gpu=ask.gpu)
        for compute in compute_handles(ask.session, handle, gpu=ask.gpu)
    ]
    return Instance(
        id=instance.id,
        profile_id=instance.profile_id,
        start=instance.placement.start,
        size=instance.placement.size,
        compute_instances=tuple((c.id, c.uuid) for c in inside),
        compute_profiles=tuple(offered(ask, handle)),
    )


def offered(ask: Asker, handle: Any) -> Iterator[ComputeProfile]:
    """The compute-instance profiles of a GPU instance, by NVML's enum.

    Raises:
        NvmlError: it cannot be asked.
    """
    for enum, info in compute_profiles(ask.session, handle, gpu=ask.gpu):
        yield ComputeProfile(
            enum=enum,
            id=info.id,
            name=_name(info),
            slices=info.sliceCount,
            multiprocessors=info.multiprocessorCount,
            most=info.instanceCount,
        )


def _info(ask: Asker, device: Any, enum: int, *, mig_on: bool) -> Any:
    def ask_for() -> Any:
        if mig_on:
            function = pynvml.nvmlDeviceGetGpuInstanceProfileInfoV
            return newest_form(ask.session, function, device, enum, gpu=ask.gpu)
        # The second form is documented for GPUs in MIG mode only.
        return ask.session.call(_first_form, device, enum, gpu=ask.gpu)

    try:
        return ask_for()
    except NotSupportedError:
        return None
    except NvmlError as error:
        if error.code == pynvml.NVML_ERROR_INVALID_ARGUMENT:
            return None  # a driver that is older than this list of enums
        raise


@wraps(pynvml.nvmlDeviceGetGpuInstanceProfileInfo)
def _first_form(device: Any, enum: int) -> Any:
    return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, enum, version=1)


def _profile(ask: Asker, device: Any, info: Any, *, enum: int, mig_on: bool) -> Profile:
    def remaining() -> int:
        ask_for = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity
        return int(ask.session.call(ask_for, device, info.id, gpu=ask.gpu))

    return Profile(
        enum=enum,
        id=info.id,
        name=_name(info) or f"{info.sliceCount}g of {info.memorySizeMB} MiB",
        slices=info.sliceCount,
        most=info.instanceCount,
        memory_mib=info.memorySizeMB,
        multiprocessors=info.multiprocessorCount,
        copy_engines=info.copyEngineCount,
        decoders=info.decoderCount,
        encoders=info.encoderCount,
        jpeg_engines=info.jpegCount,
        ofa_engines=info.ofaCount,
        placements=ask.tried(lambda: _placements(ask, device, info.id), ()),
        remaining=ask.tried(remaining, -1) if mig_on else -1,
    )


def _placements(ask: Asker, device: Any, profile_id: int) -> tuple[tuple[int, int], ...]:
    function, count = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements, ctypes.c_uint(0)
    ask.session.call(function, device, profile_id, None, ctypes.byref(count), gpu=ask.gpu)
    buffer = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    ask.session.call(function, device, profile_id, buffer, ctypes.byref(count), gpu=ask.gpu)
    return tuple((p.start, p.size) for p in buffer[: count.value])


def _handles(ask: Asker, device: Any, profile_id: int) -> list[Any]:
    def handles() -> list[Any]:
        buffer = (pynvml.c_nvmlGpuInstance_t * _MOST_INSTANCES)()
        count = ctypes.c_uint(_MOST_INSTANCES)
        function = pynvml.nvmlDeviceGetGpuInstances
        ask.session.call(function, device, profile_id, buffer, ctypes.byref(count), gpu=ask.gpu)
        return list(buffer[: count.value])

    return ask.tried(handles, [])


def _name(info: Any) -> str:
    """The profile's name; empty where the first form of the call has none."""
    name = getattr(info, "name", "")
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return text.removeprefix(_NAME_PREFIX)
