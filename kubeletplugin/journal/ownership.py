"""Ownership of the node's state: one process at a time."""

from __future__ import annotations

import fcntl
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from kubeletplugin.errors import HostError

_log = logging.getLogger(__name__)


@contextmanager
def exclusive(
    state: Path, stop: threading.Event, *, waits: Callable[[], None] = lambda: None
) -> Iterator[bool]:
    """Own the node's state; a second process waits until the first is gone. False: told to stop.

    ``waits`` is called if it has to wait, once.

    Raises:
        HostError: the directory cannot be made or written.
    """
    with _lock_file(state) as file:
        told = False
        while not stop.is_set():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    _log.warning("another plugin owns %s; waiting until it ends", state)
                    told = True
                    waits()
                stop.wait(0.2)
                continue
            yield True
            return
        yield False


@contextmanager
def owned_at_once(state: Path) -> Iterator[bool]:
    """Own the node's state, if nobody else does at this moment.

    Raises:
        HostError: the directory cannot be made or written.
    """
    with _lock_file(state) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _lock_file(state: Path) -> TextIO:
    try:
        state.mkdir(parents=True, exist_ok=True)
        return (state / "lock").open("w")
    except OSError as error:
        raise HostError(
            f"cannot use the state directory {state}: {error.strerror or error}"
        ) from error
