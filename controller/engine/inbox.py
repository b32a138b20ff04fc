"""Inbox of changes, from the reflectors' threads to the thread that owns the cluster index."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from dra.common.resources import MIG_NODES, Resource
from dra.kube.reflector import Change

_SHARE = 0.05
"""Share of the deciding thread's time that changes of one MigNode may take."""
_BURST_SECONDS = 0.5
"""Time that they may take at once, as where a node's GPUs are seen for the first time."""
_LONGEST_SECONDS = 60.0
_SHORT_SECONDS = 0.001


class Inbox:
    """Changes in the order in which they came; None says that all was listed. Thread-safe.

    A MigNode that took more than its share waits for a while, and only its latest state is kept:
    however large it is, and however often it changes, its node has no more of the time.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._changes: deque[tuple[Resource, Change | None]] = deque()
        self._held: dict[str, Change] = {}
        self._not_before: dict[str, float] = {}
        self._taken: dict[str, tuple[float, float]] = {}
        self._arrived = threading.Condition()
        self._woken = False

    def put(self, resource: Resource, change: Change | None) -> None:
        """Leave a change."""
        with self._arrived:
            name = mignode_of(resource, change)
            if change is not None and name in self._not_before:
                self._held[name] = change
            else:
                self._changes.append((resource, change))
            self._arrived.notify()

    def charge(self, name: str, seconds: float) -> None:
        """To take a change of that MigNode took so much time of the processor."""
        if seconds < _SHORT_SECONDS:
            return
        now = self._now()
        with self._arrived:
            before, at = self._taken.get(name, (0.0, now))
            taken = max(0.0, before - _SHARE * (now - at)) + seconds
            self._taken[name] = taken, now
            if taken > _BURST_SECONDS:
                pause = min((taken - _BURST_SECONDS) / _SHARE, _LONGEST_SECONDS)
                self._not_before[name] = now + pause

    def wake(self) -> None:
        """End the wait that is going on, or the next one."""
        with self._arrived:
            self._woken = True
            self._arrived.notify()

    def take(self, timeout: float | None = 0.0) -> list[tuple[Resource, Change | None]]:
        """All changes, waiting at most ``timeout`` seconds (None: for ever) for the first.

        A MigNode that is held may have it return early, and with nothing.
        """
        with self._arrived:
            self._release()
            if not self._changes and not self._woken and timeout != 0.0:
                self._arrived.wait(self._until_release(timeout))
                self._release()
            self._woken = False
            taken = [*self._changes]
            self._changes.clear()
        return taken

    def _release(self) -> None:
        """Let those go on whose pause is over."""
        if not self._not_before:
            return
        now = self._now()
        for name in [name for name, at in self._not_before.items() if at <= now]:
            del self._not_before[name]
            if (change := self._held.pop(name, None)) is not None:
                self._changes.append((MIG_NODES, change))

    def _until_release(self, timeout: float | None) -> float | None:
        if not self._held:
            return timeout
        first = max(0.0, min(self._not_before[name] for name in self._held) - self._now())
        return first if timeout is None else min(first, timeout)


def mignode_of(resource: Resource, change: Change | None) -> str:
    """Name of the MigNode that a change is about; empty for other changes."""
    obj = (change.new or change.old or {}) if change is not None else {}
    return str(obj.get("metadata", {}).get("name", "")) if resource == MIG_NODES else ""
