"""Order, joining and repetition: the lock of a GPU, the work of a claim, readiness."""

from __future__ import annotations

import threading

import pytest

from kubeletplugin.claims.node import ClaimTasks
from kubeletplugin.errors import DeadlineError
from kubeletplugin.gpus.gpu import FifoLock
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
