"""This plugin's unix sockets: the gRPC server on them, their paths, and sockets of ended processes.

During an update two processes of the plugin run at once. The names of their sockets contain the
process's ``instance``, so that kubelet knows both and neither removes the other's sockets.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc

from kubeletplugin import times
from kubeletplugin.errors import HostError
from kubeletplugin.options import Options

MAX_SOCKET_PATH = 107
"""Longest path of a socket in bytes: Linux has room for 108 with the closing zero."""
_log = logging.getLogger(__name__)
_HASH_CHARACTERS = 12


class SocketServer:
    """gRPC server on the sockets of all ``paths``.

    ``register``: adds the services to the server. All sockets have one server, as each server has a
    thread that wakes up five times a second even if nobody calls.
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
        """Bind the sockets in the order of the paths, and serve; existing sockets are replaced.

        Raises:
            HostError: a directory cannot be used, or something at a path is no socket.
        """
        for path in self._paths:
            self._bind(path)
        self._server.start()
        _log.info("serving on %s", ", ".join(map(str, self._paths)))

    def _bind(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink() or path.exists():
                if not stat.S_ISSOCK(path.lstat().st_mode):
                    raise HostError(f"{path} is in the way: it is no socket; remove it")
                path.unlink()
            self._server.add_insecure_port(f"unix:{path}")
        except (OSError, RuntimeError) as error:
            raise HostError(f"cannot serve on {path}: {error}") from error

    def withdraw(self, path: Path) -> None:
        """Remove one of the sockets, so that no new caller finds it."""
        # gRPC would unlink the paths only after the wait of ``stop``; kubelet is to notice first.
        path.unlink(missing_ok=True)

    def stop(self, grace: float) -> None:
        """Remove the sockets, refuse new calls, wait up to ``grace`` seconds for running calls."""
        for path in reversed(self._paths):
            self.withdraw(path)
        self._server.stop(grace).wait()
        self._workers.shutdown(wait=False)


def check_length(path: Path) -> None:
    """Check that a path fits into a socket address.

    Raises:
        HostError: the path is too long; says its length and the limit.
    """
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH:
        raise HostError(
            f"socket path {path} has {length} characters, at most {MAX_SOCKET_PATH} fit; "
            "use a shorter --driver-name or --kubelet-root"
        )


@dataclass(frozen=True, slots=True)
class Sockets:
    """Paths of a process's two sockets.

    ``registration``: socket that kubelet looks for. ``service``: socket of the services.
    """

    registration: Path
    service: Path


def sockets(options: Options) -> Sockets:
    """Paths of this process's sockets.

    If the instance makes a path too long for a socket, its hash is taken instead.

    Raises:
        HostError: a path is too long even so.
    """
    found = _named(options, options.instance)
    longest = max(len(os.fsencode(path)) for path in (found.registration, found.service))
    if options.instance and longest > MAX_SOCKET_PATH:
        short = hashlib.sha256(options.instance.encode()).hexdigest()[:_HASH_CHARACTERS]
        found = _named(options, short)
    for path in (found.registration, found.service):
        check_length(path)
    return found


def remove_stale(options: Options) -> None:
    """Remove sockets of earlier processes of this driver on which nobody listens.

    To be called by the program that has the node's GPUs: one that waits for them has no sockets
    yet. The instances of earlier processes are read from the driver's own directory, as
    kubelet's registry has sockets of other drivers too.
    """
    mine = sockets(options)
    for service, instance in _services(options):
        for path in (_named(options, instance).registration, service):
            if path not in {mine.registration, mine.service} and _is_stale(path):
                _log.info("removing %s, which an earlier process left", path)
                path.unlink(missing_ok=True)


def listeners(options: Options) -> list[Path]:
    """Registration sockets for this driver's name on which a process listens.

    To be called by the owner of the state directory before it has sockets, so that no socket found
    is a socket of this plugin.
    """
    found = sorted(options.roots.registry.glob(f"{options.driver_name}*-reg.sock"))
    mark = len(options.driver_name)
    return [path for path in found if path.name[mark] == "-" and not connect(path)]


def connect(path: Path, seconds: float = times.SOCKET_SECONDS) -> OSError | None:
    """Try to connect to a socket; None if a process listens on it, else the error."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(seconds)
            probe.connect(str(path))
    except OSError as error:
        return error
    return None


def _named(options: Options, instance: str) -> Sockets:
    middle = f"-{instance}" if instance else ""
    return Sockets(
        options.roots.registry / f"{options.driver_name}{middle}-reg.sock",
        options.roots.plugin(options.driver_name) / f"dra{middle}.sock",
    )


def _services(options: Options) -> Iterator[tuple[Path, str]]:
    try:
        names = sorted(options.roots.plugin(options.driver_name).glob("dra*.sock"))
    except OSError:
        return
    for path in names:
        middle = path.name.removeprefix("dra").removesuffix(".sock")
        if not middle or middle.startswith("-"):
            yield path, middle.removeprefix("-")


def _is_stale(path: Path) -> bool:
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        return False
    return is_socket and isinstance(connect(path), ConnectionRefusedError)
