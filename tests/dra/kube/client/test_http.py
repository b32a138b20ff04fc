"""Refusals, dropped connections, throttling: what a caller of the transport gets to see."""

import threading

import pytest

from dra.common.resources import EVENTS, NODES, PODS
from dra.kube.client import KubeApi
from dra.kube.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidError,
    KubeError,
    ObjectNotFoundError,
    UnavailableError,
)
from dra.kube.http import HttpClient
from tests.dra.kube.stub import (
    Handler,
    Stub,
    drop,
    eventually,
    refuse,
    reply,
    status_object,
    thing,
)
from tests.helpers.waiting import PATIENCE


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (404, "NotFound", ObjectNotFoundError),
        (409, "Conflict", ConflictError),
        (409, "AlreadyExists", AlreadyExistsError),
        (401, "Unauthorized", ForbiddenError),
        (403, "Forbidden", ForbiddenError),
        (400, "BadRequest", InvalidError),
        (422, "Invalid", InvalidError),
        (410, "Expired", GoneError),
        (410, "", GoneError),
        (429, "TooManyRequests", UnavailableError),
        (500, "InternalError", UnavailableError),
        (503, "", UnavailableError),
        (405, "MethodNotAllowed", KubeError),
    ],
)
def test_a_refusal_becomes_one_error_with_the_servers_words(
    stub: Stub, api: KubeApi, code: int, reason: str, expected: type[KubeError]
) -> None:
    stub.calls.append(refuse(code, reason, "because", details={"name": "c"}))
    with pytest.raises(KubeError) as caught:
        api.get(PODS, "p", namespace="ns")
    error = caught.value
    assert type(error) is expected
    assert (error.status, error.reason, error.message) == (code, reason, "because")
    assert error.details == {"name": "c"}
    assert str(error) == "because"


@pytest.mark.parametrize("body", [b"not json", b"[1]", b""])
def test_an_answer_that_is_no_object_is_an_error(stub: Stub, api: KubeApi, body: bytes) -> None:
    stub.calls.append(reply(body))
    with pytest.raises(UnavailableError, match="no JSON object"):
        api.get(NODES, "n")


def test_a_redirect_is_not_followed_with_the_credentials(stub: Stub, api: KubeApi) -> None:
    stub.calls.append(reply(b"", 302, Location="http://127.0.0.1:9/elsewhere"))
    with pytest.raises(KubeError, match="302"):
        api.get(NODES, "n")
    assert len(stub.requests) == 1


def test_a_read_is_repeated_once_when_the_connection_drops(stub: Stub, api: KubeApi) -> None:
    stub.calls += [drop, reply(thing("p"))]
    assert api.get(PODS, "p", namespace="ns") == thing("p")
    assert len(stub.requests) == 2


def test_a_write_is_never_repeated_when_the_connection_drops(stub: Stub, api: KubeApi) -> None:
    stub.calls += [drop, reply(thing("p"))]
    with pytest.raises(UnavailableError) as caught:
        api.create(PODS, thing("p"))
    assert caught.value.status == 0
    assert len(stub.requests) == 1


@pytest.mark.parametrize("code", [429, 503])
def test_a_throttled_call_is_repeated_when_the_server_says(
    stub: Stub, api: KubeApi, code: int
) -> None:
    stub.calls += [refuse(code, retry_after=0), refuse(code, retry_after=0), reply(thing("p"))]
    assert api.create(PODS, thing("p")) == thing("p")
    assert len(stub.requests) == 3


def test_a_write_that_may_have_been_made_is_the_callers_to_repeat(stub: Stub, api: KubeApi) -> None:
    stub.calls += [refuse(500, "ServerTimeout", retry_after=0), refuse(403, "Forbidden")]
    with pytest.raises(UnavailableError):
        api.create(PODS, thing("p"))
    assert len(stub.requests) == 1


def test_status_details_may_carry_the_pause(stub: Stub, api: KubeApi) -> None:
    stub.calls.append(
        reply(status_object(500, "ServerTimeout", details={"retryAfterSeconds": 900}), 500)
    )
    with pytest.raises(UnavailableError) as caught:
        api.get(EVENTS, "e", namespace="ns")
    assert caught.value.retry_after == 900


def test_closing_ends_the_wait_for_a_throttling_server(stub: Stub, api: KubeApi) -> None:
    patient = KubeApi(HttpClient(api._http._connection, user_agent="t", timeout_seconds=600))
    stub.calls.append(refuse(429, retry_after=300))
    errors: list[UnavailableError] = []

    def call() -> None:
        try:
            patient.get(NODES, "n")
        except UnavailableError as error:
            errors.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    eventually(lambda: stub.requests)
    patient.close()
    caller.join(PATIENCE)
    assert [error.status for error in errors] == [429]


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"HTTP/1.1 200",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 two OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    ],
)
def test_an_answer_that_breaks_off_or_is_none_is_an_error(
    stub: Stub, api: KubeApi, wire: bytes
) -> None:
    def break_off(handler: Handler) -> None:
        handler.wfile.write(wire)
        handler.cut_connection()

    stub.calls += [break_off, break_off]
    with pytest.raises(UnavailableError):
        api.create(NODES, thing("n", namespace=""))


def test_a_write_goes_by_a_new_connection_where_the_server_has_ended_the_kept_one(
    stub: Stub, api: KubeApi
) -> None:
    ended = threading.Event()

    def answer_and_end(handler: Handler) -> None:
        handler.send_json(thing("n"), 200, {})
        handler.cut_connection()
        ended.set()

    stub.calls += [answer_and_end, reply(thing("p"))]
    api.get(NODES, "n")
    assert ended.wait(PATIENCE)
    assert api.create(PODS, thing("p")) == thing("p")
    assert len(stub.requests) == 2


def test_a_server_that_sends_a_byte_now_and_then_costs_the_time_budget_once(
    stub: Stub, hasty: KubeApi
) -> None:
    def trickle(handler: Handler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 600\r\n\r\n")
        while not stub.closing.wait(0.05):
            handler.wfile.write(b" ")

    stub.calls += [trickle, trickle]
    with pytest.raises(UnavailableError, match=r"too slowly|timed out"):
        hasty.get(NODES, "n")
