"""HTTP exchanges with the API server: JSON out, JSON in, every failure a KubeError."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from typing import Any, Literal, NamedTuple, Self, TypeVar
from urllib.parse import urlencode

import msgspec

from api.decoding import decodable
from dra.common.resources import Obj
from dra.kube.connection import Answer, Connection
from dra.kube.errors import KubeError, TooLargeError, UnavailableError, error_from_status
from dra.kube.timing import Clock, SystemClock

_OK = range(200, 300)
_THROTTLED = (429, 503)
"""Statuses of requests that were not carried out, unlike other refusals with Retry-After."""
_QUOTED_TEXT = 300
_READ_SIZE = 1 << 20
SMALL_BYTES = 2**20
"""Bytes of an answer that any number of threads hold at a time; more of one, a single thread."""

PAGE_BYTES = 4 * 2**20
"""Upper bound on the bytes of a page of a list that has several objects."""

LARGEST_BYTES = 20 * 2**20
"""Upper bound on the bytes of any answer: a single object may be nearly as large.

The API server takes 3 MiB (``MaxRequestBodyBytes`` in its config.go, 1.36), of which etcd stores
1.5 MiB by default. In JSON a byte may take six: ``<`` is written as ``\\u003c``.
"""

_LARGE_SILENCE = 15.0
"""Seconds without data after which half a large event is given up: other threads wait for it."""

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


Keep = Callable[[msgspec.Raw], Obj | None]
"""Decodes the part of an object that is kept; None: nothing of it is kept.

