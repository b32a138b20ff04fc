"""HTTP servers with bounded connections, and a daemon's: ``/metrics``, ``/healthz``, ``/readyz``.

The standard library's server, on which they stand, takes hardly any memory. Every connection has a
thread of its own, so that a client that stalls holds up no other.
"""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from dra.kube.timing import Clock, SystemClock
from dra.monitoring.probes import Checks, Probes


class OpenConnections:
    """Open connections by age: ``most`` in all, and ``most_of_peer`` of one address. Thread-safe.

    A new connection always gets a place. If there are too many, the oldest of its own peer is
    ended, or the oldest of the peer with most.
    """

    def __init__(self, *, most: int, most_of_peer: int) -> None:
        self._most = most
        self._most_of_peer = most_of_peer
        self._lock = threading.Lock()
        self._peers: dict[socket.socket, str] = {}

    def add(self, connection: socket.socket, peer: str) -> None:
        """Take a connection. If there are too many, end another, whose thread then notices."""
        with self._lock:
            over = self._find_over(peer)
            if over is not None:
                del self._peers[over]
            self._peers[connection] = peer
        if over is not None:
            with suppress(OSError):
                over.shutdown(socket.SHUT_RDWR)

    def discard(self, connection: socket.socket) -> None:
        """Forget a connection, which has ended."""
        with self._lock:
            self._peers.pop(connection, None)

    def _find_over(self, peer: str) -> socket.socket | None:
        counts = Counter(self._peers.values())
        if counts[peer] < self._most_of_peer:
            if len(self._peers) < self._most:
                return None
            (peer, _), *_ = counts.most_common(1)
        return next(connection for connection, each in self._peers.items() if each == peer)


class BoundedServer(ThreadingMixIn, HTTPServer):
    """HTTP server with a thread for each connection, as many as ``connections`` has places."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    """Waiting connections. With the usual five, a burst makes others wait a second and more."""

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        connections: OpenConnections,
    ) -> None:
        self.connections = connections
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind without the inherited look-up of the machine's own name, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own."""
        self.connections.add(request, str(client_address[0]))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - inherited
        """Log at debug level only: clients decide how often this happens."""
        _log.debug("connection from %s failed", client_address, exc_info=True)


T = TypeVar("T")
_REST = 4
_LONGEST_REST = 1.0


class Pace:
    """One call at a time, and after it a pause of four times its length, a second at most.

    So short calls take no more than a fifth of a processor, however many clients ask; a client that
    asks now and then does not wait. Thread-safe.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._rested_at = 0.0

    def call(self, work: Callable[[], T]) -> T:
        """The result of ``work``, once it is its turn."""
        with self._lock:
            now = self._clock.monotonic()
            if now < self._rested_at:
                self._clock.sleep(self._rested_at - now)
            began = self._clock.monotonic()
            try:
                return work()
            finally:
                ended = self._clock.monotonic()
                self._rested_at = ended + min(_LONGEST_REST, _REST * (ended - began))


_log = logging.getLogger(__name__)
_TEXT = ("Content-Type", "text/plain; charset=utf-8")
_STALL_SECONDS = 10.0
_MOST, _MOST_OF_PEER = 64, 8
"""Connections at a time: kubelet and Prometheus have one or two."""
_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\]]*)\]|(?P<host>[^:\[\]]*)):(?P<port>\d{1,5})")
_LAST_PORT = 65535


class AddressError(ValueError):
    """An address that cannot be used; the message shows a right one, or the system's objection."""


@contextmanager
def serving(address: str, registry: CollectorRegistry, probes: Probes) -> Iterator[int]:
    """Serve on ``address`` while the block runs, which is given the port; nothing with "".

    ``address`` is ``host:port``. Without a host every address of the machine is listened on; port 0
    lets the system choose one. Answers that are under way at the end are not waited for.

    Raises:
        AddressError: the address cannot be used.
    """
    if not address:
        yield 0
        return
    family, host, port = _parsed(address)
    try:
        server = _Server(family, (host, port), _application(registry, probes))
    except OSError as error:
        raise AddressError(f"cannot listen on {address}: {error.strerror or error}") from error
    threading.Thread(target=server.serve_forever, name="monitoring", daemon=True).start()
    _log.info("metrics and probes are served", extra={"port": server.server_port})
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


class _Server(BoundedServer, WSGIServer):
    def __init__(
        self,
        family: socket.AddressFamily,
        address: tuple[str, int],
        application: Callable[..., Iterable[bytes]],
    ) -> None:
        self.address_family = family
        places = OpenConnections(most=_MOST, most_of_peer=_MOST_OF_PEER)
        super().__init__(address, _Handler, places)
        self.set_app(application)

    def server_bind(self) -> None:
        if self.address_family is socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = _STALL_SECONDS

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Logs nothing: a probe every few seconds is not worth a line."""


def _application(registry: CollectorRegistry, probes: Probes) -> Callable[..., Iterable[bytes]]:
    metrics, pace = make_wsgi_app(registry), Pace()
    checks = {"/healthz": (probes.live,), "/readyz": (probes.live, probes.ready)}

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            answer: Iterable[bytes] = pace.call(lambda: metrics(environ, start))
            return answer
        if path in checks:
            return _probed(checks[path], start)
        start("404 Not Found", [_TEXT])
        return [b"there are /metrics, /healthz and /readyz\n"]

    return application


def _probed(checks: Iterable[Checks], start: Callable[..., Any]) -> Iterable[bytes]:
    problems = [problem for each in checks for problem in each.problems()]
    start("503 Service Unavailable" if problems else "200 OK", [_TEXT])
    return ["".join(f"{line}\n" for line in problems or ["ok"]).encode()]


def _parsed(address: str) -> tuple[socket.AddressFamily, str, int]:
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > _LAST_PORT:
        raise AddressError(
            f"{address!r} is no address; give host:port, [IPv6 address]:port or :port"
        )
    host, port = match["v6"] or match["host"] or "", int(match["port"])
    if not host and match["v6"] is None:
        # One socket for both families, where the machine has both.
        both = socket.has_dualstack_ipv6()
        return (socket.AF_INET6, "::", port) if both else (socket.AF_INET, "", port)
    return (socket.AF_INET6 if match["v6"] is not None else socket.AF_INET), host, port
