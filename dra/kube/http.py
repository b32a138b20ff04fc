"""One HTTP exchange with the API server: JSON out, JSON in, every failure a KubeError."""

import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec
import urllib3

from dra.kube.connection import Connection
from dra.kube.errors import KubeError, UnavailableError, error_from_status
from dra.kube.resources import Obj
from dra.kube.timing import Clock, SystemClock
from dra.kube.wire import Answer, Wire

_OK = range(200, 300)
_THROTTLED = (429, 503)
"""Nothing was done then, unlike with other errors that say when to come back."""
_QUOTED_TEXT = 300

_Response = TypeVar("_Response", Answer, urllib3.BaseHTTPResponse)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that has ended: with an HTTP status, or with 0 and no answer."""

    method: str
    path: str
    status: int
    seconds: float


class HttpClient:
    """Sends requests over a connection pool. Thread-safe.

    ``timeout_seconds`` is the budget of one call. A call that the server throttles (429 or 503
    with Retry-After) is repeated while the budget lasts; other failures are the caller's to retry.
    ``observe`` hears of every request, from the thread that made it.
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
        self._wire = Wire(connection.pool, connection.host)
        self._headers = {"Accept": "application/json", "User-Agent": user_agent}
        self._timeout = timeout_seconds
        self._clock = clock or SystemClock()
        self._observe = observe
        self._closed = threading.Event()

    def close(self) -> None:
        """Close idle connections and end waits for a throttling server."""
        self._closed.set()
        self._connection.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Obj:
        """Send one request and decode the answer; repeat it while the server throttles."""
        deadline = self._clock.monotonic() + self._timeout
        encoded = b"" if body is None else msgspec.json.encode(body)

        def exchange() -> Answer:
            headers = self._headers | self._connection.credentials()
            if encoded:
                headers["Content-Type"] = content_type
            target = _target(path, query)
            return self._wire.exchange(method, target, headers, body=encoded, seconds=self._timeout)

        while True:
            answer = self._observed(method, path, exchange)
            if answer.status in _OK:
                return _decode(answer, f"{method} {path}")
            error = _refusal(answer, f"{method} {path}")
            if answer.status not in _THROTTLED or error.retry_after is None:
                raise error
            if self._clock.monotonic() + error.retry_after >= deadline:
                raise error
            if self._clock.wait(self._closed, error.retry_after):
                raise error

    def stream(
        self, path: str, *, query: Mapping[str, str], silence_seconds: float
    ) -> urllib3.BaseHTTPResponse:
        """GET an answer whose body is still to be read; the caller closes it.

        The headers have to come within the budget of a call; reading the body fails after
        ``silence_seconds`` without data.
        """

        def begin() -> urllib3.BaseHTTPResponse:
            return self._connection.pool.urlopen(
                "GET",
                self._connection.host + _target(path, query),
                headers=self._headers | self._connection.credentials(),
                timeout=urllib3.Timeout(connect=self._timeout, read=self._timeout),
                retries=False,
                redirect=False,
                preload_content=False,
            )

        response = self._observed("GET", path, begin)
        if response.status in _OK:
            _allow_silence(response, silence_seconds)
            return response
        try:
            headers = {name.lower(): value for name, value in response.headers.items()}
            answer = Answer(response.status, headers, response.data)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnavailableError(f"GET {path}: {error}") from error
        raise _refusal(answer, f"GET {path}")

    def _observed(self, method: str, path: str, request: Callable[[], _Response]) -> _Response:
        """Make a request; a read twice if need be."""
        began, status = self._clock.monotonic(), 0
        try:
            try:
                response = request()
            except urllib3.exceptions.ProtocolError:
                # The server may have closed a kept-alive connection in this very moment: a read
                # can be repeated without harm, a write cannot.
                if method != "GET":
                    raise
                response = request()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise UnavailableError(f"{method} {path}: {error}") from error
        else:
            status = response.status
            return response
        finally:
            self._observe(Exchange(method, path, status, self._clock.monotonic() - began))


def _target(path: str, query: Mapping[str, str] | None) -> str:
    given = {key: value for key, value in (query or {}).items() if value}
    return f"{path}?{urlencode(given)}" if given else path


def _allow_silence(response: urllib3.BaseHTTPResponse, seconds: float) -> None:
    """Give the rest of the body more time than the headers had.

    urllib3 has one read timeout for both. With "Connection: close" the connection has let go of
    its socket already, and only the response's shutdown method still knows it.
    """
    shutdown = getattr(response, "_sock_shutdown", None)
    sock = getattr(response.connection, "sock", None) or getattr(shutdown, "__self__", None)
    if isinstance(sock, socket.socket):
        sock.settimeout(seconds)


def _decode(answer: Answer, what: str) -> Obj:
    try:
        return msgspec.json.decode(answer.body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise UnavailableError(
            f"{what}: the answer is no JSON object: {error}", status=answer.status
        ) from error


def _refusal(answer: Answer, what: str) -> KubeError:
    waits = answer.headers.get("retry-after", "")
    retry_after = float(waits) if re.fullmatch(r"\d{1,6}", waits) else None
    try:
        status = msgspec.json.decode(answer.body, type=dict[str, Any])
    except msgspec.DecodeError:
        # A proxy or load balancer on the way answers in its own words.
        status = {}
    if status.get("kind") != "Status":
        text = answer.body[:_QUOTED_TEXT].decode(errors="replace").strip()
        status = {"message": f"{what}: HTTP {answer.status} {text}".rstrip()}
    return error_from_status(status, http_status=answer.status, retry_after=retry_after)
