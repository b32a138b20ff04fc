"""GPU-instance profiles and placements, as the driver reports them.

Profile information is asked for by enum; everything else takes the ``id`` that comes with it.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from dra.geometry import Engines, Geometry, Placement, Profile
from kubeletplugin.nvml.errors import NotSupportedError, NvmlError
from kubeletplugin.nvml.session import Session

_NAME_PREFIX = "MIG "


def read_geometry(session: Session, device: Any, *, gpu: str) -> Geometry:
    """What can be cut from a GPU in MIG mode, in the order of NVML's enum.

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
                name=_text(info.name).removeprefix(_NAME_PREFIX),
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
    try:
        return session.call(pynvml.nvmlDeviceGetGpuInstanceProfileInfoV, device, enum, gpu=gpu)
    except NotSupportedError:
        return None
    except NvmlError as error:
        # A driver that is older than this list of enums.
        if error.code == pynvml.NVML_ERROR_INVALID_ARGUMENT:
            return None
        raise


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
