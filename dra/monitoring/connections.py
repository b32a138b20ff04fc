"""Connections of a server with a thread for each: bounded, whoever opens how many.

Any pod may be let to the port of a daemon's probes. One that opens connections and says nothing
would have a thread and an open file for each, until neither records nor probes are served.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any


class OpenConnections:
    """Connections by age: ``most`` in all, and ``most_of_peer`` of one address. Thread-safe.

    A new one always has its place: that of the oldest of its own peer, or of the peer with most.
    """

    def __init__(self, *, most: int, most_of_peer: int) -> None:
        self._most = most
        self._most_of_peer = most_of_peer
        self._lock = threading.Lock()
        self._peers: dict[socket.socket, str] = {}

    def add(self, connection: socket.socket, peer: str) -> None:
        """Take a connection, and end another if there are too many: its thread finds that."""
        with self._lock:
            over = self._find_over(peer)
            if over is not None:
                del self._peers[over]
            self._peers[connection] = peer
        if over is not None:
            with suppress(OSError):
                # Not that of TLS, whose state is its thread's.
                socket.socket.shutdown(over, socket.SHUT_RDWR)

    def discard(self, connection: socket.socket) -> None:
        """A connection has ended."""
        with self._lock:
            self._peers.pop(connection, None)

    def _find_over(self, peer: str) -> socket.socket | None:
        counts = Counter(self._peers.values())
        if counts[peer] < self._most_of_peer:
            if len(self._peers) < self._most:
                return None
            (peer, _), *_ = counts.most_common(1)
        return next(connection for connection, each in self._peers.items() if each == peer)


class BoundedThreads(ThreadingMixIn):
    """A thread for each connection of a server, of as many as ``connections`` lets be."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    """With five, as is usual, a burst of connections has others wait for a second and more."""
    connections: OpenConnections

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own."""
        self.connections.add(request, str(client_address[0]))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        self.connections.discard(request)
        super().shutdown_request(request)  # type: ignore[misc]
