"""Connections to the API server that are kept: a request goes out in one piece, its answer whole.

urllib3 makes the connections, with all that TLS needs, and llhttp (by httptools) reads the answers.
Requests of urllib3 itself, over http.client, take three times the CPU: headers become an e-mail
message, and a body passes four layers. Proxies are left to it. Answers that do not end have a
connection each (``dra.kube.streamed``).
"""

from __future__ import annotations

import re
import select
import weakref
from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from urllib3 import HTTPConnectionPool
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ProtocolError

from dra.kube.reading import Deadline, Reading, receive, send
from dra.kube.streamed import Streamed

_MOST_KEPT = 16
_CONTROLS = re.compile(r"[\0-\x1f\x7f]")


class Answer(NamedTuple):
    """A whole answer; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Connections:
    """Connections to one server. Thread-safe.

    ``pool`` of urllib3 says how to connect to it, and keeps none itself. ``host`` is for the header
    of that name, ``seconds`` is the time for an answer, with more for a large one.
    """

    def __init__(self, pool: HTTPConnectionPool, *, host: str, seconds: float) -> None:
        self._pool = pool
        self._host = host
        self._seconds = seconds
        self._closed = False
        self._idle: deque[_Kept] = deque()
        weakref.finalize(self, _close_all, self._idle)

    def close(self) -> None:
        """Close idle connections now, the others after their request."""
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

    def stream(self, target: str, headers: Mapping[str, str]) -> Streamed:
        """GET an answer whose body is still to be read; the caller closes it. Raises as ``ask``."""
        kept = _Kept(self._pool, self._seconds)
        try:
            return kept.stream(self._encoded("GET", target, headers, None))
        except BaseException:
            kept.close()
            raise

    def _encoded(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> bytes:
        if _CONTROLS.search(target):
            raise ValueError(f"{method} {target!r}: the target has control characters")
        rest = _lines(self._host, tuple(headers.items()))
        first = f"{method} {target} HTTP/1.1\r\n".encode("latin-1")
        if body is None:
            return b"%b%b\r\n" % (first, rest)
        return b"%b%bContent-Length: %d\r\n\r\n%b" % (first, rest, len(body), body)

    def _alive(self) -> _Kept | None:
        """Idle connection that the server has not closed meanwhile, as a write has one try."""
        while True:
            try:
                kept = self._idle.pop()
            except IndexError:
                return None
            if kept.is_quiet():
                return kept
            kept.close()


class _Reading(Reading):
    """An answer that is read whole."""

    def feed(self, data: bytes) -> Answer | None:
        """The answer once ``data`` is the rest of it. Raises as ``add``."""
        self.add(data)
        return Answer(self.status, self.headers, self.take_body()) if self.ended else None


class _Kept:
    """One connection, which is used by one thread at a time."""

    def __init__(self, pool: HTTPConnectionPool, seconds: float) -> None:
        self._connection: HTTPConnection = pool._new_conn()  # type: ignore[assignment]  # noqa: SLF001 - nothing else of urllib3 gives one with the pool's TLS
        self._connection.connect()
        self._seconds = seconds
        self._socket = self._connection.sock
        self._socket.settimeout(seconds)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    def close(self) -> None:
        self._connection.close()

    def is_quiet(self) -> bool:
        """False once it was closed by the server, or has what nobody asked for."""
        return not self._poll.poll(0)

    def ask(self, request: bytes) -> tuple[Answer, bool]:
        """The answer, and whether another request may follow."""
        reading, deadline = _Reading(), Deadline(self._socket, self._seconds)
        send(self._socket, request)
        while data := receive(self._socket):
            answer = reading.feed(data)
            if answer is not None:
                return answer, reading.reusable
            deadline.note(len(data))
        raise ProtocolError("the server closed the connection before its answer was whole")

    def stream(self, request: bytes) -> Streamed:
        """The answer once its headers have come; it has the connection for itself."""
        send(self._socket, request)
        return Streamed(self._connection, self._seconds)


@lru_cache(maxsize=8)
def _lines(host: str, headers: tuple[tuple[str, str], ...]) -> bytes:
    """Lines of a request after the first; a program sends the same few all the time."""
    if _CONTROLS.search("".join(text for header in headers for text in header)):
        raise ValueError("the headers have control characters")
    lines = (f"{name}: {value}\r\n" for name, value in headers)
    return "".join((f"Host: {host}\r\nAccept-Encoding: identity\r\n", *lines)).encode("latin-1")


def _close_all(idle: deque[_Kept]) -> None:
    while idle:
        idle.pop().close()
