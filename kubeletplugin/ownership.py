"""One node program at a time has the GPUs of a node, whatever its driver name and namespace.

Its lock is a file in the directory that all node programs of a node share: kubelet's of
registration sockets, where kubelet passes over names that begin with a dot.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dra.kube.kubeconfig import SERVICE_ACCOUNT
from kubeletplugin.errors import HostError

LOCK = ".mig-dra-driver.lock"

_log = logging.getLogger(__name__)
_WAIT_SECONDS = 0.2
_LONGEST = 1024


def this_program(driver: str, account: Path = SERVICE_ACCOUNT) -> str:
    """Words for this process: ``<namespace>/<pod> of driver <name>``, outside pods its host."""
    try:
        namespace = (account / "namespace").read_text().strip()
    except OSError:
        namespace = ""
    name = os.environ.get("POD_NAME") or socket.gethostname()
    return f"{namespace}/{name} of driver {driver}".removeprefix("/")


def is_replica(one: str, other: str) -> bool:
    """True if two programs are of one installation: the same namespace and driver."""
    parts = [(p.rpartition("/")[0], p.partition(" of driver ")[2]) for p in (one, other)]
    return parts[0] == parts[1]


@contextmanager
def exclusive(
    registry: Path, own: str, stop: threading.Event, *, waits: Callable[[str], None]
) -> Iterator[bool]:
    """Own the GPUs of the node; a second program waits until the first has ended.

    Yields True as the owner, False if ``stop`` was set while waiting. ``own``: words for this
    program. ``waits``: called with the words for the owner if this program has to wait.

    Raises:
        HostError: the directory ``registry`` cannot be made or written.
    """
    told = None
    while not stop.is_set():
        with owned_at_once(registry, own) as owner:
            if not owner:
                yield True
                return
        if told != owner:
            _log.warning("%s has the GPUs of this node; waiting until it ends", owner)
            told = owner
            waits(owner)
        stop.wait(_WAIT_SECONDS)
    yield False


@contextmanager
def owned_at_once(registry: Path, own: str) -> Iterator[str]:
    """Own the GPUs of the node, if no other program does; yields the owner if another does.

    Raises:
        HostError: the directory ``registry`` cannot be made or written.
    """
    try:
        registry.mkdir(parents=True, exist_ok=True)
        file = (registry / LOCK).open("a+")
    except OSError as error:
        raise HostError(f"cannot use {registry}: {error.strerror or error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            yield file.read(_LONGEST) or "another program"
        else:
            file.truncate(0)
            file.write(own)
            file.flush()
            yield ""
