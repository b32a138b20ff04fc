import threading
import time

import pytest

from dra.common.resources import PODS
from dra.kube import client as transport
from dra.kube.client import KubeApi
from dra.kube.errors import UnavailableError
from dra.kube.http import LARGEST_BYTES, SMALL_BYTES, WatchEvent, WatchStream
from tests.dra.kube.stub import Stub, events, eventually, thing
from tests.helpers.waiting import PATIENCE


def watch(api: KubeApi, *, seconds: float = 300) -> WatchStream:
    return api.watch(
        PODS,
        namespace="ns",
        label_selector="a=b",
        field_selector="c=d",
        resource_version="7",
        timeout_seconds=seconds,
    )


def test_events_may_be_cut_anywhere_on_the_way(stub: Stub, api: KubeApi) -> None:
    given = [("ADDED", thing("a", note="ä€😀 \\n")), ("MODIFIED", thing("a", version=2))]
    stub.watches.append(events(*given, split=3))
    assert [(event.type, event.object) for event in watch(api)] == given


def test_an_event_arrives_while_the_watch_goes_on(stub: Stub, api: KubeApi) -> None:
    stub.watches.append(events(("ADDED", thing("a")), then="hang"))
    stream = watch(api)
    assert next(stream) == WatchEvent("ADDED", thing("a"), "1", "a", "ns")
    stream.close()
    assert list(stream) == []


def test_an_event_that_is_too_large_ends_the_watch(stub: Stub, api: KubeApi) -> None:
    stub.watches += [
        events(("ADDED", thing("a", spec="x" * SMALL_BYTES * 3)), ("ADDED", thing("b"))),
        events(("ADDED", thing("a", spec="x" * (LARGEST_BYTES + 2 * SMALL_BYTES))), then="hang"),
    ]
    assert [event.name for event in watch(api)] == ["a", "b"]
    with pytest.raises(UnavailableError, match="an event of more than"):
        next(watch(api))


def test_close_wakes_a_reader_and_hangs_up(stub: Stub, api: KubeApi) -> None:
    stub.watches.append(events(then="hang"))
    stream = watch(api)
    reader = threading.Thread(target=lambda: list(stream))
    reader.start()
    stream.close()
    reader.join(PATIENCE)
    assert not reader.is_alive()
    eventually(stub.hung_up.is_set)
    stream.close()


def test_a_broken_connection_is_an_error_and_a_proper_end_is_not(stub: Stub, api: KubeApi) -> None:
    stub.watches += [events(("ADDED", thing("a")), then="drop"), events(("ADDED", thing("a")))]
    stream = watch(api)
    assert next(stream).type == "ADDED"
    with pytest.raises(UnavailableError, match="watch of pods broke"):
        next(stream)
    assert len(list(watch(api))) == 1


def test_silence_beyond_the_time_of_the_watch_is_a_broken_connection(
    stub: Stub, api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_WATCH_SLACK_SECONDS", 0.2)
    stub.watches.append(events(then="hang"))
    stream = watch(api, seconds=0.2)
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="timed out"):
        next(stream)
    assert time.monotonic() - began > 0.3


@pytest.mark.parametrize("kind", ["", "BOGUS"])
def test_a_line_that_is_no_event_is_an_error(stub: Stub, api: KubeApi, kind: str) -> None:
    stub.watches.append(events((kind, thing("a"))))
    with pytest.raises(UnavailableError, match="sent no event"):
        list(watch(api))
