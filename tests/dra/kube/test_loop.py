import logging
import threading

import pytest

from dra.kube.loop import Loop
from dra.kube.timing import Backoff, SystemClock
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


def test_a_wish_does_not_shorten_the_pause_after_a_failure() -> None:
    class Clock(SystemClock):
        def wait(self, event: threading.Event, seconds: float) -> bool:
            del seconds
            failed.set()
            return event.wait(PATIENCE)

    failed, turns = threading.Event(), 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.notify()
        raise ZeroDivisionError

    loop = Loop("work", turn, clock=Clock())
    loop.start()
    assert failed.wait(PATIENCE)
    loop.stop()
    loop.join(PATIENCE)
    assert turns == 1


def test_a_turn_that_waits_for_nothing_comes_again_when_it_is_asked_for() -> None:
    turns = threading.Semaphore(0)
    loop = Loop("work", turns.release)
    loop.start()
    assert turns.acquire(timeout=PATIENCE)
    for _ in range(2):
        loop.notify()
        assert turns.acquire(timeout=PATIENCE)
    loop.stop()
    loop.join(PATIENCE)
    assert not turns.acquire(blocking=False)
    assert not loop.has_ended


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


def test_the_end_ends_pauses_and_every_turn_is_told_to_the_probe() -> None:
    beats, pausing = 0, threading.Event()

    def beat() -> None:
        nonlocal beats
        beats += 1

    def turn() -> None:
        pausing.set()
        assert loop.pause(PATIENCE)

    loop = Loop("work", turn, beat=beat)
    loop.start()
    assert pausing.wait(PATIENCE)
    loop.stop()
    loop.join(PATIENCE)
    assert beats == 1
    assert loop.is_stopping()


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


def test_wishes_while_a_turn_gathers_are_part_of_that_turn() -> None:
    class Clock(FakeClock):
        def wait(self, event: threading.Event, seconds: float) -> bool:
            woken.append((seconds, event.is_set()))
            return super().wait(event, seconds)

    woken: list[tuple[float, bool]] = []
    turns = 0

    def turn() -> float:
        nonlocal turns
        turns += 1
        if turns == 2:
            loop.stop()
            return 0.0
        loop.notify()
        assert not loop.gather(1.0)
        return 5.0

    loop = Loop("work", turn, clock=Clock())
    loop.start()
    loop.join(PATIENCE)
    assert woken == [(1.0, False), (5.0, False)]
