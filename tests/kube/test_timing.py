import random
import threading
from datetime import UTC, datetime, timedelta, timezone

from dra.kube.timing import Backoff, SystemClock, rfc3339, rfc3339_micro


def test_backoff_survives_years_of_failures() -> None:
    backoff = Backoff(first=0.2, limit=30, rng=random.Random(1))
    backoff.failures = 10**9
    assert 15 <= backoff.next_delay() <= 30


def test_the_system_clock_sleeps_until_the_event_is_set() -> None:
    clock = SystemClock()
    event = threading.Event()
    before = clock.monotonic()
    assert not clock.wait(event, 0.05)
    assert not clock.wait(event, -1)
    assert clock.monotonic() - before >= 0.05
    threading.Timer(0.05, event.set).start()
    assert clock.wait(event, threading.TIMEOUT_MAX)
    assert datetime.now(UTC) <= clock.now() <= datetime.now(UTC)


def test_times_are_written_in_utc_whatever_zone_they_are_in() -> None:
    moment = datetime(2026, 3, 1, 1, 2, 3, 45, tzinfo=timezone(timedelta(hours=2)))
    assert rfc3339(moment) == "2026-02-28T23:02:03Z"
    assert rfc3339_micro(moment) == "2026-02-28T23:02:03.000045Z"
