"""GPU-instance profiles and placements, as the driver reports them.

Profile information is asked for by enum; everything else takes the ``id`` that comes with it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pynvml

from dra.gpu.geometry import Engines, Geometry, Placement, Profile
from kubeletplugin.nvml.errors import NotSupportedError, NvmlError
from kubeletplugin.nvml.session import Session

_NAME_PREFIX = "MIG "
_MIB = 1024 * 1024
MOST_PROFILES = 64
"""Enums that are asked for, should no answer end the list."""
_SUFFIXES = {
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1: "+me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE_GFX: "+gfx",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_NO_ME: "-me",
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "+me.all",
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: "+me.all",
}


def read_geometry(session: Session, device: Any, *, gpu: str) -> Geometry:
    """Profiles that can be cut from a GPU in MIG mode, in the order of NVML's enum.

    A profile without placements cannot be made and is left out.

    Raises:
        NvmlError: the driver refused for a reason other than not having a profile.
    """
    profiles: dict[int, Profile] = {}
    for enum, info in _profile_infos(session, device, gpu=gpu):
        if info.id in profiles:
            continue
        placements = _placements(session, device, info.id, gpu=gpu)
        if placements:
            profiles[info.id] = Profile(
                id=info.id,
                name=_name(session, device, info, enum, gpu=gpu),
                compute_slices=info.sliceCount,
                memory_mib=info.memorySizeMB,
                multiprocessors=info.multiprocessorCount,
                placements=placements,
                engines=Engines(
                    copy_engines=info.copyEngineCount,
                    decoders=info.decoderCount,
                    encoders=info.encoderCount,
                    jpeg_engines=info.jpegCount,
                    ofa_engines=info.ofaCount,
                ),
            )
    return Geometry(tuple(profiles.values()))


def _profile_infos(session: Session, device: Any, *, gpu: str) -> Iterator[tuple[int, Any]]:
    """The profiles that this GPU and this driver know, by enum.

    A driver may know more than its bindings count: an instance of such a profile would not be seen,
    and its place be taken for free. INVALID_ARGUMENT ends the list (nvml.h); below the bindings'
    count it may be that of an older driver, and nothing is lost by asking on.
    """
    ask = pynvml.nvmlDeviceGetGpuInstanceProfileInfoV
    for enum in range(MOST_PROFILES):
        try:
            yield enum, newest_form(session, ask, device, enum, gpu=gpu)
        except NotSupportedError:
            continue
        except NvmlError as error:
            if error.code != pynvml.NVML_ERROR_INVALID_ARGUMENT:
                raise
            if enum >= pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT:
                return


def _name(session: Session, device: Any, info: Any, enum: int, *, gpu: str) -> str:
    """Name of a profile, as the driver tells it, or made by NVIDIA's rule where it tells none.

    By that rule memory counts in eighths of the GPU's own, rounded up, and is named in whole GB.
    """
    if hasattr(info, "name"):
        return _text(info.name).removeprefix(_NAME_PREFIX)
    total = session.call(pynvml.nvmlDeviceGetMemoryInfo, device, gpu=gpu).total / _MIB
    share = math.ceil(info.memorySizeMB / total * 8) / 8
    size = math.floor(share * math.ceil(total / 1024) + 0.5)
    return f"{info.sliceCount}g.{size}gb{_SUFFIXES.get(enum, '')}"


def _placements(
    session: Session, device: Any, profile_id: int, *, gpu: str
) -> tuple[Placement, ...]:
    count = ctypes.c_uint(0)
    ask = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    try:
        session.call(ask, device, profile_id, None, ctypes.byref(count), gpu=gpu)
        buffer = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
        session.call(ask, device, profile_id, buffer, ctypes.byref(count), gpu=gpu)
    except NotSupportedError:
        return ()
    return tuple(Placement(p.start, p.size) for p in buffer[: count.value])


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


_UNKNOWN_FORM = frozenset(
    {
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
    }
)
"""Codes by which drivers refuse the second form: older ones, and some of A30 that know it."""


def newest_form(session: Session, function: Callable[..., Any], *arguments: Any, gpu: str) -> Any:
    """The answer to the second form of a call, or to the first where the driver has no second.

    ``function`` is one of pynvml's with an argument ``version``.

    Raises:
        NvmlError: what the driver says to the form that it has.
    """
    try:
        return session.call(function, *arguments, gpu=gpu)
    except NvmlError as error:
        if error.code not in _UNKNOWN_FORM:
            raise

    @wraps(function)
    def first_form(*arguments: Any) -> Any:
        return function(*arguments, version=1)

    return session.call(first_form, *arguments, gpu=gpu)
