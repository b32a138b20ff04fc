from __future__ import annotations

import threading
import time
from copy import deepcopy
from typing import Any

import pytest

from dra.common.resources import PODS, Obj
from dra.kube.client import KubeApi
from dra.kube.reflector import DOUBTFUL_SECONDS, Change, Reflector
from tests.dra.kube.clocks import FakeClock
from tests.dra.kube.mirror.mirrors import Seen, Start, bookmark, lists, summary, watched_versions
from tests.dra.kube.stub import (
    Answer,
    Handler,
    Stub,
    drop,
    events,
    eventually,
    hang,
    listing,
    refuse,
    reply,
    status_object,
    thing,
)
from tests.helpers.waiting import PATIENCE

TOO_LARGE = {"causes": [{"reason": "ResourceVersionTooLarge"}]}


def test_it_lists_then_follows_and_remembers_where_it_was(
    stub: Stub, start: Start, seen: Seen
) -> None:
    a2 = thing("a", version=12)
    stub.calls.append(listing(thing("a"), version=10))
    stub.watches += [
        events(("ADDED", thing("b", version=11)), ("MODIFIED", a2)),
        events(("DELETED", thing("b", version=13)), bookmark(20)),
    ]
    reflector = start(seen, namespace="ns")
    assert reflector.wait_synced(PATIENCE)
    eventually(lambda: len(watched_versions(stub)) == 3)
    assert seen.summaries == [
        ("added", "a", None, "1"),
        ("added", "b", None, "11"),
        ("modified", "a", "1", "12"),
        ("deleted", "b", "13", None),
    ]
    assert watched_versions(stub) == ["10", "12", "20"]
    assert reflector.store.list() == [a2]
    assert reflector.store.get("a", "ns") == a2
    assert reflector.store.get("b", "ns") is None
    assert reflector.store.get("a") is None
    assert lists(stub) == 1


def test_synced_means_that_the_whole_first_list_was_reported(stub: Stub, start: Start) -> None:
    stub.calls += [listing(thing("a"), version=10, token="more"), listing(thing("b"), version=10)]
    may_go_on = threading.Event()
    names: list[str] = []

    def slow(change: Change) -> None:
        assert may_go_on.wait(PATIENCE)
        names.append(summary(change)[1])

    reflector = start(slow)
    eventually(lambda: lists(stub) == 1)
    assert not reflector.wait_synced(0.05)
    assert not reflector.synced
    may_go_on.set()
    assert reflector.wait_synced(PATIENCE)
    assert names == ["a", "b"]


@pytest.mark.parametrize(
    "expiry", [events(("ERROR", status_object(410, "Expired"))), refuse(410, "Expired")]
)
def test_after_an_expired_version_the_difference_is_reported_as_if_watched(
    stub: Stub, start: Start, seen: Seen, expiry: Any
) -> None:
    stub.calls += [
        listing(thing("gone"), thing("same"), thing("changed"), thing("reborn"), version=10),
        listing(
            thing("same"),
            thing("changed", version=18),
            thing("reborn", version=19, uid="another"),
            thing("fresh", version=17),
            version=20,
        ),
    ]
    stub.watches.append(expiry)
    start(seen)
    eventually(lambda: watched_versions(stub) == ["10", "20"])
    assert seen.summaries[4:] == [
        ("modified", "changed", "1", "18"),
        ("deleted", "reborn", "1", None),
        ("added", "reborn", None, "19"),
        ("added", "fresh", None, "17"),
        ("deleted", "gone", "1", None),
    ]


def test_stored_and_reported_objects_are_never_changed_afterwards(
    stub: Stub, start: Start, seen: Seen
) -> None:
    stub.calls += [listing(thing("a"), version=10), listing(thing("a", version=30), version=30)]
    stub.watches += [
        events(("MODIFIED", thing("a", version=11)), ("ERROR", status_object(410, "Expired")))
    ]
    copies: list[Obj | None] = []

    def remember(change: Change) -> None:
        seen(change)
        copies.extend(deepcopy([change.old, change.new]))

    start(remember)
    eventually(lambda: len(copies) == 6)
    assert [obj for change in seen.changes for obj in (change.old, change.new)] == copies


@pytest.mark.parametrize("phase", ["watching", "listing", "waiting"])
def test_stop_returns_promptly_whatever_it_is_doing(stub: Stub, hasty: KubeApi, phase: str) -> None:
    if phase == "listing":
        stub.calls.append(hang)
    elif phase == "waiting":
        stub.calls.append(refuse(429, "TooManyRequests", retry_after=600))
    else:
        stub.calls.append(listing(version=10))
    reflector = Reflector(hasty, PODS)
    reflector.start()
    eventually(lambda: len(stub.requests) == (2 if phase == "watching" else 1))
    began = time.monotonic()
    reflector.stop()
    # A list in flight is not interrupted, it has the transport's budget (1 s here).
    assert time.monotonic() - began < PATIENCE
    assert not any(t.name == "reflector pods" for t in threading.enumerate())
    if phase == "watching":
        eventually(stub.hung_up.is_set)
    reflector.stop()


