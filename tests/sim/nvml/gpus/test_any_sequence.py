"""Whatever is created and destroyed, the hardware stays possible."""

import tempfile
from itertools import combinations
from pathlib import Path
from typing import Any

import pynvml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim.nvml import install, uninstall
from sim.nvml.machine import GpuSpec, Machine
from sim.nvml.products import Product, product_names
from tests.sim.nvml.calls import create_at, device

ENGINES = ("copy_engines", "decoders", "encoders", "jpeg", "ofa", "multiprocessors", "memory_mib")


def check(machine: Machine, product: Product, gpu: Any) -> None:
    live = machine.gpu().gpu_instances
    for one, other in combinations(live, 2):
        assert one.start + one.size <= other.start or other.start + other.size <= one.start
        assert one.id != other.id
    profiles = {p.id: p for p in product.gi_profiles}
    whole = max(product.gi_profiles, key=lambda p: p.size)
    for engine in ENGINES:
        total = sum(getattr(profiles[g.profile], engine) for g in live)
        assert total <= getattr(whole, engine)
    for profile in product.gi_profiles:
        left = pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, profile.id)
        fits = [s for s in profile.starts if can_create(gpu, profile.id, s, profile.size)]
        assert (left > 0) == bool(fits)
        assert left <= len(fits)


def can_create(gpu: Any, profile_id: int, start: int, size: int) -> bool:
    try:
        instance = create_at(gpu, profile_id, start, size)
    except pynvml.NVMLError_InsufficientResources:
        return False
    pynvml.nvmlGpuInstanceDestroy(instance)
    return True


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(st.sampled_from(product_names()), st.lists(st.integers(0, 10_000), max_size=12))
def test_random_life_never_overlaps_and_capacity_tells_what_fits(
    name: str, choices: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine.create(Path(folder), [GpuSpec(name)])
        install(folder)
        pynvml.nvmlInit()
        gpu, product = device(), machine.product()
        options = [(p.id, s, p.size) for p in product.gi_profiles for s in p.starts]
        live: list[Any] = []
        for choice in choices:
            if live and choice % 3 == 0:
                pynvml.nvmlGpuInstanceDestroy(live.pop(choice % len(live)))
            else:
                try:
                    live.append(create_at(gpu, *options[choice % len(options)]))
                except pynvml.NVMLError_InsufficientResources:
                    continue
        check(machine, product, gpu)
        assert len(machine.gpu().gpu_instances) == len(live)
        for instance in live:
            pynvml.nvmlGpuInstanceDestroy(instance)
        full = product.whole
        assert can_create(gpu, full.id, full.starts[0], full.size)
    uninstall()
