"""A gRPC server on a unix socket of which this process is the owner."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from kubeletplugin.errors import HostError

MAX_SOCKET_PATH = 107
"""Characters: Linux has room for 108 with the closing zero."""
_log = logging.getLogger(__name__)


class SocketServer:
    """Serves what ``register`` adds on all of ``paths``, from ``start`` to ``stop``.

    One server for all of them: each has a thread of its own, which looks about itself five times a
    second for as long as nobody calls.
    """

    def __init__(self, *paths: Path, register: Callable[[grpc.Server], None], workers: int) -> None:
        self._paths = paths
        for path in paths:
            check_length(path)
        self._workers = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="kubelet")
        self._server = grpc.server(
            self._workers,
            # Two processes on one socket would each get some of the calls.
            options=[("grpc.so_reuseport", 0)],
        )
        register(self._server)

    def start(self) -> None:
        """Bind in the order of the paths, and serve; stale sockets of these names are replaced.

        Raises:
            HostError: a directory cannot be used, or a path is no socket.
        """
        for path in self._paths:
            self._bind(path)
        self._server.start()
        _log.info("serving on %s", ", ".join(map(str, self._paths)))

    def _bind(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_socket(path)
            self._server.add_insecure_port(f"unix:{path}")
        except (OSError, RuntimeError) as error:
            raise HostError(f"cannot serve on {path}: {error}") from error

    def withdraw(self, path: Path) -> None:
        """Remove one of the sockets, so that nobody new finds it."""
        # gRPC would unlink the paths only after the wait of ``stop``; kubelet is to notice first.
        path.unlink(missing_ok=True)

    def stop(self, grace: float) -> None:
        """Take no more calls, wait ``grace`` seconds for those that run, remove the sockets."""
        for path in reversed(self._paths):
            self.withdraw(path)
        self._server.stop(grace).wait()
        self._workers.shutdown(wait=False)


def fits(path: Path) -> bool:
    """True if a path is short enough for a socket address."""
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH


def check_length(path: Path) -> None:
    """Refuse a path that does not fit into a socket address.

    Raises:
        HostError: says how much is too much.
    """
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH:
        raise HostError(
            f"socket path {path} has {length} characters, at most {MAX_SOCKET_PATH} fit; "
            "use a shorter --driver-name or --kubelet-root"
        )


def _remove_socket(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise HostError(f"{path} is in the way: it is no socket; remove it")
    path.unlink()
