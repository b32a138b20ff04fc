"""What the simulated driver does where no source settles it: each variant and its opposite."""

from __future__ import annotations

import subprocess
import sys
import threading

import pynvml
import pytest

from sim.nvml.cabi import Return
from sim.nvml.faults import Action, Fault
from sim.nvml.gpus.clients import clients
from sim.nvml.machine import Machine
from sim.nvml.products import Variants
from tests.helpers.waiting import PATIENCE, wait_for
from tests.sim.nvml.calls import create_at, device, gpu_instances, mig_device, refused
from tests.sim.nvml.conftest import Start


def test_a_look_up_by_uuid_stops_at_any_lost_gpu_or_only_at_its_own(start: Start) -> None:
    machine = start("A30", "A30")
    first, second = (gpu.uuid for gpu in machine.state().gpus)
    machine.lose(0)
    with refused(Return.GPU_IS_LOST):
        pynvml.nvmlDeviceGetHandleByUUID(second)
    assert pynvml.nvmlDeviceGetUUID(device(1)) == second
    machine.configure(variants=Variants(lookup_by_uuid="own"))
    pynvml.nvmlDeviceGetHandleByUUID(second)
    with refused(Return.GPU_IS_LOST):
        pynvml.nvmlDeviceGetHandleByUUID(first)


@pytest.mark.parametrize("lost_first", [False, True])
def test_a_gpu_that_was_lost_is_back_at_once_or_in_the_next_session(
    start: Start, *, lost_first: bool
) -> None:
    machine = start("A30", "A30", init=False)
    machine.configure(variants=Variants(after_loss="anew"))
    if lost_first:
        machine.lose(0)
    pynvml.nvmlInit()
    other = device(1)
    if not lost_first:
        device(0)
        machine.lose(0)
    machine.recover(0)
    with refused(Return.GPU_IS_LOST):
        device(0)
    assert pynvml.nvmlDeviceGetMinorNumber(other) == 1
    machine.configure(variants=Variants(after_loss="same"))
    device(0)
    machine.configure(variants=Variants(after_loss="anew"))
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    device(0)


def ended_waits(milliseconds: int) -> list[int]:
    """Codes of the ended waits, of which one begins; returns once it is in the library."""
    events, codes = pynvml.nvmlEventSetCreate(), list[int]()
    pynvml.nvmlDeviceRegisterEvents(device(), pynvml.nvmlEventTypeXidCriticalError, events)

    def wait() -> None:
        try:
            pynvml.nvmlEventSetWait_v2(events, milliseconds)
        except pynvml.NVMLError as error:
            codes.append(error.value)

    threading.Thread(target=wait, daemon=True).start()
    wait_for("the wait", pynvml.nvmlLib.waits)
    return codes


def test_the_library_ends_after_waits_and_a_set_that_is_left_holds_its_gpu(start: Start) -> None:
    machine = start("A30", "A30")
    codes = ended_waits(500)
    pynvml.nvmlShutdown()
    assert codes == [Return.TIMEOUT]
    assert [holder.gpus for holder in clients(machine.directory)] == [(machine.gpu(0).uuid,)]


def slice_of(profile_id: int, start: int, size: int) -> tuple[object, object, str]:
    instance = create_at(device(), profile_id, start, size)
    compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    return instance, compute, pynvml.nvmlDeviceGetUUID(mig_device(compute))


@pytest.mark.parametrize("of_the_place", [False, True])
def test_a_mig_devices_uuid_is_new_or_that_of_its_place(
    start: Start, *, of_the_place: bool
) -> None:
    machine = start("A30")
    machine.configure(variants=Variants(mig_uuid="place" if of_the_place else "new"))
    instance, compute, first = slice_of(14, 0, 1)
    pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)
    _, _, second = slice_of(14, 0, 1)
    _, _, elsewhere = slice_of(14, 1, 1)
    assert (first == second) is of_the_place
    assert elsewhere not in {first, second}


# -- injected faults hit the calls that they name, and no other


CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


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
