"""Order and joining: the lock of a GPU, the work of a claim, the gate."""

from __future__ import annotations

import threading
import time

import pytest

from kubeletplugin.errors import DeadlineError, StartingError
from kubeletplugin.gate import Gate
from kubeletplugin.locks import FifoLock
from kubeletplugin.works import ClaimWorks
from tests.kubeletplugin.rig import wait_for


def soon() -> float:
    return time.monotonic() + 10


def test_the_lock_goes_to_whoever_waited_longest() -> None:
    lock, order = FifoLock(), list[int]()

    def enter(number: int) -> None:
        with lock:
            order.append(number)

    threads = []
    with lock:
        for number in range(8):
            threads.append(threading.Thread(target=enter, args=(number,)))
            threads[-1].start()
            wait_for("its turn to be noted", lambda n=number: len(lock._waiting) == n + 1)  # type: ignore[misc]
        assert order == []
    for thread in threads:
        thread.join(10)
    assert order == list(range(8))


def test_the_lock_can_be_tried_without_waiting() -> None:
    lock = FifoLock()
    assert lock.try_enter()
    assert not lock.try_enter()
    lock.leave()
    with lock:
        assert not lock.try_enter()
    assert lock.try_enter()


def test_the_lock_is_given_back_after_an_error() -> None:
    lock = FifoLock()
    with pytest.raises(RuntimeError), lock:
        raise RuntimeError
    assert lock.try_enter()


def test_a_repeated_call_joins_the_work_that_is_under_way() -> None:
    works, release, runs = ClaimWorks(), threading.Event(), list[int]()

    def work() -> str:
        runs.append(1)
        assert release.wait(10)
        return "done"

    with pytest.raises(DeadlineError, match="prepare is still under way"):
        works.run("u", "prepare", work, deadline=time.monotonic() + 0.05)
    assert not works.idle("u")
    threading.Timer(0.05, release.set).start()
    assert works.run("u", "prepare", work, deadline=soon()) == "done"
    assert runs == [1]
    assert works.idle("u")


def test_other_work_for_the_same_claim_waits_and_for_another_claim_does_not() -> None:
    works, release, order = ClaimWorks(), threading.Event(), list[str]()

    def prepare() -> None:
        assert release.wait(10)
        order.append("prepare")

    with pytest.raises(DeadlineError):
        works.run("u", "prepare", prepare, deadline=time.monotonic() + 0.01)
    works.run("other", "unprepare", lambda: order.append("other"), deadline=soon())
    threading.Timer(0.05, release.set).start()
    works.run("u", "unprepare", lambda: order.append("unprepare"), deadline=soon())
    assert order == ["other", "prepare", "unprepare"]


def test_an_error_reaches_everybody_who_joined_and_the_next_call_starts_afresh() -> None:
    works, release = ClaimWorks(), threading.Event()

    def fail() -> None:
        assert release.wait(10)
        raise KeyError("lost")

    with pytest.raises(DeadlineError):
        works.run("u", "prepare", fail, deadline=time.monotonic() + 0.01)
    threading.Timer(0.05, release.set).start()
    with pytest.raises(KeyError):
        works.run("u", "prepare", fail, deadline=soon())
    assert works.run("u", "prepare", lambda: 7, deadline=soon()) == 7


def test_nothing_is_begun_when_the_time_is_up() -> None:
    ran: list[int] = []
    with pytest.raises(DeadlineError, match="no time left"):
        ClaimWorks().run("u", "prepare", lambda: ran.append(1), deadline=time.monotonic() - 1)
    assert ran == []


def test_the_gate_makes_callers_wait_for_a_start_but_not_for_a_reason() -> None:
    changes: list[int] = []
    gate = Gate(on_change=lambda: changes.append(1))
    with pytest.raises(StartingError, match="still looking"):
        gate.enter(0.01)
    threading.Timer(0.05, gate.open).start()
    gate.enter(10)
    gate.close("no driver")
    began = time.monotonic()
    with pytest.raises(StartingError, match="no driver"):
        gate.enter(10)
    assert time.monotonic() - began < 5
    assert len(changes) == 2
