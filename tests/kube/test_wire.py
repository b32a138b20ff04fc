"""Answers in every form that HTTP/1.1 allows, and connections that are used again, or are not."""

import json
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra.kube.errors import NotFoundError, UnavailableError
from dra.kube.resources import NODES, PODS
from dra.kube.transport import KubeApi
from tests.kube.certificates import Certificates
from tests.kube.stub import Handler, Stub, drop, refuse, reply, thing
from tests.waiting import PATIENCE

BODY = json.dumps(thing("n")).encode()
LENGTH = b"Content-Length: %d\r\n\r\n" % len(BODY)


def raw(*pieces: bytes, then: str = "keep") -> Callable[[Handler], None]:
    """Sends bytes, each piece by itself; then keeps the connection or cuts it."""

    def answer(handler: Handler) -> None:
        for piece in pieces:
            handler.wfile.write(piece)
            handler.wfile.flush()
        if then == "cut":
            handler.cut_connection()

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        raw(b"HTTP/1.1 200 OK\r\n" + LENGTH + BODY),
        raw(b"HTTP/1.1 200\r\n" + LENGTH, BODY),
        raw(*(bytes([b]) for b in b"HTTP/1.1 200 OK\r\nX:  y \r\n" + LENGTH + BODY)),
        raw(
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n",
            b"5\r\n" + BODY[:5] + b"\r\n",
            b"%x;name=value\r\n" % len(BODY[5:]) + BODY[5:] + b"\r\n",
            b"0\r\nTrailer: x\r\n\r\n",
        ),
        raw(b"HTTP/1.1 200 OK\r\n\r\n" + BODY, then="cut"),
        raw(b"HTTP/1.0 200 OK\r\n\r\n", BODY[:9], BODY[9:], then="cut"),
        raw(
            b"HTTP/1.1 100 Continue\r\n\r\n",
            b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + LENGTH + BODY,
        ),
    ],
    ids=["length", "no-reason", "by-byte", "chunked", "to-the-end", "old", "interim"],
)
def test_an_answer_is_read_in_each_form(stub: Stub, api: KubeApi, answer: Any) -> None:
    stub.calls += [answer, reply(thing("next"))]
    assert api.get(NODES, "n") == thing("n")
    assert api.get(NODES, "next") == thing("next")


@pytest.mark.parametrize(
    "answer",
    [
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n" + BODY, then="cut"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: lots\r\n\r\n" + BODY, then="cut"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n" + BODY, then="cut"),
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n" + BODY, then="cut"),
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", then="cut"),
        raw(b"HTTP/1.1 200 OK\r\nHalf: a he", then="cut"),
        raw(b"SSH-2.0-server\r\n\r\n", then="cut"),
        raw(b"HTTP/2 200\r\n\r\n", then="cut"),
        raw(b"HTTP/1.1 fine\r\n\r\n", then="cut"),
    ],
    ids=[
        *("short", "no-length", "below-0", "short-chunk", "no-chunk", "half-head"),
        *("other", "http2", "no-status"),
    ],
)
def test_what_is_no_answer_of_http_is_an_error(stub: Stub, api: KubeApi, answer: Any) -> None:
    stub.calls += [answer, reply(thing("p"))]
    with pytest.raises(UnavailableError, match="POST /api/v1/namespaces/ns/pods") as caught:
        api.create(PODS, thing("p"))
    assert caught.value.status == 0
    assert api.create(PODS, thing("p")) == thing("p")


def test_a_head_without_end_is_given_up(stub: Stub, api: KubeApi) -> None:
    stub.calls.append(raw(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000, then="cut"))
    with pytest.raises(UnavailableError, match="head of the answer is too long"):
        api.create(PODS, thing("p"))


def reset(handler: Handler) -> None:
    """Ends the connection as a server does whose program is killed."""
    linger = struct.pack("ii", 1, 0)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.close_connection = True
    socket.close(handler.connection.detach())


def test_a_read_is_repeated_once_when_the_connection_is_reset(stub: Stub, api: KubeApi) -> None:
    stub.calls += [reset, reply(thing("n"))]
    assert api.get(NODES, "n") == thing("n")
    assert len(stub.requests) == 2


def noting(seen: list[int], then: Callable[[Handler], None]) -> Callable[[Handler], None]:
    """Notes the client's port, which is another for each connection."""

    def answer(handler: Handler) -> None:
        seen.append(handler.client_address[1])
        then(handler)

    return answer


