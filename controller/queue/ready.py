"""Ready keys of a work list, in the order in which to look at them.

Whoever uses these looks a key up itself when it comes, and passes over what is out of date.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

from dra.common.queues import Turns

K = TypeVar("K", bound=Hashable)


class Ready(Protocol[K]):
    """Keys with an order each; a key may be there more than once."""

    def put(self, key: K, order: Any) -> None:
        """Add a key."""

    def first(self) -> tuple[K, Any] | None:
        """The key to look at next with its order, None when there is none."""

    def drop(self) -> None:
        """Forget the first, which is out of date."""

    def take(self) -> None:
        """Forget the first, which is looked at."""


class Urgent(Generic[K]):
    """The least order goes first; of equals the one that came first."""

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int, K]] = []
        self._ticket = 0

    def put(self, key: K, order: Any) -> None:
        """Add a key."""
        self._ticket += 1
        heapq.heappush(self._heap, (order, self._ticket, key))

    def first(self) -> tuple[K, Any] | None:
        """The key to look at next with its order, None when there is none."""
        return (self._heap[0][2], self._heap[0][0]) if self._heap else None

    def drop(self) -> None:
        """Forget the first, which is out of date."""
        heapq.heappop(self._heap)

    def take(self) -> None:
        """Forget the first, which is looked at."""
        heapq.heappop(self._heap)


class Fair(Generic[K]):
    """Groups take turns; within one it goes as in ``Urgent``.

    ``group`` gives the group of a key. The groups with the least ``rank`` of their first key's
    order come before others, however often they had a turn.
    """

    def __init__(self, *, group: Callable[[K], str], rank: Callable[[Any], Any]) -> None:
        self._group = group
        self._rank = rank
        self._groups: dict[str, Urgent[K]] = {}
        self._turns = Turns()

    def put(self, key: K, order: Any) -> None:
        """Add a key."""
        group = self._group(key)
        if group not in self._groups:
            self._groups[group] = Urgent()
        self._groups[group].put(key, order)
        self._wait(group)

    def first(self) -> tuple[K, Any] | None:
        """The key to look at next with its order, None when there is none."""
        group = self._turns.first()
        return None if group is None else self._groups[group].first()

    def drop(self) -> None:
        """Forget the first, which is out of date."""
        group = self._turns.first()
        if group is not None:
            self._groups[group].drop()
            self._wait(group)

    def take(self) -> None:
        """Forget the first, which is looked at; its group comes last among equals."""
        group = self._turns.first()
        if group is not None:
            self._turns.leave(group)
            self._groups[group].take()
            self._wait(group)

    def _wait(self, group: str) -> None:
        first = self._groups[group].first()
        if first is None:
            del self._groups[group]
            self._turns.leave(group)
        else:
            self._turns.wait(group, self._rank(first[1]))
