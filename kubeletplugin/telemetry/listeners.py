"""Listeners that are told when something of this node may have changed."""

from __future__ import annotations

from collections.abc import Callable


class Listeners:
    """Calls them all, in their order."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[], None]] = []

    def add(self, *listeners: Callable[[], None]) -> None:
        """Add some, before any thread runs."""
        self._listeners.extend(listeners)

    def __call__(self) -> None:
        """Tell all that something may have changed."""
        for listener in self._listeners:
            listener()
