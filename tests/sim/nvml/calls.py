"""Short forms of pynvml's calls, for tests of the simulated library below it."""

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref
from typing import Any

import pynvml
import pytest

from sim.nvml.cabi import Return


@contextmanager
def refused(code: Return) -> Iterator[None]:
    """The block must raise pynvml's error with exactly this return code."""
    with pytest.raises(pynvml.NVMLError) as caught:
        yield
    assert caught.value.value == code


def device(index: int = 0) -> Any:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def placements(gpu: Any, profile_id: int) -> list[tuple[int, int]]:
    count = pynvml.c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, None, byref(count))
    array = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, profile_id, array, byref(count))
    return [(p.start, p.size) for p in array]


def create_at(gpu: Any, profile_id: int, start: int, size: int) -> Any:
    placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
    return pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile_id, byref(placement))


def gpu_instances(gpu: Any, profile_id: int, room: int = 16) -> list[Any]:
    array = (pynvml.c_nvmlGpuInstance_t * room)()
    count = pynvml.c_uint(0)
    pynvml.nvmlDeviceGetGpuInstances(gpu, profile_id, array, byref(count))
    return list(array[: count.value])


def compute_instances(instance: Any, profile_id: int, room: int = 16) -> list[Any]:
    array = (pynvml.c_nvmlComputeInstance_t * room)()
    count = pynvml.c_uint(0)
    pynvml.nvmlGpuInstanceGetComputeInstances(instance, profile_id, array, byref(count))
    return list(array[: count.value])


def mig_device(compute_instance: Any) -> Any:
    return pynvml.nvmlComputeInstanceGetInfo_v2(compute_instance).device
