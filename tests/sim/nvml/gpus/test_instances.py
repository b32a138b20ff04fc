"""Life and death of GPU and compute instances, as pynvml sees them."""

from __future__ import annotations

import pynvml
import pytest

from sim.nvml.cabi import Return
from sim.nvml.machine import GpuSpec, Machine
from sim.nvml.state import WHOLE_GPU
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


def test_the_device_of_a_compute_instance_is_the_mig_device(a100: Machine) -> None:
    gpu = device()
    instance = create_at(gpu, 19, 2, 1)
    mig = mig_device(pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0))
    uuid = pynvml.nvmlDeviceGetUUID(mig)
    assert uuid.startswith("MIG-")
    assert pynvml.nvmlDeviceGetName(mig) == "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    assert pynvml.nvmlDeviceGetMemoryInfo(mig).total == 4864 * 1024 * 1024
    again = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    assert pynvml.nvmlDeviceGetUUID(again) == uuid


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


@pytest.mark.parametrize(
    ("profile_id", "begin", "size"), [(19, 1, 1), (14, 0, 2), (9, 0, 4), (0, 0, 8)]
)
def test_a_taken_placement_is_insufficient_resources(
    a100: Machine, profile_id: int, begin: int, size: int
) -> None:
    create_at(device(), 19, 1, 1)
    with refused(Return.INSUFFICIENT_RESOURCES):
        create_at(device(), profile_id, begin, size)


def test_media_engines_run_out_before_memory(a100: Machine) -> None:
    create_at(device(), 20, 0, 1)
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device(), 20) == 0
    with refused(Return.INSUFFICIENT_RESOURCES):
        create_at(device(), 20, 5, 1)


def test_a_slice_with_all_media_engines_leaves_room_only_for_slices_without(start: Start) -> None:
    start("RTX-PRO-6000-Blackwell-Server")
    create_at(device(), 65, 0, 3)
    with refused(Return.INSUFFICIENT_RESOURCES):
        create_at(device(), 14, 3, 3)
    for begin in (3, 6, 9):
        create_at(device(), 67, begin, 3)


def test_remaining_capacity_counts_what_fits_now(a100: Machine) -> None:
    capacities = {19: 7, 20: 1, 15: 4, 14: 3, 9: 2, 5: 1, 0: 1}
    gpu = device()
    for profile_id, count in capacities.items():
        assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, profile_id) == count
    create_at(gpu, 19, 4, 1)
    after = {19: 6, 20: 1, 15: 3, 14: 2, 9: 1, 5: 1, 0: 0}
    for profile_id, count in after.items():
        assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, profile_id) == count


def test_choosing_the_compute_profile_by_slices_alone_fails_on_ampere(a100: Machine) -> None:
    instance = create_at(device(), 19, 0, 1)
    odd = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 7, 0)
    assert odd.sliceCount == 1
    with refused(Return.NOT_SUPPORTED):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, odd.id)
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)


def test_compute_instances_share_a_gpu_instance_until_it_is_full(a100: Machine) -> None:
    instance = create_at(device(), 9, 0, 4)
    two = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
    one = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    assert [pynvml.nvmlComputeInstanceGetInfo(c).id for c in (two, one)] == [0, 1]
    with refused(Return.INSUFFICIENT_RESOURCES):
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    by_id = pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 1)
    assert pynvml.nvmlComputeInstanceGetInfo(by_id).profileId == 0
    with refused(Return.NOT_FOUND):
        pynvml.nvmlGpuInstanceGetComputeInstanceById(instance, 2)


def test_a_gpu_instance_goes_after_its_compute_instances(a100: Machine) -> None:
    instance = create_at(device(), 19, 0, 1)
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    with refused(Return.IN_USE):
        pynvml.nvmlGpuInstanceDestroy(instance)


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


def test_hopper_changes_at_once(start: Start) -> None:
    start(off("H100-80GB-HBM3"))
    assert pynvml.nvmlDeviceSetMigMode(device(), 1) == Return.SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(device()) == [1, 1]


def test_ampere_waits_for_a_reset(start: Start) -> None:
    machine = start(off("A100-SXM4-40GB"))
    assert pynvml.nvmlDeviceSetMigMode(device(), 1) == Return.RESET_REQUIRED
    assert pynvml.nvmlDeviceGetMigMode(device()) == [0, 1]
    pynvml.nvmlShutdown()  # who holds it keeps it from being reset
    machine.reset_gpu(0)
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetMigMode(device()) == [1, 1]


def test_ampere_changes_at_once_where_the_driver_can_reset(start: Start) -> None:
    machine = start(off("A100-SXM4-40GB"))
    machine.configure(resets_gpus=True)
    assert pynvml.nvmlDeviceSetMigMode(device(), 1) == Return.SUCCESS
    assert pynvml.nvmlDeviceGetMigMode(device()) == [1, 1]


