"""Injected faults hit the calls that they name, and no other."""

import subprocess
import sys
import threading

import pynvml
import pytest

from sim.nvml.cabi import Return
from sim.nvml.faults import Action, Fault
from sim.nvml.machine import Machine
from tests.helpers.waiting import PATIENCE, wait_for
from tests.sim.nvml.calls import create_at, device, gpu_instances, refused
from tests.sim.nvml.conftest import Start

CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


def test_the_nth_call_fails_with_the_code(a100: Machine) -> None:
    a100.inject(Fault(function=CREATE, action="return", after=1, code=Return.UNKNOWN))
    create_at(device(), 19, 0, 1)
    with refused(Return.UNKNOWN):
        create_at(device(), 19, 1, 1)
    create_at(device(), 19, 1, 1)


def test_a_lasting_fault_ends_when_it_is_taken_away(a100: Machine) -> None:
    fault = a100.inject(Fault(function="nvmlDeviceGet*", action="return", times=0, code=999))
    for _ in range(3):
        with refused(Return.UNKNOWN):
            pynvml.nvmlDeviceGetCount()
    assert a100.faults.seen(fault) == 3
    assert pynvml.nvmlSystemGetDriverVersion()
    a100.clear_faults(fault)
    assert pynvml.nvmlDeviceGetCount() == 1


@pytest.mark.parametrize("by_uuid", [False, True])
def test_a_fault_of_one_gpu_spares_the_other(start: Start, *, by_uuid: bool) -> None:
    machine = start("A30", "A30")
    gpu: str | int = machine.gpu(1).uuid if by_uuid else 1
    machine.inject(Fault(function="*", gpu=gpu, action="return", times=0, code=Return.TIMEOUT))
    assert pynvml.nvmlDeviceGetMinorNumber(device(0)) == 0
    with refused(Return.TIMEOUT):
        pynvml.nvmlDeviceGetMinorNumber(device(1))
    with refused(Return.TIMEOUT):
        create_at(device(1), 14, 0, 1)


def test_a_fault_of_a_gpu_hits_calls_on_its_instances(a100: Machine) -> None:
    instance = create_at(device(), 19, 0, 1)
    a100.inject(Fault(function="nvmlGpuInstanceDestroy", gpu=0, action="return", code=19))
    with refused(Return.IN_USE):
        pynvml.nvmlGpuInstanceDestroy(instance)
    pynvml.nvmlGpuInstanceDestroy(instance)


def test_success_without_effect(a100: Machine) -> None:
    instance = create_at(device(), 19, 0, 1)
    a100.inject(Fault(function="nvmlGpuInstanceDestroy", action="no-effect"))
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert len(gpu_instances(device(), 19)) == 1
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert gpu_instances(device(), 19) == []


def test_a_hanging_call_goes_on_when_released_and_holds_up_no_other(a100: Machine) -> None:
    gpu = device()
    fault = a100.inject(Fault(function=CREATE, action="hang"))
    thread = threading.Thread(target=create_at, args=(gpu, 19, 0, 1))
    thread.start()
    wait_for("the hang", lambda: a100.faults.seen(fault))
    pynvml.nvmlDeviceCreateGpuInstance(gpu, 9)
    assert gpu_instances(gpu, 19) == []
    assert thread.is_alive()
    a100.clear_faults(fault)
    thread.join(timeout=PATIENCE)
    assert len(gpu_instances(gpu, 19)) == 1


@pytest.mark.parametrize(("action", "left"), [("crash-before", 0), ("crash-after", 1)])
def test_a_crash_kills_the_caller_once_and_leaves_the_hardware_as_it_was(
    a100: Machine, action: Action, left: int
) -> None:
    a100.inject(Fault(function="nvmlDeviceCreateGpuInstance", action=action))
    program = (
        "import sys, pynvml\n"
        "from sim.nvml import install\n"
        "install(sys.argv[1])\n"
        "pynvml.nvmlInit()\n"
        "pynvml.nvmlDeviceCreateGpuInstance(pynvml.nvmlDeviceGetHandleByIndex(0), 9)\n"
    )
    command = [sys.executable, "-c", program, str(a100.directory)]
    assert subprocess.run(command, check=False).returncode == -9
    assert len(a100.gpu().gpu_instances) == left
    assert subprocess.run(command, check=False).returncode == 0
    assert len(a100.gpu().gpu_instances) == left + 1
