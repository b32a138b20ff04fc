"""Inbox of changes, from the reflectors' threads to the thread that owns the cluster index."""

from __future__ import annotations

import threading
from collections import deque

from dra.common.resources import Resource
from dra.kube.mirror.reflector import Change


class Inbox:
    """Changes in the order in which they came; None says that all was listed. Thread-safe."""

    def __init__(self) -> None:
        self._changes: deque[tuple[Resource, Change | None]] = deque()
        self._arrived = threading.Condition()
        self._woken = False

    def put(self, resource: Resource, change: Change | None) -> None:
        """Leave a change."""
        with self._arrived:
            self._changes.append((resource, change))
            self._arrived.notify()

    def wake(self) -> None:
        """End the wait that is going on, or the next one."""
        with self._arrived:
            self._woken = True
            self._arrived.notify()

    def take(self, timeout: float | None = 0.0) -> list[tuple[Resource, Change | None]]:
        """All changes, waiting at most ``timeout`` seconds (None: for ever) for the first."""
        with self._arrived:
            if not self._changes and not self._woken and timeout != 0.0:
                self._arrived.wait(timeout)
            self._woken = False
            taken = [*self._changes]
            self._changes.clear()
        return taken
