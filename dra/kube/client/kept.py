"""Connections to the API server that are kept: a request goes out in one piece, its answer whole.

urllib3 makes the connections, with all that TLS needs. Its requests, over http.client, take three
times the CPU: headers become an e-mail message, and a body passes four layers. Watches, whose
answers do not end, and proxies are left to it.
"""

from __future__ import annotations

import re
import select
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ProtocolError

_MOST_KEPT = 16
_LONGEST_LINE = 65_536
_MOST_HEADERS = 100
_FINAL = 200
_WITHOUT_BODY = (204, 304)
_MOST_SHOWN = 80
_HEX = re.compile(r"[0-9A-Fa-f]{1,15}")
_CONTROLS = re.compile(r"[\0-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Connections:
    """Connections to one server. Thread-safe.

    ``pool`` of urllib3 says how to connect to it, and keeps none itself. ``host`` is for the header
    of that name, ``seconds`` is the longest silence of the server.
    """

    def __init__(self, pool: HTTPConnectionPool, *, host: str, seconds: float) -> None:
        self._pool = pool
        self._host = host
        self._seconds = seconds
        self._closed = False
        self._idle: deque[_Kept] = deque()
        weakref.finalize(self, _close_all, self._idle)

    def close(self) -> None:
        """Close those that are idle, the others after their request."""
        self._closed = True
        _close_all(self._idle)

    def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> Answer:
        """Send one request, whose target and headers are without control characters.

        Raises:
            ProtocolError: the connection broke, or what came is no HTTP.
            HTTPError, OSError: there was no connection, or no answer in time.
            ValueError: the target or a header has control characters.
        """
        kept = self._alive() or _Kept(self._pool, self._seconds)
        try:
            answer, reusable = kept.ask(self._encoded(method, target, headers, body))
        except BaseException:
            kept.close()
            raise
        if reusable and not self._closed and len(self._idle) < _MOST_KEPT:
            self._idle.append(kept)
        else:
            kept.close()
        return answer

    def _encoded(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> bytes:
        if _CONTROLS.search("".join((target, *headers, *headers.values()))):
            raise ValueError(f"{method} {target!r}: target or headers have control characters")
        lines = [
            f"{method} {target} HTTP/1.1\r\nHost: {self._host}\r\nAccept-Encoding: identity\r\n",
            *(f"{name}: {value}\r\n" for name, value in headers.items()),
        ]
        if body is None:
            return "".join((*lines, "\r\n")).encode("latin-1")
        lines.append(f"Content-Length: {len(body)}\r\n\r\n")
        return "".join(lines).encode("latin-1") + body

    def _alive(self) -> _Kept | None:
        """One of the idle ones that the server has not closed meanwhile: a write has one try."""
        with suppress(IndexError):
            while True:
                kept = self._idle.pop()
                if kept.is_quiet():
                    return kept
                kept.close()
        return None


class _Kept:
    """One connection, which is used by one thread at a time."""

    def __init__(self, pool: HTTPConnectionPool, seconds: float) -> None:
        self._connection: HTTPConnection = pool._new_conn()  # type: ignore[assignment]  # noqa: SLF001 - nothing else of urllib3 gives one with the pool's TLS
        self._connection.connect()
        self._socket = self._connection.sock
        self._socket.settimeout(seconds)
        self._file: BinaryIO = self._socket.makefile("rb")
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def close(self) -> None:
        self._file.close()
        self._connection.close()

    def is_quiet(self) -> bool:
        """False once it was closed by the server, or has what nobody asked for."""
        return not self._poll.poll(0)

    def ask(self, request: bytes) -> tuple[Answer, bool]:
        """The answer, and whether another request may follow."""
        try:
            self._socket.sendall(request)
            return _answer(self._file)
        except ConnectionError as error:
            raise ProtocolError(f"the connection broke: {error}") from error


def _close_all(idle: deque[_Kept]) -> None:
    while idle:
        idle.pop().close()


def _answer(file: BinaryIO) -> tuple[Answer, bool]:
    """Read an answer as RFC 9112 has it, and whether the connection may be used again."""
    status = 0
    while status < _FINAL:
        first = _line(file).split(None, 2)
        if len(first) < 2 or not first[0].startswith("HTTP/1.") or not first[1].isdecimal():  # noqa: PLR2004 - version and status
            raise ProtocolError(f"no HTTP: {' '.join(first)[:_MOST_SHOWN]!r}")
        status = int(first[1])
        headers = _headers(file)
    reusable = first[0] != "HTTP/1.0" and headers.get("connection", "").lower() != "close"
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return Answer(status, headers, b"".join(_chunks(file))), reusable
    length = headers.get("content-length", "")
    if length:
        if not length.isdecimal():
            raise ProtocolError(f"content-length {length!r} is no number")
        return Answer(status, headers, _exactly(file, int(length))), reusable
    if status in _WITHOUT_BODY:
        return Answer(status, headers, b""), reusable
    return Answer(status, headers, file.read()), False


def _line(file: BinaryIO) -> str:
    line = file.readline(_LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise ProtocolError("the server closed the connection" if not line else "a line broke off")
    return line.decode("latin-1")


def _headers(file: BinaryIO) -> dict[str, str]:
    found: dict[str, str] = {}
    for _ in range(_MOST_HEADERS):
        line = _line(file).strip()
        if not line:
            return found
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip()
        found[name] = f"{found[name]}, {value}" if name in found else value
    raise ProtocolError(f"more than {_MOST_HEADERS} headers")


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    while True:
        size = _line(file).partition(";")[0].strip()
        if not _HEX.fullmatch(size):
            raise ProtocolError(f"{size[:_MOST_SHOWN]!r} is no size of a chunk")
        length = int(size, 16)
        if length == 0:
            _headers(file)
            return
        yield _exactly(file, length)
        if _line(file).strip():
            raise ProtocolError("a chunk is longer than it says")


def _exactly(file: BinaryIO, length: int) -> bytes:
    data = file.read(length)
    if len(data) < length:
        raise ProtocolError(f"{len(data)} bytes came of {length}")
    return data