It is called while no other thread holds a large answer, and returns nothing that refers to the
JSON, which may be megabytes.
"""


def whole(raw: msgspec.Raw) -> Obj:
    """All of an object."""
    return msgspec.json.decode(raw, type=dict[str, Any])


@decodable
class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


@decodable
class _Page(msgspec.Struct):
    """A part of a list. Its items stay JSON until they are needed, one at a time."""

    metadata: _ListMeta | None = None
    items: list[msgspec.Raw] | None = None


class Page(NamedTuple):
    """A part of a list. ``token`` continues it, empty at the end; ``size``: bytes of its JSON."""

    items: list[Obj]
    resource_version: str
    token: str
    size: int


@decodable
class _Head(msgspec.Struct):
    """An object of which nothing but its metadata is read."""

    metadata: Obj


class _Turn:
    """The turn of a thread to hold a large answer, once it takes it and until its block ends."""

    def __init__(self, turns: threading.RLock) -> None:
        self._turns = turns
        self._is_taken = False

    def take(self) -> None:
        if not self._is_taken:
            self._turns.acquire()
            self._is_taken = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        if self._is_taken:
            self._is_taken = False
            self._turns.release()


class HttpClient:
    """Sends requests over a connection pool. Thread-safe.

    An answer has at most ``LARGEST_BYTES``. One of more than ``SMALL_BYTES`` is read and decoded
    while no other thread does the same, so that memory is bounded whatever users store.
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
        self._turns = threading.RLock()
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
        with _Turn(self._turns) as turn:
            answer = self._answered(
                method, path, turn, query=query, body=body, content_type=content_type
            )
            if metadata_only:
                return {"metadata": _decode(answer, f"{method} {path}", _Head).metadata}
            return _decode(answer, f"{method} {path}", dict[str, Any])

    def read(self, path: str, kind: type[T]) -> T:
        """GET an object as ``kind``, a msgspec type: fields that the type lacks are dropped."""
        with _Turn(self._turns) as turn:
            return _decode(self._answered("GET", path, turn), f"GET {path}", kind)

    def kept(self, path: str, keep: Keep) -> Obj | None:
        """GET an object, and return what ``keep`` leaves of it."""
        with _Turn(self._turns) as turn:
            return self.item(_decode(self._answered("GET", path, turn), path, msgspec.Raw), keep)

    def page(self, path: str, *, query: Mapping[str, str], keep: Keep, most: int) -> Page:
        """GET a page of a list of at most ``most`` bytes, with what ``keep`` leaves of its items.

        Raises:
            TooLargeError: the page has more bytes; no more than these were read.
        """
        with _Turn(self._turns) as turn:
            answer = self._answered("GET", path, turn, query=query, most=most)
            page = _decode(answer, f"GET {path}", _Page)
            meta = page.metadata or _ListMeta()
            kept = (self.item(raw, keep) for raw in page.items or ())
            items = [item for item in kept if item is not None]
            return Page(items, meta.resource_version, meta.continue_, len(answer))

    def item(self, raw: msgspec.Raw, keep: Keep) -> Obj | None:
        """The part of an item that ``keep`` leaves; UnavailableError if it is no JSON object."""
        try:
            return keep(raw)
        except msgspec.DecodeError as error:
            raise UnavailableError(f"an item of a list is no JSON object: {error}") from error

    def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str],
        silence_seconds: float,
        keep: Keep,
        what: str,
    ) -> WatchStream:
        """GET a watch of ``what``, whose events are still to be read.

        They have what ``keep`` leaves of their objects. The headers have to come within the budget
        of a call; reading an event fails after ``silence_seconds`` without data.
        """
        with _Turn(self._turns) as turn:
            answer, data = self._sent("GET", path, query, turn=turn, is_whole=False)
            if answer.status not in _OK:
                raise _refusal(answer, data, f"GET {path}")
        return WatchStream(answer, what, keep, _Turn(self._turns), silence_seconds=silence_seconds)

    def _answered(  # noqa: PLR0913 - a request's own parameters
        self,
        method: str,
        path: str,
        turn: _Turn,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "",
        most: int = LARGEST_BYTES,
    ) -> bytearray:
        """Send a request until it is not throttled; returns the whole answer, raises a refusal."""
        encoded = None if body is None else msgspec.json.encode(body)
        more = {} if body is None else {"Content-Type": content_type}
        end = self._clock.monotonic() + self._budget
        while True:
            answer, data = self._sent(method, path, query, encoded, more, turn=turn, most=most)
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
        turn: _Turn,
        is_whole: bool = True,
        most: int = LARGEST_BYTES,
    ) -> tuple[Answer, bytearray]:
        """Send a request once; returns the answer and its body. ``observe`` is called in any case.

        ``is_whole``: False leaves the body of a successful answer to be read by the caller; the
        body of a refusal is read all the same.

        Raises:
            TooLargeError: the body has more than ``most`` bytes.
        """
        headers = {"Accept": "application/json", "User-Agent": self._user_agent}
        headers |= {**self._connection.credentials(), **(more or {})}
        began, status = self._clock.monotonic(), 0

        def send() -> tuple[Answer, bytearray]:
            answer = self._connection.ask(
                method, _target(path, query), body=body, headers=headers, seconds=self._budget
            )
            if answer.status in _OK and not is_whole:
                return answer, bytearray()
            data = self._body(answer, began + self._budget, turn, most)
            if len(data) > most:
                text = f"{method} {path}: the answer has more than {most} bytes"
                raise TooLargeError(f"{text}, which is more than is read of one")
            return answer, data

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

    def _body(self, answer: Answer, end: float, turn: _Turn, most: int) -> bytearray:
        """The body, read within a time limit: the connection's timeout is for each piece of it.

        It ends with the piece in which it has more than ``most`` bytes. ``end`` is the monotonic
        time at which an empty body has to be whole; each MiB adds a second. The time until it is
        this thread's ``turn`` does not count.

        Raises:
            TimeoutError: it came too slowly.
            HTTPException: it broke off.
        """
        body, is_whole = bytearray(), False
        try:
            while len(body) <= most:
                if len(body) > SMALL_BYTES:
                    before = self._clock.monotonic()
                    turn.take()
                    end += self._clock.monotonic() - before
                piece = answer.read(_READ_SIZE)
                if not piece:
                    if len(body) < int(answer.header("Content-Length") or 0):
                        raise IncompleteRead(bytes(body[:_QUOTED_TEXT]))
                    is_whole = True
                    break
                body += piece
                if self._clock.monotonic() > end + len(body) / _SLOWEST:
                    raise TimeoutError("the answer came too slowly to be whole in time")
        finally:
            answer.close(is_whole=is_whole)
        return body


