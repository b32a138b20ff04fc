"""Reading of the API server's answers from a connection: llhttp (by httptools) takes them apart."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from urllib3.exceptions import ProtocolError

_AT_ONCE = 65_536
_FINAL = 200
_SLOWEST = 2**20
"""Bytes a second: for so many of a large answer there is a second more than for a small one."""


class _Headers(Mapping[str, str]):
    """Headers by name, decoded once somebody asks: of most answers nobody does."""

    def __init__(self, lines: Sequence[tuple[bytes, bytes]]) -> None:
        self._lines = lines

    def __getitem__(self, name: str) -> str:
        return self._decoded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoded)

    def __len__(self) -> int:
        return len(self._decoded)

    @cached_property
    def _decoded(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, value in self._lines:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            found[key] = f"{found[key]}, {text}" if key in found else text
        return found


class Reading:
    """One answer, as far as it has come; those that only announce it (1xx) are passed over.

    ``status`` is 0 and ``headers`` are empty until all headers have come. Their names are in lower
    case, and those that come twice are joined. Trailers are not kept. ``ended`` once the answer is
    whole, and ``reusable`` then, if another request may follow on the connection.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.ended = False
        self.reusable = False
        self._parser = HttpResponseParser(self)
        self._coming: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []

    def add(self, data: bytes) -> None:
        """Take what has come of the answer.

        Raises:
            ProtocolError: it is no HTTP, or more than one answer.
        """
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise ProtocolError(f"what the server answered is no HTTP: {error}") from error

    def take_body(self) -> bytes:
        """Part of the body that has come since the last call."""
        pieces, self._body = self._body, []
        return b"".join(pieces)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        if not self.status:
            self._coming.append((name, value))

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self.ended:
            raise ProtocolError("one answer is followed by another")
        status = self._parser.get_status_code()
        if status >= _FINAL:
            self.status, self.headers = status, _Headers(self._coming)
        else:
            self._coming = []

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if self.status >= _FINAL:
            # Later the parser is ready for the next message, and says so of that.
            self.reusable = self._parser.should_keep_alive()
            self.ended = True


class Deadline:
    """Time by which an answer has to be whole, which a byte now and then does not put off."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection = connection
        self._end = time.monotonic() + seconds
        connection.settimeout(seconds)

    def note(self, size: int) -> None:
        """Note that ``size`` bytes have come; the next have to come in the time that is left.

        Raises:
            TimeoutError: there is none left.
        """
        self._end += size / _SLOWEST
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer came too slowly to be whole in time")
        self._connection.settimeout(left)


def send(connection: socket.socket, request: bytes) -> None:
    """Send a request whole. Raises ProtocolError when the connection breaks, else OSError."""
    try:
        connection.sendall(request)
    except ConnectionError as error:
        raise _broken(error) from error


def receive(connection: socket.socket) -> bytes:
    """Bytes that come next; empty once the server closed the connection. Raises as ``send``."""
    try:
        return connection.recv(_AT_ONCE)
    except ConnectionError as error:
        raise _broken(error) from error


def _broken(error: ConnectionError) -> ProtocolError:
    return ProtocolError(f"the connection broke: {error}")
