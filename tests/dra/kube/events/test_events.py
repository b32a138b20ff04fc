"""Events as they are stored: their form, their names, and when one is counted up."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dra.kube import events
from dra.kube.events import EventLimits
from tests.dra.kube.clocks import FakeClock
from tests.dra.kube.events.recorders import EVENTS, NODE, OK, POD, Make, sent
from tests.dra.kube.stub import Stub, drop, eventually, refuse, thing
from tests.helpers.waiting import PATIENCE


def test_an_event_has_the_form_that_kubectl_describe_looks_for(stub: Stub, make: Make) -> None:
    stub.calls.append(OK)
    recorder = make(host="gpu-1")
    recorder.emit(POD, "WaitingForSlice", "no 1g.5gb is free", warning=True)
    assert recorder.flush(PATIENCE)
    (request,) = stub.requests
    assert (request.method, request.path) == ("POST", EVENTS)
    name = request.body["metadata"].pop("name")
    assert name.startswith("train-0.")
    assert len(name) == len("train-0.") + 16
    assert request.body == {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"namespace": "team"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "train-0",
            "namespace": "team",
            "uid": "uid-train-0",
        },
        "type": "Warning",
        "reason": "WaitingForSlice",
        "message": "no 1g.5gb is free",
        "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "source": {"component": "mig.dra.dev/controller", "host": "gpu-1"},
        "reportingComponent": "mig.dra.dev/controller",
        "reportingInstance": "gpu-1",
    }
    assert recorder.dropped == 0


def test_an_event_that_expired_on_the_server_is_created_again(
    stub: Stub, make: Make, clock: FakeClock
) -> None:
    stub.calls += [OK, refuse(404, "NotFound"), OK]
    recorder = make()
    for _ in range(2):
        recorder.emit(POD, "Waiting", "full")
        assert recorder.flush(PATIENCE)
        clock.at += 60
    assert [method for method, _ in sent(stub)] == ["POST", "PATCH", "POST"]
    assert recorder.dropped == 0


@pytest.mark.parametrize(
    ("message", "expected"),
    [("x" * 1024, "x" * 1024), ("x" * 1025, "x" * 1021 + "…"), ("ä" * 600, "ä" * 510 + "…")],
)
def test_a_message_is_cut_to_1024_bytes_between_letters(
    stub: Stub, make: Make, message: str, expected: str
) -> None:
    stub.calls.append(OK)
    recorder = make()
    recorder.emit(POD, "Waiting", message)
    assert recorder.flush(PATIENCE)
    assert stub.requests[0].body["message"] == expected
    assert len(expected.encode()) <= 1024


# -- how events are sent: beside the program's work, in limits, and through failures


def test_what_waits_to_be_sent_is_counted_without_requests(
    stub: Stub, make: Make, clock: FakeClock
) -> None:
    gate = threading.Event()

    def slowly(handler: Any) -> None:
        assert gate.wait(PATIENCE)
        OK(handler)

    stub.calls += [slowly, OK]
    recorder = make()
    recorder.emit(NODE, "First", "keeps the sender busy")
    eventually(lambda: len(stub.requests) == 1)
    for _ in range(100):
        recorder.emit(POD, "Waiting", "full")
        clock.at += 1
    assert not recorder.flush(0.05)
    gate.set()
    assert recorder.flush(PATIENCE)
    assert len(stub.requests) == 2
    body = stub.requests[1].body
    assert (body["count"], body["lastTimestamp"]) == (100, "2026-01-01T00:01:39Z")
    assert recorder.dropped == 0


def test_one_object_cannot_flood_the_server_and_others_are_not_held_up(
    stub: Stub, make: Make, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.calls += [OK] * 20
    monkeypatch.setattr(events, "_BURST", 3)
    recorder = make()
    for number in range(10):
        recorder.emit(POD, "Waiting", f"reason {number}")
    recorder.emit(NODE, "Fine", "ok")
    assert recorder.flush(PATIENCE)
    assert len(stub.requests) == 4
    assert recorder.dropped == 7
    clock.at += 125
    for number in range(10):
        recorder.emit(POD, "Waiting", f"later {number}")
    assert recorder.flush(PATIENCE)
    assert len(stub.requests) == 6


def test_events_of_one_namespace_neither_delay_nor_push_out_those_of_another(
    stub: Stub, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def slowly(handler: Any) -> None:
        assert gate.wait(PATIENCE)
        OK(handler)

    stub.calls += [slowly, *[OK] * 5]
    monkeypatch.setattr(events, "_MOST_WAITING", 5)
    recorder = make()
    recorder.emit(POD, "First", "keeps the sender busy")
    eventually(lambda: len(stub.requests) == 1)
    recorder.emit(thing("early", namespace="few"), "Waiting", "early")
    for number in range(20):
        recorder.emit(POD, "Waiting", f"many {number}")
    recorder.emit(thing("late", namespace="other"), "Waiting", "late")
    gate.set()
    assert recorder.flush(PATIENCE)
    messages = [request.body["message"] for request in stub.requests[1:]]
    assert messages == ["early", "many 17", "late", "many 18", "many 19"]


def test_an_event_that_was_stored_although_the_answer_was_lost_is_sent_once(
    stub: Stub, make: Make, clock: FakeClock
) -> None:
    stub.calls += [drop, refuse(409, "AlreadyExists"), OK]
    recorder = make()
    for _ in range(2):
        recorder.emit(POD, "Waiting", "full")
        assert recorder.flush(PATIENCE)
    assert [method for method, _ in sent(stub)] == ["POST", "POST", "PATCH"]
    assert recorder.dropped == 0


def test_a_refused_event_is_dropped_with_a_warning_and_the_next_is_sent(
    stub: Stub, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    stub.calls += [refuse(403, "Forbidden", "no create on events"), OK]
    recorder = make()
    recorder.emit(POD, "Waiting", "full")
    recorder.emit(POD, "Waiting", "still full")
    assert recorder.flush(PATIENCE)
    assert len(stub.requests) == 2
    assert recorder.dropped == 1
    assert "no create on events" in caplog.text


def test_a_server_that_stays_away_costs_the_event_not_the_program(stub: Stub, make: Make) -> None:
    stub.calls += [refuse(500)] * 4 + [OK]
    recorder = make()
    recorder.emit(POD, "Waiting", "full")
    recorder.emit(POD, "Waiting", "still full")
    assert recorder.flush(PATIENCE)
    assert [request.body["message"] for request in stub.requests] == ["full"] * 4 + ["still full"]
    assert recorder.dropped == 1


def test_close_sends_what_waits_and_takes_nothing_more(stub: Stub, make: Make) -> None:
    stub.calls += [OK, OK]
    recorder = make()
    recorder.emit(POD, "Waiting", "full")
    recorder.emit(POD, "Waiting", "still full")
    recorder.close(PATIENCE)
    recorder.close(PATIENCE)
    recorder.emit(POD, "Waiting", "too late")
    assert len(stub.requests) == 2
    assert recorder.dropped == 1
    eventually(lambda: not any(t.name == "events" for t in threading.enumerate()))


def test_many_events_are_sent_in_pauses_of_other_work(
    stub: Stub, make: Make, clock: FakeClock
) -> None:
    stub.calls.extend([OK] * 8)
    recorder = make(limits=EventLimits(at_once=3, pause_seconds=0.5))
    for number in range(8):
        recorder.emit(thing(f"pod-{number}", namespace="team"), "Allocated", "a slice")
    eventually(lambda: len(stub.requests) == 8)
    assert clock.waits == [0.5] * 5
