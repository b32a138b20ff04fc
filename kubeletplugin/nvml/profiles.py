"""GPU-instance profiles and placements, as the driver reports them.

Profile information is asked for by enum; everything else takes the ``id`` that comes with it.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import pynvml

from dra.gpu.geometry import Engines, Geometry, Placement, Profile
from kubeletplugin.nvml.errors import NotSupportedError, NvmlError
from kubeletplugin.nvml.session.session import Session
from kubeletplugin.nvml.versions import newest_form

_NAME_PREFIX = "MIG "
_MIB = 1024 * 1024
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
    for enum in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = _profile_info(session, device, enum, gpu=gpu)
        if info is None or info.id in profiles:
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


def _profile_info(session: Session, device: Any, enum: int, *, gpu: str) -> Any:
    """The profile of ``enum``; None where this GPU or this driver does not know it."""
    ask = pynvml.nvmlDeviceGetGpuInstanceProfileInfoV
    try:
        return newest_form(session, ask, device, enum, gpu=gpu)
    except NotSupportedError:
        return None
    except NvmlError as error:
        # A driver that is older than this list of enums.
        if error.code == pynvml.NVML_ERROR_INVALID_ARGUMENT:
            return None
        raise


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
