"""What the simulated driver does where no source settles it: each variant and its opposite."""

import threading
import time

import pynvml
import pytest

from sim.nvml.cabi import Return
from sim.nvml.gpus.clients import clients
from sim.nvml.products import Variants
from tests.helpers.waiting import wait_for
from tests.sim.nvml.calls import create_at, device, mig_device, refused
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


def test_waits_outlast_the_library(start: Start) -> None:
    machine = start("A30")
    machine.configure(variants=Variants(shutdown="hang"))
    codes = ended_waits(3_600_000)
    pynvml.nvmlShutdown()
    time.sleep(1.0)
    assert codes == []
    machine.configure(variants=Variants())
    wait_for("its end", lambda: codes)
    assert codes == [Return.UNINITIALIZED]


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


def test_a_gpu_instance_may_linger_after_its_compute_instance(start: Start) -> None:
    machine = start("A30")
    machine.configure(variants=Variants(instance_lingers=2))
    instance, compute, _ = slice_of(14, 0, 1)
    pynvml.nvmlComputeInstanceDestroy(compute)
    for _ in range(2):
        with refused(Return.IN_USE):
            pynvml.nvmlGpuInstanceDestroy(instance)
    pynvml.nvmlGpuInstanceDestroy(instance)
    assert machine.gpu().gpu_instances == []