def test_a_connection_is_used_for_one_request_after_the_other(stub: Stub, api: KubeApi) -> None:
    seen: list[int] = []
    chunked = raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\nTrailer: x\r\n\r\n",
    )
    for answer in (chunked, reply(thing("n")), refuse(404, "NotFound"), reply(thing("p"), 201)):
        stub.calls.append(noting(seen, answer))
    for _ in range(2):
        assert api.get(NODES, "n") == thing("n")
    with pytest.raises(NotFoundError):
        api.get(NODES, "m")
    api.create(PODS, thing("p"))
    assert len(seen) == 4
    assert len(set(seen)) == 1


@pytest.mark.parametrize(
    "first",
    [
        raw(b"HTTP/1.1 200 OK\r\nConnection: close\r\n" + LENGTH + BODY),
        raw(b"HTTP/1.0 200 OK\r\n" + LENGTH + BODY),
        raw(b"HTTP/1.1 200 OK\r\n" + LENGTH + BODY + b"and more"),
        raw(b"HTTP/1.1 200 OK\r\n" + LENGTH + BODY, then="cut"),
    ],
    ids=["close", "old", "more-than-said", "cut"],
)
def test_a_connection_that_has_ended_is_not_used_again(
    stub: Stub, api: KubeApi, first: Callable[[Handler], None]
) -> None:
    seen: list[int] = []
    over = threading.Event()

    def answer(handler: Handler) -> None:
        first(handler)
        over.set()

    stub.calls += [noting(seen, answer), noting(seen, reply(thing("p")))]
    assert api.get(NODES, "n") == thing("n")
    assert over.wait(PATIENCE)
    assert api.create(PODS, thing("p")) == thing("p")
    assert len(set(seen)) == 2


def test_a_connection_that_fails_makes_room_for_another(stub: Stub, api: KubeApi) -> None:
    for _ in range(40):  # more than the pool holds
        stub.calls += [drop, reply(thing("p"))]
        with pytest.raises(UnavailableError):
            api.create(PODS, thing("p"))
        assert api.create(PODS, thing("p")) == thing("p")


def test_a_server_may_have_a_path_of_its_own(stub: Stub, tmp_path: Path) -> None:
    stub.calls.append(reply(thing("n")))
    config = stub.kubeconfig(tmp_path / "k", cluster={"server": f"{stub.url}/k8s/clusters/c-1/"})
    api = KubeApi.connect(config, user_agent="t", timeout_seconds=PATIENCE)
    assert api.get(NODES, "n") == thing("n")
    assert stub.requests[0].path == "/k8s/clusters/c-1/api/v1/nodes/n"


def test_plain_http_through_a_proxy_names_the_server(stub: Stub, tmp_path: Path) -> None:
    targets: list[str] = []

    def answer(handler: Handler) -> None:
        targets.append(handler.path)
        handler.send_json(thing("n"), 200, {})

    stub.calls.append(answer)
    elsewhere = {"server": "http://elsewhere.invalid:8080", "proxy-url": stub.url}
    config = stub.kubeconfig(tmp_path / "k", cluster=elsewhere)
    api = KubeApi.connect(config, user_agent="t", timeout_seconds=PATIENCE)
    assert api.get(NODES, "n") == thing("n")
    assert targets == ["http://elsewhere.invalid:8080/api/v1/nodes/n"]
    assert stub.requests[0].headers["host"] == "elsewhere.invalid:8080"


def test_over_tls_a_connection_is_kept_and_one_that_ended_is_replaced(
    tls_stub: Stub, certificates: Certificates, tmp_path: Path
) -> None:
    seen: list[int] = []
    for answer in (reply(thing("n")), reply(thing("n")), drop, reply(thing("n"))):
        tls_stub.calls.append(noting(seen, answer))
    config = tls_stub.kubeconfig(
        tmp_path / "k", user=certificates.user(), cluster=certificates.cluster()
    )
    api = KubeApi.connect(config, user_agent="t", timeout_seconds=PATIENCE)
    for _ in range(3):
        assert api.get(NODES, "n") == thing("n")
    assert len(seen) == 4
    assert seen[0] == seen[1] == seen[2]
    assert seen[3] != seen[2]
