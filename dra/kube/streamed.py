"""Answer whose body is read as it comes: that of a watch, or of a log.

Through urllib3 and http.client each event of a watch passes three more buffers, with twice the CPU
time.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

from urllib3.connection import HTTPConnection
from urllib3.exceptions import ProtocolError

from dra.kube.reading import Deadline, Reading, receive


class Streamed:
    """Answer to a request that was sent on ``connection``, which is closed with it.

    One thread reads, any may shut it down. What is named as in urllib3 does the same. Making one,
    and reading, raise ProtocolError when the connection breaks or what comes is no HTTP, and
    OSError when nothing comes in time: all of it within ``seconds``, with more for what is large,
    unless :meth:`allow_silence` says otherwise of the body.
    """

    def __init__(self, connection: HTTPConnection, seconds: float) -> None:
        self._connection = connection
        self._socket: socket.socket = connection.sock
        self._deadline: Deadline | None = Deadline(self._socket, seconds)
        self._reading = Reading()
        self._closed = False
        while not self._reading.status:
            self._receive()

    @property
    def status(self) -> int:
        """HTTP status."""
        return self._reading.status

    @property
    def headers(self) -> Mapping[str, str]:
        """Names are in lower case."""
        return self._reading.headers

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
        while not (body := self._reading.take_body()):
            if self._reading.ended or self._closed:
                return b""
            self._receive()
        return body

    def allow_silence(self, seconds: float) -> None:
        """Let the server say nothing for so long, as often as it likes."""
        self._deadline = None
        self._socket.settimeout(seconds)

    def shutdown(self) -> None:
        """Wake who reads: for it the body ends, or breaks off."""
        self._socket.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _receive(self) -> None:
        if data := receive(self._socket):
            self._reading.add(data)
            if self._deadline is not None:
                self._deadline.note(len(data))
        elif not self.status or self.headers.keys() & {"transfer-encoding", "content-length"}:
            raise ProtocolError("the server closed the connection before its answer was whole")
        else:
            self._closed = True
