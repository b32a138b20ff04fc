"""Who wants to know that something of this node may have changed."""

from __future__ import annotations

from collections.abc import Callable


class Listeners:
    """Calls them all, in their order."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    def add(self, listener: Callable[[], None]) -> None:
        """One more; before any thread runs."""
        self._listeners.append(listener)

    def __call__(self) -> None:
        """Something may have changed."""
        for listener in self._listeners:
            listener()
