"""Initialisation, and state that outlives processes and is shared by them."""

import subprocess
import sys

import pynvml

from sim.nvml.cabi import Return
from sim.nvml.machine import Machine
from sim.nvml.session import Session
from tests.sim.nvml.calls import create_at, device, gpu_instances, refused
from tests.sim.nvml.conftest import Start

OTHER_PROCESS = """
import sys, pynvml
from sim.nvml import install
install(sys.argv[1])
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
"""


def other_process(machine: Machine, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", OTHER_PROCESS + code, str(machine.directory)],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_nothing_works_before_init_and_after_the_last_shutdown(start: Start) -> None:
    start("A30", init=False)
    with refused(Return.UNINITIALIZED):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()
    pynvml.nvmlInit()
    gpu = device()
    pynvml.nvmlShutdown()
    assert pynvml.nvmlDeviceGetMinorNumber(gpu) == 0
    pynvml.nvmlShutdown()
    with refused(Return.UNINITIALIZED):
        pynvml.nvmlDeviceGetMinorNumber(gpu)
    with refused(Return.UNINITIALIZED):
        pynvml.nvmlShutdown()


def test_handles_do_not_survive_the_session(a100: Machine) -> None:
    gpu = device()
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    with refused(Return.INVALID_ARGUMENT):
        pynvml.nvmlDeviceGetMinorNumber(gpu)


def test_a_function_that_the_library_lacks_is_not_found(a100: Machine) -> None:
    with refused(Return.FUNCTION_NOT_FOUND):
        pynvml.nvmlDeviceGetTemperature(device(), 0)


def test_a_slice_made_by_another_process_is_seen_at_once(a100: Machine) -> None:
    assert gpu_instances(device(), 9) == []
    identifier = other_process(
        a100,
        "gi = pynvml.nvmlDeviceCreateGpuInstance(gpu, 9)\n"
        "print(pynvml.nvmlGpuInstanceGetInfo(gi).id)",
    )
    (instance,) = gpu_instances(device(), 9)
    assert pynvml.nvmlGpuInstanceGetInfo(instance).id == int(identifier)
    pynvml.nvmlGpuInstanceDestroy(instance)
    left = other_process(a100, "print(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, 9))")
    assert left == "2"


def test_a_reboot_drops_instances_processes_and_events_and_changes_the_boot_id(
    a100: Machine,
) -> None:
    made = a100.create_slice(0, "1g.5gb")
    a100.start_process(0, 42, gpu_instance=made.gpu_instance)
    a100.raise_event(0, 79)
    before = a100.state().boot_id
    a100.reboot(minors=[3])
    assert a100.state().boot_id != before
    assert a100.gpu().gpu_instances == []
    assert a100.gpu().processes == []
    assert a100.state().events == []
    assert pynvml.nvmlDeviceGetMinorNumber(device()) == 3


def test_reloading_the_driver_drops_instances_and_keeps_the_boot_id(a100: Machine) -> None:
    a100.create_slice(0, "1g.5gb")
    before = a100.state().boot_id
    pynvml.nvmlShutdown()
    a100.reload_driver()
    assert a100.gpu().gpu_instances == []
    assert a100.state().boot_id == before


def test_mutations_are_recorded_and_reads_only_when_asked(a100: Machine) -> None:
    instance = create_at(device(), 19, 0, 1)
    with refused(Return.INSUFFICIENT_RESOURCES):
        create_at(device(), 19, 0, 1)
    assert a100.calls() == []
    a100.configure(record_calls=True)
    pynvml.nvmlGpuInstanceGetInfo(instance)
    assert [(c.function, c.code, c.gpu == a100.gpu().uuid) for c in a100.mutations()] == [
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 0, True),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 23, True),
    ]
    assert [(c.function, c.mutation) for c in a100.calls()] == [("nvmlGpuInstanceGetInfo", False)]


def test_handles_of_instances_do_not_pile_up(a100: Machine) -> None:
    session = Session(a100.directory)
    gpu = a100.gpu(0)
    card, *instances = [session.handle("device", gpu)] + [
        session.handle("gpu-instance", gpu, key) for key in range(1, 2001)
    ]
    assert len(session._targets) == len(session._addresses) <= 1000
    assert session.target(card).kind == "device"
    assert session.target(instances[-1]).key == 2000
    assert session.handle("gpu-instance", gpu, 1) not in instances
