"""Paths of this plugin's sockets, and removal of sockets that ended plugins have left behind.

During an update two processes are there at once: their sockets carry their instance, so that
kubelet knows both and neither takes away the other's.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kubeletplugin.host.grpcserver import check_length, fits
from kubeletplugin.host.options import Options

_log = logging.getLogger(__name__)
_HASH_CHARACTERS = 12
_CONNECT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Sockets:
    """The registration socket, which kubelet looks for, and the one of the services."""

    registration: Path
    service: Path


def sockets(options: Options) -> Sockets:
    """Sockets of this process.

    An instance that makes a path too long for a socket is replaced by a hash of it.

    Raises:
        HostError: they are too long all the same.
    """
    found = _named(options, options.instance)
    if options.instance and not (fits(found.registration) and fits(found.service)):
        short = hashlib.sha256(options.instance.encode()).hexdigest()[:_HASH_CHARACTERS]
        found = _named(options, short)
    for path in (found.registration, found.service):
        check_length(path)
    return found


def remove_stale(options: Options) -> None:
    """Remove sockets of earlier processes of this driver on which nobody listens.

    Called by the owner of the state directory: one that waits for it has no socket yet. Which
    instances were ours stands in the driver's own directory; kubelet's registry has other drivers'.
    """
    mine = sockets(options)
    for service, instance in _services(options):
        theirs = _named(options, instance)
        for path in (theirs.registration, service):
            if path not in {mine.registration, mine.service} and _is_stale(path):
                _log.info("removing %s, which an earlier process left", path)
                path.unlink(missing_ok=True)


def listeners(options: Options) -> list[Path]:
    """Registration sockets for this driver's name on which somebody listens.

    For the owner of the state directory before it has sockets: then none of them is ours.
    """
    found = sorted(options.roots.registry.glob(f"{options.driver_name}*-reg.sock"))
    mark = len(options.driver_name)
    return [path for path in found if path.name[mark] == "-" and _is_heard(path)]


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
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return False
        _connect(path)
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _is_heard(path: Path) -> bool:
    try:
        _connect(path)
    except OSError:
        return False
    return True


def _connect(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_CONNECT_SECONDS)
        probe.connect(str(path))
