"""Processes that hold instances, events that concern them, GPUs that are lost."""

import pynvml

from sim.nvml.cabi import Return
from sim.nvml.machine import Machine
from sim.nvml.state import WHOLE_GPU
from tests.sim.nvml.calls import create_at, device, refused
from tests.sim.nvml.conftest import Start


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
