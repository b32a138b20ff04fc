"""One running watch: lines of JSON from the server, as events."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec
import urllib3

from dra.common.resources import Obj
from dra.kube.client.streamed import Streamed
from dra.kube.errors import UnavailableError, error_from_status

_READ_SIZE = 1 << 16

WatchType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change that the server reported. A BOOKMARK's object carries only a resourceVersion."""

    type: WatchType
    object: Obj


class _Line(msgspec.Struct):
    type: WatchType | Literal["ERROR"]
    object: Obj


class WatchStream(Iterator[WatchEvent]):
    """Iterates over the events of a watch; ends when the server ends it or on :meth:`close`.

    One thread iterates; any thread may close. While iterating it raises :class:`GoneError` and the
    other errors of :mod:`dra.kube.errors` for an ERROR event, and :class:`UnavailableError` when
    the connection breaks or stays silent beyond its read timeout.
    """

    def __init__(self, response: Streamed | urllib3.BaseHTTPResponse, *, what: str) -> None:
        self._response = response
        self._what = what
        self._closed = threading.Event()
        self._reading = threading.Lock()
        self._events = self._read()

    def __next__(self) -> WatchEvent:
        with self._reading:
            return next(self._events)

    def close(self) -> None:
        """End the watch now, waking a reader that waits for data. Idempotent."""
        self._closed.set()
        # These mean "not connected any more": the reader has seen the end already.
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            self._response.shutdown()
        # A reader that was woken gives the connection back itself.
        if self._reading.acquire(blocking=False):
            try:
                self._response.close()
            finally:
                self._reading.release()

    def _read(self) -> Iterator[WatchEvent]:
        try:
            for line in self._lines():
                yield self._decode(line)
        finally:
            self._response.close()

    def _lines(self) -> Iterator[bytes]:
        pending = b""
        while not self._closed.is_set():
            try:
                chunk = self._response.read1(_READ_SIZE)
            except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
                if self._closed.is_set():
                    return
                raise UnavailableError(f"watch of {self._what} broke: {error}") from error
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                if self._closed.is_set():
                    return
                if line.strip():
                    yield line

    def _decode(self, line: bytes) -> WatchEvent:
        try:
            event = msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError as error:
            raise UnavailableError(f"watch of {self._what} sent no event: {error}") from error
        if event.type == "ERROR":
            raise error_from_status(event.object)
        return WatchEvent(event.type, event.object)
