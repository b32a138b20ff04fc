"""Keys that are ranked, such as by the time at which each is due."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Any, Generic, TypeVar

_FEW = 64

K = TypeVar("K", bound=Hashable)


class Ranked(Generic[K]):
    """Keys, each with a rank: the least comes first. Not thread-safe.

    Among equals that key comes first which came first. A call costs as much as the logarithm of the
    number of keys, over many calls.
    """

    def __init__(self) -> None:
        self._known: dict[K, tuple[Any, int]] = {}
        self._heap: list[tuple[Any, int, K]] = []
        self._ticket = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: K) -> Any:
        """The rank of a key, None when it has none."""
        known = self._known.get(key)
        return None if known is None else known[0]

    def put(self, key: K, rank: Any) -> None:
        """Give a key its rank; one that has another already keeps its place among equals."""
        known = self._known.get(key)
        if known is not None and known[0] == rank:
            return
        self._ticket += 1
        place = self._known[key] = rank, self._ticket if known is None else known[1]
        heapq.heappush(self._heap, (*place, key))
        if len(self._heap) > _FEW + 2 * len(self._known):  # most are out of date
            self._heap = [(*place, name) for name, place in self._known.items()]
            heapq.heapify(self._heap)

    def discard(self, key: K) -> None:
        """Take the rank away from a key that has one."""
        self._known.pop(key, None)

    def first(self) -> K | None:
        """The key with the least rank, None when there is none."""
        while self._heap:
            rank, ticket, key = self._heap[0]
            if self._known.get(key) == (rank, ticket):
                return key
            heapq.heappop(self._heap)
        return None