WatchType = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK"]


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A change that the server reported. A BOOKMARK's object carries only a resourceVersion.

    ``object``: what is kept of it. ``version``: its resourceVersion.
    """

    type: WatchType
    object: Obj | None
    version: str = ""
    name: str = ""
    namespace: str = ""


@decodable
class _Line(msgspec.Struct):
    type: WatchType | Literal["ERROR"]
    object: msgspec.Raw


@decodable
class _Identity(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    name: str = ""
    namespace: str = ""


@decodable
class _Identified(msgspec.Struct):
    metadata: _Identity = msgspec.field(default_factory=_Identity)


class WatchStream(Iterator[WatchEvent]):
    """Iterates over the events of a watch; ends when the server ends it or on :meth:`close`.

    One thread iterates; any thread may close. While iterating it raises :class:`GoneError` and the
    other errors of :mod:`dra.kube.errors` for an ERROR event, and :class:`UnavailableError` when
    the connection breaks or stays silent for too long.
    """

    def __init__(
        self, answer: Answer, what: str, keep: Keep, turn: _Turn, *, silence_seconds: float
    ) -> None:
        self._answer = answer
        self._what = what
        self._keep = keep
        self._turn = turn
        self._silence = silence_seconds
        self._is_large = False  # the event of which the first part is there
        self._closed = threading.Event()
        self._reading = threading.Lock()
        self._events = self._read()
        answer.allow_silence(silence_seconds)

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
        pending = bytearray()
        try:
            while not self._closed.is_set():
                try:
                    self._wait_longer(len(pending))
                    chunk = self._answer.read(_READ_SIZE)
                except (HTTPException, OSError, ValueError) as error:
                    if self._closed.is_set():
                        return
                    raise UnavailableError(f"watch of {self._what} broke: {error}") from error
                if not chunk:
                    return
                first, *lines = chunk.split(b"\n")
                del chunk
                pending += first
                for line in lines:
                    if self._closed.is_set():
                        return
                    event = self._decode(pending) if pending.strip() else None
                    pending = bytearray(line)
                    self._turn.end()
                    if event is not None:
                        yield event
        finally:
            self._turn.end()
            self._answer.close()

    def _wait_longer(self, size: int) -> None:
        """Wait for the turn to read on where ``size`` bytes of an event are there.

        Raises:
            UnavailableError: they are too many.
        """
        if size > LARGEST_BYTES:
            raise UnavailableError(
                f"watch of {self._what} sent an event of more than {LARGEST_BYTES} bytes, which is "
                "more than is read of one"
            )
        if size > SMALL_BYTES:
            self._turn.take()
        if (size > SMALL_BYTES) != self._is_large:
            self._is_large = size > SMALL_BYTES
            self._answer.allow_silence(_LARGE_SILENCE if self._is_large else self._silence)

    def _decode(self, line: bytearray) -> WatchEvent:
        try:
            event = msgspec.json.decode(line, type=_Line)
            if event.type == "ERROR":
                raise error_from_status(whole(event.object))
            found = msgspec.json.decode(event.object, type=_Identified).metadata
            kept = whole(event.object) if event.type == "BOOKMARK" else self._keep(event.object)
        except msgspec.DecodeError as error:
            raise UnavailableError(f"watch of {self._what} sent no event: {error}") from error
        return WatchEvent(event.type, kept, found.resource_version, found.name, found.namespace)


def _target(path: str, query: Mapping[str, str] | None) -> str:
    given = {key: value for key, value in (query or {}).items() if value}
    return f"{path}?{urlencode(given)}" if given else path


def _decode(answer: bytearray, what: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.DecodeError as error:
        raise UnavailableError(f"{what}: the answer is no JSON object: {error}") from error


def _refusal(answer: Answer, data: bytearray, what: str) -> KubeError:
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
