"""Answers as a server may write them, and connections that it closes between two requests."""

import pytest
from urllib3.exceptions import ProtocolError

from dra.common.resources import NODES
from dra.kube.client import KubeApi
from dra.kube.kept import Answer, Connections, _Reading
from tests.dra.kube.stub import Handler, Stub, eventually, reply, thing

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("wire", "expected", "reusable"),
    [
        (OK + b"Content-Length: 2\r\n\r\n{}", Answer(200, {"content-length": "2"}, b"{}"), True),
        (OK + b"content-length: 0\r\n\r\n", Answer(200, {"content-length": "0"}, b""), True),
        (
            OK
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + b"2\r\n{}\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n",
            Answer(200, {"transfer-encoding": "chunked"}, b"{}0123456789"),
            True,
        ),
        (b"HTTP/1.1 204 No Content\r\n\r\n", Answer(204, {}, b""), True),
        (
            b"HTTP/1.1 100 Continue\r\na: b\r\n\r\nHTTP/1.1 201 \r\nContent-Length: 1\r\n\r\n1",
            Answer(201, {"content-length": "1"}, b"1"),
            True,
        ),
        (
            OK + b"Connection: Close\r\nContent-Length: 1\r\n\r\n1",
            Answer(200, {"connection": "Close", "content-length": "1"}, b"1"),
            False,
        ),
        (
            b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\n1",
            Answer(200, {"content-length": "1"}, b"1"),
            False,
        ),
        (
            OK + b"Warning: a\r\nwarning:b\r\nContent-Length: 1\r\n\r\n1",
            Answer(200, {"warning": "a, b", "content-length": "1"}, b"1"),
            True,
        ),
    ],
)
def test_an_answer_is_read_to_its_end(wire: bytes, expected: Answer, *, reusable: bool) -> None:
    whole, pieces = _Reading(), _Reading()
    assert (whole.feed(wire), whole.reusable) == (expected, reusable)
    assert [pieces.feed(wire[n : n + 1]) for n in range(len(wire) - 1)] == [None] * (len(wire) - 1)
    assert (pieces.feed(wire[-1:]), pieces.reusable) == (expected, reusable)


@pytest.mark.parametrize(
    "wire",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 two OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n12",
        OK + b"Content-Length: -1\r\n\r\n1",
        OK + b"Content-Length: 1\r\n\r\n12",
        (OK + b"Content-Length: 1\r\n\r\n1") * 2,
        OK + b"Transfer-Encoding: chunked\r\n\r\nx\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_an_error(wire: bytes) -> None:
    with pytest.raises(ProtocolError, match="no HTTP"):
        _Reading().feed(wire)


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"HTTP/1.1 200",
        OK + b"Content-Length: 5\r\n\r\n{}",
        OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\n{}",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\n1\r\n",
    ],
)
def test_an_answer_that_breaks_off_is_an_error(stub: Stub, api: KubeApi, wire: bytes) -> None:
    def break_off(handler: Handler) -> None:
        handler.wfile.write(wire)
        handler.cut_connection()

    stub.calls += [reply(thing("n")), break_off]
    api.get(NODES, "n")
    with pytest.raises(ProtocolError, match="before its answer was whole"):
        _connections(api).ask("GET", "/api", {}, None)


def test_a_connection_serves_one_request_after_the_other(stub: Stub, api: KubeApi) -> None:
    ports: list[int] = []

    def answer(handler: Handler) -> None:
        ports.append(handler.client_address[1])
        handler.send_json(thing("n"), 200, {})

    stub.calls += [answer] * 3
    for _ in range(3):
        api.get(NODES, "n")
    assert len(set(ports)) == 1


def test_a_write_goes_out_anew_where_the_server_closed_an_idle_connection(
    stub: Stub, api: KubeApi
) -> None:
    def answer_and_close(handler: Handler) -> None:
        handler.send_json(thing("n"), 200, {})
        handler.cut_connection()

    stub.calls += [answer_and_close, reply(thing("n"))]
    api.get(NODES, "n")
    kept = _connections(api)._idle[0]
    eventually(lambda: not kept.is_quiet())
    assert api.create(NODES, thing("n", namespace="")) == thing("n")


@pytest.mark.parametrize("name", ["user-agent\r\nx: y", "a\0b"])
def test_a_request_of_more_than_one_line_is_never_sent(stub: Stub, api: KubeApi, name: str) -> None:
    stub.calls += [reply(thing("n"))] * 2
    api.get(NODES, "n")
    with pytest.raises(ValueError, match="control characters"):
        _connections(api).ask("GET", "/api", {"a": name}, None)
    with pytest.raises(ValueError, match="control characters"):
        _connections(api).ask("GET", f"/{name}", {}, None)
    assert len(stub.requests) == 1


def _connections(api: KubeApi) -> Connections:
    kept = api._http._kept
    assert kept is not None
    return kept
