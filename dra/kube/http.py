"""HTTP exchanges with the API server: JSON out, JSON in, every failure a KubeError."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlencode

import msgspec

from api.decoding import decodable
from dra.common.resources import Obj
from dra.kube.connection import Answer, Connection
from dra.kube.errors import KubeError, UnavailableError, error_from_status
from dra.kube.timing import Clock, SystemClock

_OK = range(200, 300)
_THROTTLED = (429, 503)
"""Statuses of requests that were not carried out, unlike other refusals with Retry-After."""
_QUOTED_TEXT = 300
_READ_SIZE = 1 << 20
_SLOWEST = 2**20
"""Bytes of an answer for which its time limit grows by one second."""

_RECURSION = 16_000
"""Recursion limit for decoding: the opaque parameters of a claim (10 KiB) can nest 5,000 deep.

Python's limit of 1,000 would keep such a claim, and all listed with it, from being read. Reading it
takes less than 2 MiB of the 8 MiB that a thread's stack has.
"""


T = TypeVar("T")


class Exchange(NamedTuple):
    """A request that has ended: with an HTTP status, or with 0 and no answer."""

    method: str
    path: str
    status: int
    seconds: float


@decodable
class Page(msgspec.Struct):
    """A part of a list. Its items stay JSON until they are needed, one at a time."""

    metadata: dict[str, Any] | None = None
    items: list[msgspec.Raw] | None = None


@decodable
class _Head(msgspec.Struct):
    """An object of which nothing but its metadata is read."""

    metadata: Obj


class HttpClient:
    """Sends requests over a connection pool. Thread-safe.

    ``timeout_seconds`` is the time limit of one call, which grows by a second for each MiB of its
    answer. A call that the server throttles (429 or 503 with Retry-After) is repeated within the
    limit; other failures are the caller's to retry. ``observe`` is called with every request that
    has ended, in the thread that made it.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        user_agent: str,
        timeout_seconds: float,
        clock: Clock | None = None,
        observe: Callable[[Exchange], None] = lambda _: None,
    ) -> None:
        self._connection = connection
        self._user_agent = user_agent
        self._budget = timeout_seconds
        self._clock = clock or SystemClock()
        self._observe = observe
        self._closed = threading.Event()
        sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION))

    def close(self) -> None:
        """Close idle connections and end waits for a throttling server."""
        self._closed.set()
        self._connection.close()

    def call(  # noqa: PLR0913 - a request's own parameters
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        metadata_only: bool = False,
    ) -> Obj:
        """Send one request and decode the answer; repeat it while the server throttles.

        With ``metadata_only`` only the metadata of the answer is decoded and returned.
        """
        answer = self._answered(method, path, query=query, body=body, content_type=content_type)
        if metadata_only:
            return {"metadata": _decode(answer, f"{method} {path}", _Head).metadata}
        return _decode(answer, f"{method} {path}", dict[str, Any])

    def read(self, path: str, kind: type[T]) -> T:
        """GET an object as ``kind``, a msgspec type: fields that the type lacks are dropped."""
        return _decode(self._answered("GET", path), f"GET {path}", kind)

    def text(self, path: str, *, query: Mapping[str, str], limit_bytes: int) -> bytes:
        """GET text, such as a log; returns at most ``limit_bytes`` of it."""
        answer, data = self._sent("GET", path, query, limit_bytes=limit_bytes)
        if answer.status not in _OK:
            raise _refusal(answer, data, f"GET {path}")
        return data

    def page(self, path: str, *, query: Mapping[str, str]) -> tuple[Page, int]:
        """GET a page of a list; returns it with its items still encoded, and its size in bytes."""
        answer = self._answered("GET", path, query=query)
        return _decode(answer, f"GET {path}", Page), len(answer)

    def item(self, raw: msgspec.Raw) -> Obj:
        """Decode an item of a page; raises UnavailableError if it is no JSON object."""
        try:
            return msgspec.json.decode(raw, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise UnavailableError(f"an item of a list is no JSON object: {error}") from error

    def stream(self, path: str, *, query: Mapping[str, str], silence_seconds: float) -> Answer:
        """GET an answer whose body is still to be read; the caller closes it.

        The headers have to come within the budget of a call; reading the body fails after
        ``silence_seconds`` without data.
        """
        answer, data = self._sent("GET", path, query, is_whole=False)
        if answer.status not in _OK:
            raise _refusal(answer, data, f"GET {path}")
        answer.allow_silence(silence_seconds)
        return answer

    def _answered(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "",
    ) -> bytes:
        """Send a request until it is not throttled; returns the whole answer, raises a refusal."""
        encoded = None if body is None else msgspec.json.encode(body)
        more = {} if body is None else {"Content-Type": content_type}
        end = self._clock.monotonic() + self._budget
        while True:
            answer, data = self._sent(method, path, query, encoded, more)
            if answer.status in _OK:
                return data
            error = _refusal(answer, data, f"{method} {path}")
            if answer.status not in _THROTTLED or error.retry_after is None:
                raise error
            if self._clock.monotonic() + error.retry_after >= end:
                raise error
            if self._clock.wait(self._closed, error.retry_after):
                raise error

    def _sent(  # noqa: PLR0913 - a request's own parameters
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: bytes | None = None,
        more: Mapping[str, str] | None = None,
        *,
        is_whole: bool = True,
        limit_bytes: int | None = None,
    ) -> tuple[Answer, bytes]:
        """Send a request once; returns the answer and its body. ``observe`` is called in any case.

        ``limit_bytes`` bounds the body. ``is_whole``: False leaves the body of a successful answer
        to be read by the caller; the body of a refusal is read all the same.
        """
        headers = {"Accept": "application/json", "User-Agent": self._user_agent}
        headers |= {**self._connection.credentials(), **(more or {})}
        began, status = self._clock.monotonic(), 0

        def send() -> tuple[Answer, bytes]:
            answer = self._connection.ask(
                method, _target(path, query), body=body, headers=headers, seconds=self._budget
            )
            if answer.status in _OK and not is_whole:
                return answer, b""
            return answer, self._body(answer, began + self._budget, limit_bytes)

        try:
            try:
                answer, data = send()
            except (HTTPException, ConnectionResetError, BrokenPipeError):
                # The server may have closed a kept-alive connection in this very moment: a read
                # can be repeated without harm, a write cannot.
                if method != "GET":
                    raise
                answer, data = send()
        except (HTTPException, OSError) as error:
            what = f"{method} {path}: {self._connection.host}"
            raise UnavailableError(f"{what}: {str(error) or type(error).__name__}") from error
        else:
            status = answer.status
            return answer, data
        finally:
            self._observe(Exchange(method, path, status, self._clock.monotonic() - began))

    def _body(self, answer: Answer, end: float, limit_bytes: int | None) -> bytes:
        """The body, read within a time limit: the connection's timeout is for each piece of it.

        ``end`` is the monotonic time at which an empty body has to be whole; each MiB adds a
        second.

        Raises:
            TimeoutError: it came too slowly.
            HTTPException: it broke off.
        """
        pieces: list[bytes] = []
        size, is_whole = 0, False
        try:
            while limit_bytes is None or size < limit_bytes:
                piece = answer.read(_READ_SIZE)
                if not piece:
                    if size < int(answer.header("Content-Length") or 0):
                        raise IncompleteRead(b"".join(pieces))
                    is_whole = True
                    break
                pieces.append(piece)
                size += len(piece)
                if self._clock.monotonic() > end + size / _SLOWEST:
                    raise TimeoutError("the answer came too slowly to be whole in time")
        finally:
            answer.close(is_whole=is_whole)
        return b"".join(pieces)[:limit_bytes]


WatchType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change that the server reported. A BOOKMARK's object carries only a resourceVersion."""

    type: WatchType
    object: Obj


@decodable
class _Line(msgspec.Struct):
    type: WatchType | Literal["ERROR"]
    object: Obj


class WatchStream(Iterator[WatchEvent]):
    """Iterates over the events of a watch; ends when the server ends it or on :meth:`close`.

    One thread iterates; any thread may close. While iterating it raises :class:`GoneError` and the
    other errors of :mod:`dra.kube.errors` for an ERROR event, and :class:`UnavailableError` when
    the connection breaks or stays silent for too long.
    """

    def __init__(self, answer: Answer, *, what: str) -> None:
        self._answer = answer
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
        self._answer.wake()
        # A reader that was woken gives the connection back itself.
        if self._reading.acquire(blocking=False):
            try:
                self._answer.close()
            finally:
                self._reading.release()

    def _read(self) -> Iterator[WatchEvent]:
        try:
            for line in self._lines():
                yield self._decode(line)
        finally:
            self._answer.close()

    def _lines(self) -> Iterator[bytes]:
        pending = b""
        while not self._closed.is_set():
            try:
                chunk = self._answer.read(_READ_SIZE)
            except (HTTPException, OSError, ValueError) as error:
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


def _target(path: str, query: Mapping[str, str] | None) -> str:
    given = {key: value for key, value in (query or {}).items() if value}
    return f"{path}?{urlencode(given)}" if given else path


def _decode(answer: bytes, what: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as error:
        raise UnavailableError(f"{what}: the answer is no JSON object: {error}") from error


def _refusal(answer: Answer, data: bytes, what: str) -> KubeError:
    waits = answer.header("Retry-After") or ""
    retry_after = float(waits) if re.fullmatch(r"\d{1,6}", waits) else None
    try:
        status = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError:
        # A proxy or load balancer on the way answers in its own words.
        status = {}
    if status.get("kind") != "Status":
        text = data[:_QUOTED_TEXT].decode(errors="replace").strip()
        status = {"message": f"{what}: HTTP {answer.status} {text}".rstrip()}
    return error_from_status(status, http_status=answer.status, retry_after=retry_after)