def test_after_a_restore_of_etcd_every_object_is_reported_anew(stub: Stub, start: Start) -> None:
    a, b, gone = thing("a", version=5), thing("b", version=6), thing("gone", version=20)
    stub.calls += [listing(a, b, gone, version=20), listing(a, thing("b", version=4), version=8)]
    stub.watches.append(refuse(504, "Timeout", "Too large resource version", details=TOO_LARGE))
    changes: list[Change] = []
    start(changes.append, namespace="ns")
    eventually(lambda: watched_versions(stub) == ["20", "8"])
    told = [(c.kind, (c.new or c.old or {})["metadata"]["name"], c.rewound) for c in changes[3:]]
    assert told == [("modified", "a", True), ("modified", "b", True), ("deleted", "gone", False)]


def test_after_a_restore_that_raises_the_version_what_has_become_older_is_true(
    stub: Stub, start: Start
) -> None:
    """As `etcdutl snapshot restore --bump-revision --mark-compacted` does."""
    a, b = thing("a", version=5), thing("b", version=20)
    stub.calls += [listing(a, b, version=20), listing(a, thing("b", version=6), version=1000)]
    stub.watches.append(refuse(410, "Expired"))
    changes: list[Change] = []
    start(changes.append, namespace="ns")
    eventually(lambda: watched_versions(stub) == ["20", "1000"])
    told = [(c.kind, (c.new or {})["metadata"]["name"], c.rewound) for c in changes[2:]]
    assert told == [("modified", "b", True)]


def silent(clock: FakeClock) -> Answer:
    """A watch that ends after its time without an event."""

    def answer(handler: Handler) -> None:
        clock.at += DOUBTFUL_SECONDS
        events()(handler)

    return answer


def test_a_watch_that_stays_silent_after_a_restore_of_etcd_is_noticed(
    stub: Stub, start: Start, clock: FakeClock
) -> None:
    a = thing("a", version=5)
    stub.calls += [listing(a, version=20), listing(a, version=8), listing(a, version=9)]
    stub.watches.append(silent(clock))
    changes: list[Change] = []
    start(changes.append, namespace="ns")
    eventually(lambda: watched_versions(stub) == ["20", "9"])
    assert [(c.kind, c.rewound) for c in changes] == [("added", False), ("modified", True)]


@pytest.mark.parametrize("version", [20, 21])
def test_a_watch_in_which_nothing_happened_goes_on(
    stub: Stub, start: Start, clock: FakeClock, version: int
) -> None:
    stub.calls += [listing(thing("a"), version=20), listing(version=version)]
    stub.watches += [silent(clock), events(bookmark(22))]
    changes: list[Change] = []
    start(changes.append)
    eventually(lambda: watched_versions(stub) == ["20", "20", "22"])
    assert lists(stub) == 2
    assert stub.requests[2].query["limit"] == "1"
    assert [c.kind for c in changes] == ["added"], "what is asked is the version alone"


def test_what_was_left_out_is_recalled(stub: Stub, start: Start, seen: Seen) -> None:
    stub.calls += [
        listing(thing("a"), thing("b", version=2), version=10),
        refuse(500, message="etcd is down"),
        reply(thing("a", version=1)),
        refuse(404, "NotFound"),
    ]
    reflector = start(seen)
    eventually(lambda: watched_versions(stub) == ["10"])
    reflector.store.leave_out(thing("a"))
    reflector.store.leave_out(thing("b", version=1))
    assert [obj["metadata"]["name"] for obj in reflector.store.list()] == ["b"], "b has changed"
    reflector.recall("a", "ns")
    eventually(lambda: len(seen.changes) == 3)
    assert seen.summaries[2] == ("added", "a", None, "1")
    reflector.recall("gone", "ns")
    eventually(lambda: not stub.calls)
    assert len(seen.changes) == 3
    assert len(reflector.store) == 2


def test_a_recalled_object_that_has_gone_meanwhile_is_asked_for_again(
    stub: Stub, start: Start, seen: Seen
) -> None:
    gone = threading.Event()
    known: list[Reflector] = []

    def late(handler: Handler) -> None:
        for change in known[0].store.remove(thing("a")):  # as the watch does
            seen(change)
        gone.set()
        reply(thing("a"))(handler)

    stub.calls += [listing(thing("a"), version=10), late, refuse(404, "NotFound")]
    known.append(start(seen))
    eventually(lambda: watched_versions(stub) == ["10"])
    known[0].store.leave_out(thing("a"))
    known[0].recall("a", "ns")
    eventually(lambda: gone.is_set() and not stub.calls)
    known[0].stop()
    assert len(known[0].store) == 0
    assert [change.kind for change in seen.changes] == ["added"]


# -- a reflector when the server, the network or the consumer fails


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
