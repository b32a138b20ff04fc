"""Order, joining and repetition: the lock of a GPU, the work of a claim, readiness."""

from __future__ import annotations

import threading

import pytest

from kubeletplugin.claims.node import ClaimTasks
from kubeletplugin.common import patiently
from kubeletplugin.errors import BusyError, DeadlineError, PluginError, StartingError
from kubeletplugin.gpus.gpu import FifoLock
from kubeletplugin.nvml.errors import InUseError, NvmlError
from kubeletplugin.telemetry.probes import Readiness
from tests.dra.kube.clocks import FakeClock
from tests.helpers.waiting import PATIENCE, wait_for

SOON, IN_TIME = 0.01, PATIENCE
"""Deadlines by a clock that stands still."""


def claim_tasks() -> ClaimTasks:
    return ClaimTasks(clock=lambda: 0.0)


def release_once_joined(tasks: ClaimTasks, release: threading.Event) -> None:
    """Let the work of claim "u" end as soon as somebody waits for it."""
    _, under_way = tasks._running["u"]

    def wait() -> None:
        wait_for("somebody who joins", lambda: under_way._condition._waiters)  # type: ignore[attr-defined]
        release.set()

    threading.Thread(target=wait).start()


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
        thread.join(PATIENCE)
    assert order == list(range(8))


def test_other_work_for_the_same_claim_waits_and_for_another_claim_does_not() -> None:
    tasks, release, order = claim_tasks(), threading.Event(), list[str]()

    def prepare() -> None:
        assert release.wait(PATIENCE)
        order.append("prepare")

    with pytest.raises(DeadlineError):
        tasks.run("u", "prepare", prepare, deadline=SOON)
    tasks.run("other", "unprepare", lambda: order.append("other"), deadline=IN_TIME)
    release_once_joined(tasks, release)
    tasks.run("u", "unprepare", lambda: order.append("unprepare"), deadline=IN_TIME)
    assert order == ["other", "prepare", "unprepare"]


def test_an_error_reaches_everybody_who_joined_and_the_next_call_starts_afresh() -> None:
    tasks, release = claim_tasks(), threading.Event()

    def fail() -> None:
        assert release.wait(PATIENCE)
        raise KeyError("lost")

    with pytest.raises(DeadlineError):
        tasks.run("u", "prepare", fail, deadline=SOON)
    release_once_joined(tasks, release)
    with pytest.raises(KeyError):
        tasks.run("u", "prepare", fail, deadline=IN_TIME)
    assert tasks.run("u", "prepare", lambda: 7, deadline=IN_TIME) == 7


def test_nothing_is_begun_when_the_time_is_up() -> None:
    ran: list[int] = []
    with pytest.raises(DeadlineError, match="no time left"):
        claim_tasks().run("u", "prepare", lambda: ran.append(1), deadline=-1.0)
    assert ran == []


def test_the_gate_makes_callers_wait_for_a_start_but_not_for_a_reason() -> None:
    changes: list[int] = []
    readiness = Readiness(on_change=lambda: changes.append(1))
    with pytest.raises(StartingError, match="still looking"):
        readiness.wait_ready(0.01)
    threading.Timer(0.05, readiness.set_ready).start()
    readiness.wait_ready(PATIENCE)
    readiness.set_unready("no driver")
    with pytest.raises(StartingError, match="no driver"):
        readiness.wait_ready(threading.TIMEOUT_MAX)
    assert len(changes) == 2


PASSES = BusyError("being removed", passing=True)
LASTS = BusyError("held")
NVML_PASSES = InUseError("nvmlGpuInstanceDestroy", 19)


@pytest.mark.parametrize(
    ("failures", "end", "pauses", "raised"),
    [
        ([], 0.0, [], None),
        ([LASTS], 9.0, [], LASTS),
        ([PASSES], 9.0, [0.1], None),
        ([NVML_PASSES, PASSES], 9.0, [0.1, 0.2], None),
        ([PASSES, LASTS], 9.0, [0.1], LASTS),
        ([PASSES] * 6, 9.0, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0], None),
        ([PASSES] * 4, 0.75, [0.1, 0.2, 0.4], PASSES),
        ([PASSES], 0.05, [], PASSES),
    ],
)
def test_what_passes_is_tried_again_until_the_time_is_up(
    failures: list[PluginError | NvmlError],
    end: float,
    pauses: list[float],
    raised: Exception | None,
) -> None:
    clock, left = FakeClock(), list(failures)

    def attempt() -> str:
        if left:
            raise left.pop(0)
        return "done"

    def run() -> str:
        return patiently(attempt, end=end, longest=1.0, clock=clock)

    if raised is None:
        assert run() == "done"
    else:
        with pytest.raises(type(raised)) as caught:
            run()
        assert caught.value is raised
    assert clock.waits == pauses


def test_the_lock_is_given_back_after_an_error() -> None:
    lock = FifoLock()
    with pytest.raises(RuntimeError), lock:
        raise RuntimeError
    assert lock.try_enter()
