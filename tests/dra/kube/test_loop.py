from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta, timezone

import pytest

from dra.kube.loop import Loop
from dra.kube.timing import (
    Backoff,
    rfc3339,
    rfc3339_micro,
)
from tests.dra.kube.clocks import FakeClock
from tests.helpers.waiting import PATIENCE, wait_for


def _exact() -> Backoff:
    return Backoff(first=1.0, limit=4.0, jitter=0.0)


def test_a_turn_that_raises_is_logged_and_repeated_after_a_growing_pause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, turns = FakeClock(), 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if turns == 6:
            loop.stop()
        elif turns != 4:
            raise ZeroDivisionError
        else:
            loop.notify()

    loop = Loop("work", turn, backoff=_exact(), clock=clock)
    with caplog.at_level(logging.ERROR):
        loop.start()
        loop.join(PATIENCE)
    assert clock.waits == [1.0, 2.0, 4.0, 1.0]  # the good turn between them starts over
    assert "work: unexpected failure" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert loop.problem() == ""


def test_a_wish_during_a_turn_is_not_lost() -> None:
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if turns == 1:
            loop.notify()
        else:
            loop.stop()

    loop = Loop("work", turn)
    loop.start()
    loop.join(PATIENCE)
    assert turns == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_by_itself_is_a_problem() -> None:
    def turn() -> None:
        raise KeyboardInterrupt

    loop = Loop("work", turn)
    assert loop.problem() == "work was not started"
    loop.start()
    wait_for("the end", lambda: loop.has_ended)
    assert loop.problem() == "work has ended"


def test_a_turn_may_stop_and_join_its_own_loop(caplog: pytest.LogCaptureFixture) -> None:
    def turn() -> float:
        loop.stop()
        loop.join()
        return 0.0

    loop = Loop("work", turn)
    loop.start()
    loop.join(PATIENCE)
    assert not loop.has_ended
    assert not caplog.records
    wait_for("the end", lambda: not any(t.name == "work" for t in threading.enumerate()))


# -- timing


def test_times_are_written_in_utc_whatever_zone_they_are_in() -> None:
    moment = datetime(2026, 3, 1, 1, 2, 3, 45, tzinfo=timezone(timedelta(hours=2)))
    assert rfc3339(moment) == "2026-02-28T23:02:03Z"
    assert rfc3339_micro(moment) == "2026-02-28T23:02:03.000045Z"
