"""Turns of groups, such as namespaces: none waits behind all entries of another."""

from __future__ import annotations

import heapq
from typing import Any

_FEW = 64


class Turns:
    """Groups that wait, each with a rank: the least comes first. Not thread-safe.

    Among equals that group comes first which has waited longest since its last turn. A call costs
    as much as the logarithm of the number of groups, over many calls.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Any, int]] = {}
        self._heap: list[tuple[Any, int, str]] = []
        self._ticket = 0

    def wait(self, group: str, rank: Any = 0) -> None:
        """Have ``group`` wait with a rank; one that waits already keeps its place among equals."""
        known = self._waiting.get(group)
        if known is None:
            self._ticket += 1
            self._put(group, rank, self._ticket)
        elif known[0] != rank:
            self._put(group, rank, known[1])

    def leave(self, group: str) -> None:
        """The group waits no longer."""
        self._waiting.pop(group, None)

    def first(self) -> str | None:
        """The group whose turn it is, None when none waits."""
        while self._heap:
            rank, ticket, group = self._heap[0]
            if self._waiting.get(group) == (rank, ticket):
                return group
            heapq.heappop(self._heap)
        return None

    def clear(self) -> None:
        """Have no group wait."""
        self._waiting.clear()
        self._heap.clear()

    def _put(self, group: str, rank: Any, ticket: int) -> None:
        self._waiting[group] = rank, ticket
        heapq.heappush(self._heap, (rank, ticket, group))
        if len(self._heap) > _FEW + 2 * len(self._waiting):  # most are out of date
            self._heap = [(*place, name) for name, place in self._waiting.items()]
            heapq.heapify(self._heap)
