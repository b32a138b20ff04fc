"""Life and death of GPU and compute instances, as pynvml sees them."""

import pynvml
import pytest

from sim.nvml.cabi import Return
from sim.nvml.machine import Machine
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
