"""Timers: keys that are due at a time each."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_FEW = 64


class Timers(Generic[K]):
    """Times by key. Not thread-safe. Of equal times the one that was set first comes first.

    A call costs as much as the logarithm of the number of keys, over many calls.
    """

    def __init__(self) -> None:
        self._at: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._ticket = 0

    def __len__(self) -> int:
        return len(self._at)

    def get(self, key: K) -> float | None:
        """The time at which a key is due, None when it has none."""
        known = self._at.get(key)
        return None if known is None else known[0]

    def set(self, key: K, at: float) -> None:
        """Have a key due at a time, and at no other."""
        self._ticket += 1
        self._at[key] = at, self._ticket
        heapq.heappush(self._heap, (at, self._ticket, key))
        if len(self._heap) > _FEW + 2 * len(self._at):  # most are out of date
            self._heap = [(*place, known) for known, place in self._at.items()]
            heapq.heapify(self._heap)

    def discard(self, key: K) -> None:
        """Have a key due at no time."""
        self._at.pop(key, None)

    def next(self) -> float | None:
        """The earliest time, None when there is none."""
        while self._heap:
            at, ticket, key = self._heap[0]
            if self._at.get(key) == (at, ticket):
                return at
            heapq.heappop(self._heap)
        return None

    def take(self, now: float) -> Iterator[K]:
        """The keys that are due at ``now``, the earliest first; each is forgotten as it comes."""
        while (at := self.next()) is not None and at <= now:
            key = heapq.heappop(self._heap)[2]
            del self._at[key]
            yield key
