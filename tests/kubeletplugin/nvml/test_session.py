"""The NVML session: whose handle is used, and what is inside the library when it is shut down."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

import sim.nvml
from kubeletplugin.nvml.errors import DriverUnavailableError, GpuLostError, NvmlError
from kubeletplugin.nvml.events import GpuEvents, Xid
from kubeletplugin.nvml.gpus import discover, mig_mode
from kubeletplugin.nvml.session import Session
from sim.nvml.faults import Fault
from sim.nvml.gpus.clients import clients
from sim.nvml.machine import GpuSpec, Machine
from sim.nvml.products import Variants
from tests.helpers.waiting import wait_for
from tests.kubeletplugin.helpers.impatience import give_up_hanging_calls

GPU = GpuSpec("A30")
SHORT = 0.2
"""A call's deadline, where a test waits for it to pass."""
BOTH_SHUTDOWNS = [Variants(shutdown="waits"), Variants(shutdown="hang")]


@pytest.fixture
def variants() -> Variants:
    """Tests of others have a parameter of that name."""
    return Variants()


@pytest.fixture
def machine(tmp_path: Path, variants: Variants) -> Iterator[Machine]:
    machine = Machine.create(tmp_path / "hw", [GPU, GPU, GPU], variants=variants)
    machine.configure(record_calls=True)
    sim.nvml.install(machine.directory)
    yield machine
    machine.clear_faults()


@pytest.fixture
def session(machine: Machine) -> Session:
    session = Session()
    session.open()
    discover(session)
    return session


def uuids(machine: Machine) -> list[str]:
    return [gpu.uuid for gpu in machine.state().gpus]


def answers(session: Session, uuid: str) -> bool:
    """Whether a GPU can be asked; if so, it is the one that was meant."""
    try:
        handle = session.device(uuid)
        assert session.call(pynvml.nvmlDeviceGetUUID, handle, gpu=uuid) == uuid
    except GpuLostError:
        return False
    return True


def functions(machine: Machine) -> list[str]:
    return [call.function for call in machine.calls()]


@pytest.mark.parametrize("code", [1, 9, 15, 999])
def test_gpus_are_found_although_they_cannot_be_counted(
    machine: Machine, session: Session, code: int
) -> None:
    machine.inject(Fault(function="nvmlDeviceGetCount*", action="return", code=code, times=0))
    machine.lose(1)
    found = discover(session)
    first, _, last = uuids(machine)
    assert [card.uuid for card in found.cards] == [first, last]
    assert len(found.problems) == 2
    machine.inject(Fault(function="nvmlDeviceGetHandleBy*", action="return", code=15, times=0))
    with pytest.raises(NvmlError, match="nvmlDeviceGetCount"):
        discover(session)


def test_a_gpu_whose_place_another_took_is_lost_and_the_other_is_not_it(
    machine: Machine, session: Session
) -> None:
    first, second, _ = uuids(machine)
    with machine.store.change() as state:
        one, two = state.gpus[0], state.gpus[1]
        one.pci_bus_id, two.pci_bus_id = two.pci_bus_id, one.pci_bus_id
    session.reopen(1.0)
    with pytest.raises(GpuLostError, match=f"at its PCI address .* is now {second}"):
        session.device(first)
    discover(session)
    assert answers(session, first)


def listener(session: Session, uuid: str) -> Callable[[], bool]:
    """Waits for events in a thread, as a watch does; the answer is whether it has ended."""

    def listen() -> None:
        events = GpuEvents(session, uuid)
        while events.next(SHORT, lambda: False) is not None:
            pass

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    return lambda: not thread.is_alive()


@pytest.mark.parametrize("variants", BOTH_SHUTDOWNS)
@pytest.mark.parametrize("again", [False, True])
def test_waits_for_events_are_ended_before_nvml_is_shut_down(
    machine: Machine, session: Session, *, again: bool
) -> None:
    ended = [listener(session, uuid) for uuid in uuids(machine)]
    wait_for("waits", lambda: functions(machine).count("nvmlEventSetWait_v2") >= 3)
    assert session.reopen(60.0) if again else session.close(60.0)
    wait_for("their end", lambda: all(done() for done in ended))
    called = functions(machine)
    assert called.count("nvmlShutdown") == 1
    at = called.index("nvmlShutdown")
    assert called[:at].count("nvmlEventSetFree") == 3
    assert "nvmlEventSetWait_v2" not in called[at:]
    assert session.is_open == again


def test_nothing_of_a_gpu_is_open_after_an_event_and_a_shutdown(
    machine: Machine, session: Session
) -> None:
    """Also where the next event is not waited for yet."""
    gpu = uuids(machine)[0]
    events = GpuEvents(session, gpu)
    threading.Timer(0.2, machine.raise_event, (0, 31)).start()
    assert events.next(60.0) == Xid(31)
    assert session.close()
    assert clients(machine.directory) == []


def test_nvml_is_left_alone_rather_than_shut_down_under_a_call(
    machine: Machine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up_hanging_calls(monkeypatch, machine)
    first, second, _ = uuids(machine)
    machine.inject(Fault(id="h", function="nvmlDeviceGetMigMode", action="hang", gpu=0))
    with pytest.raises(NvmlError, match="hangs since"):
        mig_mode(session, first)
    assert not session.reopen(SHORT)
    assert answers(session, second), "others do not notice"
    assert not session.close(SHORT)
    assert "nvmlShutdown" not in functions(machine)
    with pytest.raises(DriverUnavailableError, match="NVML is closed"):
        session.device(second)
    session.open()
    assert answers(session, second)
    machine.clear_faults("h")
    wait_for("the call to come back", lambda: not session.hangs(first))
    assert session.close()
    assert functions(machine).count("nvmlShutdown") == functions(machine).count("nvmlInitWithFlags")


def test_a_call_that_hangs_in_an_operation_is_told_once_and_keeps_the_library_open(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up_hanging_calls(monkeypatch, machine)
    told: list[tuple[str, str]] = []
    session = Session(on_call=lambda name, code, _: told.append((name, code)))
    session.open()
    discover(session)
    first, second, _ = uuids(machine)
    machine.inject(Fault(id="h", function="nvmlDeviceGetMigMode", action="hang", gpu=0))
    told.clear()
    with pytest.raises(NvmlError, match="nvmlDeviceGetMigMode hangs since"):
        session.as_one(lambda: mig_mode(session, first), gpu=first)
    assert not session.reopen(SHORT)
    assert answers(session, second), "others do not notice"
    machine.clear_faults("h")
    wait_for("the call to come back", lambda: not session.hangs(first))
    assert [call for call in told if "MigMode" in call[0]] == [("nvmlDeviceGetMigMode", "HANG")]
    wait_for("the library", lambda: session.reopen(60.0))
