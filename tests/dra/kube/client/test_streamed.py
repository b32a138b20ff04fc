"""Bodies read as they come, of answers as a server may write them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ProtocolError

from dra.kube.streamed import Streamed

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@contextmanager
def answered(wire: bytes) -> Iterator[Streamed]:
    """Answer of a server that sends ``wire`` and closes the connection."""
    ours, servers = socket.socketpair()
    with ours, servers:
        ours.settimeout(10)
        servers.sendall(wire)
        servers.close()
        yield Streamed(cast("HTTPConnection", SimpleNamespace(sock=ours, close=ours.close)), 10)


@pytest.mark.parametrize(
    ("wire", "status", "body"),
    [
        (CHUNKED + b"2\r\n{}\r\nA;x=y\r\n0123456789\r\n0\r\n\r\n", 200, b"{}0123456789"),
        (OK + b"content-length: 3\r\n\r\n123", 200, b"123"),
        (OK + b"Content-Length: 0\r\n\r\n", 200, b""),
        (OK + b"Connection: close\r\n\r\n12345", 200, b"12345"),
        (b"HTTP/1.1 100 Continue\r\na: b\r\n\r\n" + CHUNKED + b"1\r\n1\r\n0\r\n\r\n", 200, b"1"),
        (b"HTTP/1.1 410 Gone\r\nContent-Length: 2\r\n\r\n{}", 410, b"{}"),
    ],
)
def test_a_body_is_read_to_its_end(wire: bytes, status: int, body: bytes) -> None:
    with answered(wire) as answer:
        assert (answer.status, answer.data, answer.read1()) == (status, body, b"")


def test_no_more_is_read_than_wanted() -> None:
    with answered(CHUNKED + b"4\r\nabcd\r\n4\r\nefgh\r\n0\r\n\r\n") as answer:
        assert answer.read(6) == b"abcdef"


@pytest.mark.parametrize(
    "wire", [b"", b"HTTP/1.1 200", b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 two OK\r\n\r\n"]
)
def test_an_answer_without_headers_is_an_error(wire: bytes) -> None:
    with pytest.raises(ProtocolError), answered(wire):
        pass


@pytest.mark.parametrize(
    "wire",
    [
        CHUNKED + b"1\r\n1\r\n",
        CHUNKED + b"9\r\n1",
        CHUNKED + b"1\r\n1\r\nx\r\n",
        OK + b"Content-Length: 2\r\n\r\n1",
        OK + b"Content-Length: 1\r\n\r\n12",
    ],
)
def test_a_body_that_breaks_off_or_goes_on_is_an_error(wire: bytes) -> None:
    with pytest.raises(ProtocolError), answered(wire) as answer:
        assert answer.data == b"never read to its end"
