"""Answer whose body is read as it comes: that of a watch, or of a log.

llhttp takes it apart, as for whole answers (``dra.kube.client.kept``). Through urllib3 and
http.client each event of a watch passes three more buffers, with twice the CPU time.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from urllib3.connection import HTTPConnection
from urllib3.exceptions import ProtocolError

_AT_ONCE = 65_536
_FINAL = 200


class Streamed:
    """Answer to a request that was sent on ``connection``, which is closed with it.

    One thread reads, any may shut it down. What is named as in urllib3 does the same. Making one,
    and reading, raise ProtocolError when the connection breaks or what comes is no HTTP, and
    OSError when nothing comes in time.
    """

    def __init__(self, connection: HTTPConnection) -> None:
        self.headers: Mapping[str, str] = {}
        """Names are in lower case."""
        self.status = 0
        self._connection = connection
        self._socket: socket.socket = connection.sock
        self._parser = HttpResponseParser(self)
        self._coming: dict[str, str] = {}
        self._body: list[bytes] = []
        self._ended = False
        while self.status < _FINAL:
            self._receive()

    @property
    def data(self) -> bytes:
        """Rest of the body."""
        pieces = []
        while piece := self.read1():
            pieces.append(piece)
        return b"".join(pieces)

    def read(self, most: int) -> bytes:
        """The next ``most`` bytes of the body; fewer at its end. Nothing may be read afterwards."""
        pieces, left = [], most
        while left > 0 and (piece := self.read1()):
            pieces.append(piece[:left])
            left -= len(piece)
        return b"".join(pieces)

    def read1(self, _most: int = 0) -> bytes:
        """Part of the body that has come, waiting for some; empty at its end."""
        while not self._body:
            if self._ended:
                return b""
            self._receive()
        pieces, self._body = self._body, []
        return b"".join(pieces)

    def allow_silence(self, seconds: float) -> None:
        """Let the server say nothing for so long."""
        self._socket.settimeout(seconds)

    def shutdown(self) -> None:
        """Wake who reads: for it the body ends, or breaks off."""
        self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        """For the parser."""
        self._coming[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """For the parser."""
        status = self._parser.get_status_code()
        if status >= _FINAL:
            self.status, self.headers = status, self._coming
        self._coming = {}

    def on_body(self, body: bytes) -> None:
        """For the parser."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """For the parser."""
        self._ended = self.status >= _FINAL

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_AT_ONCE)
        except ConnectionError as error:
            raise ProtocolError(f"the connection broke: {error}") from error
        if data:
            self._feed(data)
        elif self.status < _FINAL or self.headers.keys() & {"transfer-encoding", "content-length"}:
            raise ProtocolError("the server closed the connection before its answer was whole")
        else:
            self._ended = True

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise ProtocolError(f"what the server answered is no HTTP: {error}") from error
