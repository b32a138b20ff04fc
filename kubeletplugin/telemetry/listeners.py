"""Listeners that are told when something of this node may have changed."""

from __future__ import annotations

from collections.abc import Callable

from dra.kube.loop import Loop
from dra.kube.timing import Clock

_GATHER_SECONDS = 0.05
"""Changes of that time are told of together: the steps of a Prepare, which is answered by then, and
what the look at its GPU has shown."""


class Listeners:
    """Calls them all, in their order, in one thread. To say that there was a change waits for none.

    Whoever is told goes to work, and those that work share one interpreter: told at once, they
    would hold up the very Prepare that made the change.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._first: list[Callable[[], None]] = []
        self._listeners: list[Callable[[], None]] = []
        self.thread = Loop("changes", self._turn, clock=clock)

    def add(self, *listeners: Callable[[], None]) -> None:
        """Add some, before the thread runs."""
        self._listeners.extend(listeners)

    def add_first(self, *first: Callable[[], None]) -> None:
        """Add some that find out what has changed: the others are told of that with the rest."""
        self._first.extend(first)

    def start(self) -> None:
        """Begin; what was said before is told now."""
        self.thread.start()

    def stop(self) -> None:
        """End; nobody is told of anything from now on."""
        self.thread.stop()
        self.thread.join()

    def __call__(self) -> None:
        """Tell all soon that something may have changed. From any thread."""
        self.thread.notify()

    def tell(self) -> None:
        """Tell all now, in the thread of whoever calls."""
        for listener in (*self._first, *self._listeners):
            listener()

    def _turn(self) -> None:
        if self.thread.gather(_GATHER_SECONDS):
            return
        for first in self._first:
            first()
        if not self.thread.gather(0.0):
            for listener in self._listeners:
                listener()
