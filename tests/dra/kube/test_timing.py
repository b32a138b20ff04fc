from datetime import datetime, timedelta, timezone

from dra.kube.timing import (
    FIRST_SECONDS,
    LONGEST_SECONDS,
    Backoff,
    LeftOut,
    rfc3339,
    rfc3339_micro,
)


def test_exact_delays_double_to_the_limit_and_start_over() -> None:
    backoff = Backoff(first=0.5, limit=3.0, jitter=0.0)
    assert [backoff.next_delay() for _ in range(4)] == [0.5, 1.0, 2.0, 3.0]
    assert backoff.failures == 4
    assert backoff.next_delay(at_least=9.0) == 9.0
    backoff.reset()
    assert backoff.next_delay(at_least=None) == 0.5


def test_a_pause_may_begin_again_and_the_next_is_longer() -> None:
    pause = Backoff(first=10.0, limit=30.0, jitter=0.0)
    assert pause.left(5.0) == 0.0
    pause.fail(100.0)
    assert (pause.left(104.0), pause.left(111.0)) == (6.0, 0.0)
    pause.postpone(111.0)
    assert pause.left(111.0) == 10.0
    pause.fail(121.0)
    assert (pause.left(121.0), pause.until) == (20.0, 141.0)


def test_what_fails_once_it_was_let_in_stays_out_longer_until_it_has_been_well_for_long() -> None:
    now = 0.0
    left_out: LeftOut[str] = LeftOut(lambda: now)
    assert not left_out.remembered()
    left_out.fail("a")
    now = 5.0
    left_out.fail("a")  # while it is out: from now on, and no longer than before
    assert left_out.due == 5.0 + FIRST_SECONDS
    assert left_out.expire() == []
    assert left_out.out() == {"a"}
    now += FIRST_SECONDS
    assert left_out.expire() == ["a"]
    assert not left_out.out()
    assert left_out.remembers("a")
    left_out.fail("a")
    assert left_out.due == now + 2 * FIRST_SECONDS
    now += 2 * FIRST_SECONDS
    assert left_out.expire() == ["a"]
    assert left_out.due == now + LONGEST_SECONDS
    now += LONGEST_SECONDS
    assert left_out.expire() == []
    assert not left_out.remembered()
    left_out.fail("a")
    assert left_out.due == now + FIRST_SECONDS


def test_times_are_written_in_utc_whatever_zone_they_are_in() -> None:
    moment = datetime(2026, 3, 1, 1, 2, 3, 45, tzinfo=timezone(timedelta(hours=2)))
    assert rfc3339(moment) == "2026-02-28T23:02:03Z"
    assert rfc3339_micro(moment) == "2026-02-28T23:02:03.000045Z"
