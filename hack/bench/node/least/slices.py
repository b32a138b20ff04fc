"""Slices of the least driver: the calls of NVML without which there is none, and no others."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from api.mignode import ClaimRef
from dra.gpu.names import MigDevice

_MOST_PLACEMENTS = 16


@dataclass(frozen=True, slots=True)
class Made:
    """One claim with its slice, as it is recorded; ``size`` in memory slices."""

    claim: ClaimRef
    pool: str
    device: MigDevice
    size: int = 0
    gi: int = 0
    ci: int = 0
    uuid: str = ""


class Slices:
    """Slices of one compute slice. NVML is open; GPUs are named by their index."""

    def __init__(self) -> None:
        count = pynvml.nvmlDeviceGetCount()
        self._gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        self._sizes: dict[int, int] = {}
        self._compute: dict[int, int] = {}

    def create(self, wanted: Made) -> Made:
        """The claim with its slice, of which NVML has told what it is."""
        gpu, profile = self._gpus[wanted.device.minor], wanted.device.profile_id
        size = self._sizes.get(profile) or self._size(gpu, profile)
        place = pynvml.c_nvmlGpuInstancePlacement_t(start=wanted.device.start, size=size)
        gi = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile, ctypes.byref(place))
        gi_id = pynvml.nvmlGpuInstanceGetInfo(gi).id
        compute = self._compute.get(profile)
        if compute is None:
            compute = self._compute_profile(gi, profile)
        ci = pynvml.nvmlGpuInstanceCreateComputeInstance(gi, compute)
        info = pynvml.nvmlComputeInstanceGetInfo_v2(ci)
        uuid = pynvml.nvmlDeviceGetUUID(info.device)
        return replace(wanted, size=size, gi=gi_id, ci=info.id, uuid=uuid)

    def destroy(self, made: Made) -> None:
        """Destroy it by its ids, as handles do not outlive a process."""
        gi = pynvml.nvmlDeviceGetGpuInstanceById(self._gpus[made.device.minor], made.gi)
        ci = pynvml.nvmlGpuInstanceGetComputeInstanceById(gi, made.ci)
        pynvml.nvmlComputeInstanceDestroy(ci)
        pynvml.nvmlGpuInstanceDestroy(gi)

    def _size(self, gpu: Any, profile: int) -> int:
        """Memory slices of a profile, which stay what they are."""
        places = (pynvml.c_nvmlGpuInstancePlacement_t * _MOST_PLACEMENTS)()
        count = ctypes.c_uint(_MOST_PLACEMENTS)
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile, places, ctypes.byref(count))
        self._sizes[profile] = int(places[0].size)
        return self._sizes[profile]

    def _compute_profile(self, gi: Any, profile: int) -> int:
        """Id of the compute instance that takes the whole of it, which stays what it is."""
        kind = pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE
        engines = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
        found = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, kind, engines)
        self._compute[profile] = int(found.id)
        return self._compute[profile]