@pytest.mark.parametrize("product", ["A100-SXM4-40GB", "H100-80GB-HBM3"])
def test_a_gpu_in_use_keeps_its_mode(start: Start, product: str) -> None:
    machine = start(product)
    machine.configure(resets_gpus=True)
    instance = create_at(device(), 19, 0, 1)
    assert pynvml.nvmlDeviceSetMigMode(device(), 0) == Return.IN_USE
    assert pynvml.nvmlDeviceGetMigMode(device()) == [1, 0]
    pynvml.nvmlGpuInstanceDestroy(instance)
    machine.start_process(0, 77)
    assert pynvml.nvmlDeviceSetMigMode(device(), 0) == Return.IN_USE
    machine.end_process(77)
    assert pynvml.nvmlDeviceSetMigMode(device(), 0) == Return.SUCCESS


@pytest.mark.parametrize("again", ["reboot", "reload_driver"])
def test_ampere_keeps_its_mode_and_hopper_loses_it(start: Start, again: str) -> None:
    machine = start("A100-SXM4-40GB", "H100-80GB-HBM3", init=False)
    getattr(machine, again)()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetMigMode(device(0)) == [1, 1]
    assert pynvml.nvmlDeviceGetMigMode(device(1)) == [0, 0]


# -- processes that hold instances, events that concern them, GPUs that are lost


def test_a_process_is_seen_on_its_mig_device_and_on_the_gpu(a100: Machine) -> None:
    first, second = a100.create_slice(0, "1g.5gb"), a100.create_slice(0, "2g.10gb")
    for pid, held in ((41, first), (42, second)):
        a100.start_process(
            0, pid, gpu_instance=held.gpu_instance, compute_instance=held.compute_instance or 0
        )
    mig = pynvml.nvmlDeviceGetHandleByUUID(second.uuid)
    assert [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(mig)] == [42]
    everywhere = pynvml.nvmlDeviceGetComputeRunningProcesses(device())
    assert {p.pid: p.gpuInstanceId for p in everywhere} == {
        41: first.gpu_instance,
        42: second.gpu_instance,
    }
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(device()) == []


def test_a_process_keeps_its_compute_instance_in_use(a100: Machine) -> None:
    instance = create_at(device(), 19, 0, 1)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    identifier = pynvml.nvmlGpuInstanceGetInfo(instance).id
    a100.start_process(0, 42, gpu_instance=identifier, compute_instance=0)
    with refused(Return.IN_USE):
        pynvml.nvmlComputeInstanceDestroy(compute)
    a100.end_process(42)
    pynvml.nvmlComputeInstanceDestroy(compute)


def test_a_gpu_instance_can_stay_in_use_after_its_compute_instance_is_gone(a100: Machine) -> None:
    instance = create_at(device(), 19, 0, 1)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    a100.start_process(0, 42, gpu_instance=pynvml.nvmlGpuInstanceGetInfo(instance).id)
    pynvml.nvmlComputeInstanceDestroy(compute)
    with refused(Return.IN_USE):
        pynvml.nvmlGpuInstanceDestroy(instance)


def listen(*gpus: int) -> object:
    events = pynvml.nvmlEventSetCreate()
    for gpu in gpus:
        pynvml.nvmlDeviceRegisterEvents(device(gpu), pynvml.nvmlEventTypeXidCriticalError, events)
    return events


def test_an_xid_arrives_with_its_gpu_and_instances(start: Start) -> None:
    machine = start("A30", "A30")
    events = listen(0, 1)
    machine.raise_event(1, 79)
    machine.raise_event(0, 31, gpu_instance=4, compute_instance=0)
    first = pynvml.nvmlEventSetWait_v2(events, 1000)
    assert pynvml.nvmlDeviceGetUUID(first.device) == machine.gpu(1).uuid
    assert (first.eventType, first.eventData) == (pynvml.nvmlEventTypeXidCriticalError, 79)
    assert first.gpuInstanceId == first.computeInstanceId == WHOLE_GPU
    second = pynvml.nvmlEventSetWait_v2(events, 1000)
    assert (second.eventData, second.gpuInstanceId, second.computeInstanceId) == (31, 4, 0)


def test_only_registered_gpus_and_later_events_are_delivered(start: Start) -> None:
    machine = start("A30", "A30")
    machine.raise_event(0, 1)
    events = listen(0)
    machine.raise_event(1, 2)
    machine.raise_event(0, 3, kind=pynvml.nvmlEventTypeClock)
    with refused(Return.TIMEOUT):
        pynvml.nvmlEventSetWait_v2(events, 1)


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


def test_a_recovered_gpu_has_lost_its_instances(a100: Machine) -> None:
    a100.create_slice(0, "1g.5gb")
    a100.lose(0)
    a100.recover(0)
    assert pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(device(), 0) == 1
