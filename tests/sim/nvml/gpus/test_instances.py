"""Life and death of GPU and compute instances, as pynvml sees them."""

from __future__ import annotations

import pynvml

from sim.nvml.cabi import Return
from sim.nvml.machine import GpuSpec, Machine
from tests.sim.nvml.calls import (
    compute_instances,
    create_at,
    device,
    gpu_instances,
    mig_device,
    refused,
)
from tests.sim.nvml.conftest import Start


def test_a_slice_lives_and_dies(a100: Machine) -> None:
    gpu = device()
    instance = create_at(gpu, 9, 4, 4)
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    assert (info.profileId, info.placement.start, info.placement.size) == (9, 4, 4)
    assert pynvml.nvmlDeviceGetUUID(info.device) == pynvml.nvmlDeviceGetUUID(gpu)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 2)
    found = pynvml.nvmlComputeInstanceGetInfo_v2(compute)
    assert (found.id, found.profileId, found.placement.size) == (0, 2, 3)
    assert pynvml.nvmlGpuInstanceGetInfo(found.gpuInstance).id == info.id
    attributes = pynvml.nvmlDeviceGetAttributes_v2(found.device)
    assert (attributes.memorySizeMB, attributes.multiprocessorCount) == (19968, 42)
    assert (attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount) == (3, 3)
    assert len(gpu_instances(gpu, 9)) == 1
    assert len(compute_instances(instance, 2)) == 1
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert gpu_instances(gpu, 9) == []


def test_ids_are_reused_and_uuids_are_not(a100: Machine) -> None:
    seen = []
    for _ in range(2):
        instance = create_at(device(), 14, 2, 2)
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
        identifier = pynvml.nvmlGpuInstanceGetInfo(instance).id
        seen.append((identifier, pynvml.nvmlDeviceGetUUID(mig_device(compute))))
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
    (first_id, first_uuid), (second_id, second_uuid) = seen
    assert first_id == second_id
    assert first_uuid != second_uuid


def test_remaining_capacity_counts_what_fits_now(a100: Machine) -> None:
    capacities = {19: 7, 20: 1, 15: 4, 14: 3, 9: 2, 5: 1, 0: 1}
    gpu = device()
    for profile_id, count in capacities.items():
        assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, profile_id) == count
    create_at(gpu, 19, 4, 1)
    after = {19: 6, 20: 1, 15: 3, 14: 2, 9: 1, 5: 1, 0: 0}
    for profile_id, count in after.items():
        assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, profile_id) == count


def test_without_privilege_nothing_changes(a100: Machine) -> None:
    instance = create_at(device(), 19, 0, 1)
    a100.configure(privileged=False)
    before = a100.snapshot()
    with refused(Return.NO_PERMISSION):
        create_at(device(), 19, 1, 1)
    with refused(Return.NO_PERMISSION):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    with refused(Return.NO_PERMISSION):
        pynvml.nvmlGpuInstanceDestroy(instance)
    with refused(Return.NO_PERMISSION):
        pynvml.nvmlDeviceSetMigMode(device(), 0)
    assert a100.snapshot() == before


# -- mIG mode: pending where a reset is needed, at once from Hopper on, lost or kept at boot


def off(product: str) -> GpuSpec:
    return GpuSpec(product, mig=False)


def test_ampere_waits_for_a_reset(start: Start) -> None:
    machine = start(off("A100-SXM4-40GB"))
    assert pynvml.nvmlDeviceSetMigMode(device(), 1) == Return.RESET_REQUIRED
    assert pynvml.nvmlDeviceGetMigMode(device()) == [0, 1]
    pynvml.nvmlShutdown()  # who holds it keeps it from being reset
    machine.reset_gpu(0)
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetMigMode(device()) == [1, 1]


# -- processes that hold instances, events that concern them, GPUs that are lost


def test_a_process_keeps_its_compute_instance_in_use(a100: Machine) -> None:
    instance = create_at(device(), 19, 0, 1)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    identifier = pynvml.nvmlGpuInstanceGetInfo(instance).id
    a100.start_process(0, 42, gpu_instance=identifier, compute_instance=0)
    with refused(Return.IN_USE):
        pynvml.nvmlComputeInstanceDestroy(compute)
    a100.end_process(42)
    pynvml.nvmlComputeInstanceDestroy(compute)


def listen(*gpus: int) -> object:
    events = pynvml.nvmlEventSetCreate()
    for gpu in gpus:
        pynvml.nvmlDeviceRegisterEvents(device(gpu), pynvml.nvmlEventTypeXidCriticalError, events)
    return events


def test_a_lost_gpu_answers_nothing_and_the_others_do(start: Start) -> None:
    machine = start("A30", "A30")
    gpu, events = device(0), listen(0, 1)
    machine.lose(0)
    assert pynvml.nvmlDeviceGetCount() == 2
    for call in (pynvml.nvmlDeviceGetUUID, pynvml.nvmlDeviceGetMigMode):
        with refused(Return.GPU_IS_LOST):
            call(gpu)
    with refused(Return.GPU_IS_LOST):
        device(0)
    with refused(Return.GPU_IS_LOST):
        create_at(gpu, 14, 0, 1)
    with refused(Return.GPU_IS_LOST):
        pynvml.nvmlEventSetWait_v2(events, 1000)
    create_at(device(1), 14, 0, 1)
