"""What the simulated driver does where no source settles it: each variant and its opposite."""

import threading

import pynvml
import pytest

from sim.nvml.codes import Return
from sim.nvml.variants import Variants
from tests.sim.nvml.calls import device, refused
from tests.sim.nvml.conftest import Start
from tests.waiting import wait_for


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
    assert pynvml.nvmlDeviceGetIndex(other) == 1
    machine.configure(variants=Variants(after_loss="same"))
    device(0)
    machine.configure(variants=Variants(after_loss="anew"))
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    device(0)


@pytest.mark.parametrize("stays", [False, True])
def test_waits_end_with_the_library_or_stay(start: Start, *, stays: bool) -> None:
    machine = start("A30")
    machine.configure(variants=Variants(shutdown="hang" if stays else "end"))
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(device(), pynvml.nvmlEventTypeXidCriticalError, events)
    codes: list[int] = []

    def wait() -> None:
        try:
            pynvml.nvmlEventSetWait_v2(events, 3_600_000)
        except pynvml.NVMLError as error:
            codes.append(error.value)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    wait_for("the wait", lambda: pynvml.nvmlLib._session.waits)
    pynvml.nvmlShutdown()
    if stays:
        waiting.join(1.0)
        assert waiting.is_alive()
        machine.configure(variants=Variants())
    wait_for("its end", lambda: codes)
    assert codes == [Return.UNINITIALIZED]
