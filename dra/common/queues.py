"""Queues that serve groups by turns, and keys that are due at a time each."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any, Generic, TypeVar

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


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class FairQueue(Generic[K, V]):
    """Entries by key, each of a group such as a namespace; within one, the oldest goes first.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._groups: dict[str, OrderedDict[K, V]] = {}
        self._group_of: dict[K, str] = {}
        self._turns = Turns()
        self._largest = Turns()

    def __len__(self) -> int:
        return len(self._group_of)

    def get(self, key: K) -> V | None:
        """The entry of ``key``, if there is one."""
        group = self._group_of.get(key)
        return None if group is None else self._groups[group][key]

    def put(self, group: str, key: K, value: V) -> None:
        """Add an entry, or change that of ``key``, which keeps its place."""
        group = self._group_of.setdefault(key, group)
        self._groups.setdefault(group, OrderedDict())[key] = value
        self._resized(group)

    def discard(self, key: K) -> None:
        """Take an entry out, if there is one."""
        group = self._group_of.pop(key, None)
        if group is not None:
            del self._groups[group][key]
            self._resized(group)

    def first(self) -> tuple[K, V] | None:
        """The oldest entry of the group whose turn it is, None when there is none."""
        group = self._turns.first()
        return None if group is None else next(iter(self._groups[group].items()))

    def take(self, key: K) -> V:
        """Take an entry out; its group is the last to have a turn again.

        Raises:
            KeyError: there is none.
        """
        group = self._group_of[key]
        value = self._groups[group][key]
        self._turns.leave(group)
        self.discard(key)
        return value

    def drop_of_largest(self) -> None:
        """Take out the oldest entry of the group that has most; there must be one."""
        largest = self._largest.first()
        if largest is not None:
            self.discard(next(iter(self._groups[largest])))

    def clear(self) -> None:
        """Take all entries out."""
        self._groups.clear()
        self._group_of.clear()
        self._turns.clear()
        self._largest.clear()

    def _resized(self, group: str) -> None:
        size = len(self._groups[group])
        if size:
            self._turns.wait(group)
            self._largest.wait(group, -size)
        else:
            del self._groups[group]
            self._turns.leave(group)
            self._largest.leave(group)


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
