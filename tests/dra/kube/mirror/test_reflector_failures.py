"""A reflector when the server, the network or the consumer fails."""

import logging
from typing import Any

import pytest

from dra.kube.reflector import Change
from tests.dra.kube.clocks import FakeClock
from tests.dra.kube.mirror.mirrors import Start, bookmark, lists, summary, watched_versions
from tests.dra.kube.stub import (
    Stub,
    drop,
    events,
    eventually,
    listing,
    refuse,
    thing,
)
from tests.helpers.waiting import PATIENCE


@pytest.mark.parametrize(
    "fault", [drop, refuse(500), refuse(403, "Forbidden"), events(then="drop")]
)
def test_other_failures_of_a_watch_continue_where_it_was(
    stub: Stub, start: Start, fault: Any
) -> None:
    stub.calls.append(listing(version=10))
    stub.watches += [events(bookmark(15)), fault, fault, fault]
    start()
    # A dropped connection without any answer is tried once more at once.
    eventually(lambda: not stub.watches and len(watched_versions(stub)) >= 4)
    assert set(watched_versions(stub)[1:]) == {"15"}
    assert lists(stub) == 1


def test_a_first_list_that_fails_is_repeated_until_it_succeeds(
    stub: Stub, start: Start, clock: FakeClock
) -> None:
    stub.calls += [refuse(403, "Forbidden"), refuse(500), drop, drop, listing(thing("a"))]
    reflector = start()
    assert reflector.wait_synced(PATIENCE)
    assert len(reflector.store) == 1
    assert len(clock.waits) == 3


def test_pauses_grow_with_jitter_to_a_limit_and_start_over_after_progress(
    stub: Stub, start: Start, clock: FakeClock
) -> None:
    stub.calls.append(listing(version=10))
    stub.watches += [refuse(500)] * 9 + [events(bookmark(11))] + [refuse(500)] * 2
    start()
    eventually(lambda: len(watched_versions(stub)) == 13)
    ceilings = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 0.2, 0.4]
    assert len(clock.waits) == len(ceilings)
    for pause, ceiling in zip(clock.waits, ceilings, strict=True):
        assert ceiling / 2 <= pause <= ceiling
    assert len({pause / ceiling for pause, ceiling in zip(clock.waits, ceilings, strict=True)}) > 5


def test_the_pause_that_the_server_asks_for_is_kept(
    stub: Stub, start: Start, clock: FakeClock
) -> None:
    stub.calls += [refuse(429, "TooManyRequests", retry_after=700), listing(version=10)]
    stub.watches.append(refuse(429, "TooManyRequests", retry_after=800))
    start()
    eventually(lambda: len(watched_versions(stub)) == 2)
    assert clock.waits == [700, 800]


@pytest.mark.parametrize("end", [events(), refuse(410, "Expired")])
def test_watches_that_end_at_once_are_not_repeated_without_pause(
    stub: Stub, start: Start, clock: FakeClock, end: Any
) -> None:
    stub.calls += [listing(version=10)] * 6
    stub.watches += [end] * 5
    start()
    eventually(lambda: len(watched_versions(stub)) == 6)
    assert len(clock.waits) == 5
    assert clock.waits[-1] > 1


def test_a_consumer_that_raises_is_logged_and_the_mirror_goes_on(
    stub: Stub, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    stub.calls.append(listing(thing("a"), thing("b"), version=10))
    stub.watches.append(events(("ADDED", thing("c", version=11)), then="hang"))
    names: list[str] = []

    def failing(change: Change) -> None:
        names.append(summary(change)[1])
        raise RuntimeError("the consumer's own mistake")

    reflector = start(failing)
    eventually(lambda: "handling 'added' of c failed" in caplog.text)
    assert names == ["a", "b", "c"]
    assert reflector.synced
    assert lists(stub) == 1
    assert "the consumer's own mistake" in caplog.text


def test_an_object_that_it_cannot_understand_does_not_end_the_mirror(
    stub: Stub, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    stub.calls += [listing(version=10), listing(version=20)]
    stub.watches.append(events(("ADDED", {"no": "metadata"})))
    start()
    eventually(lambda: watched_versions(stub) == ["10", "20"])
    assert "unexpected failure" in caplog.text


def test_a_long_outage_is_told_ever_more_rarely(
    stub: Stub, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "dra.kube.reflector")
    stub.calls.append(listing(version=10))
    stub.watches += [refuse(500, message="etcd is down")] * 10 + [events(bookmark(11))]
    start()
    eventually(lambda: len(watched_versions(stub)) == 12)
    told = [r for r in caplog.records if "etcd is down" in r.getMessage()]
    assert len(told) == 10
    assert sum(record.levelno >= logging.WARNING for record in told) == 3
    assert "recovered after 10 failures" in caplog.text
