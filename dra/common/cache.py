"""A bounded memory of results."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Generic, TypeVar

_UNPACKED = 8
"""Bytes that decoded JSON takes for each byte of its text, roughly."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """Results that were used last, as many as weigh ``limit`` together. Not thread-safe.

    ``weigh`` gives the weight of a result when it is put, by key and result; without it each weighs
    1. The newest result is kept, however much it weighs.
    """

    def __init__(self, limit: int, *, weigh: Callable[[K, V], int] | None = None) -> None:
        self._limit = limit
        self._weigh = weigh
        self._weight = 0
        self._known: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    @property
    def weight(self) -> int:
        """Weight of all remembered results."""
        return self._weight

    def values(self) -> Iterator[V]:
        """The results that are remembered."""
        return (value for value, _ in self._known.values())

    def items(self) -> Iterator[tuple[K, V]]:
        """The keys with their results."""
        return ((key, value) for key, (value, _) in self._known.items())

    def find(self, key: K) -> V | None:
        """The result for ``key``, None when it is not remembered."""
        found = self._known.get(key)
        if found is None:
            return None
        self._known.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V) -> None:
        """Remember a result for ``key``, instead of an earlier one."""
        self.drop(key)
        weight = 1 if self._weigh is None else self._weigh(key, value)
        self._known[key] = value, weight
        self._weight += weight
        while self._weight > self._limit and len(self._known) > 1:
            self.drop(next(iter(self._known)))

    def get(self, key: K, compute: Callable[[], V]) -> V:
        """The result for ``key``, computed when it is not remembered."""
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key][0]
        value = compute()
        self.put(key, value)
        return value

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()
        self._weight = 0

    def drop(self, key: K) -> None:
        """Forget the result for ``key``, if it is remembered."""
        known = self._known.pop(key, None)
        if known is not None:
            self._weight -= known[1]


def json_weight(key: bytes, _value: object) -> int:
    """Bytes, roughly, of a result that was made from JSON and has that JSON as its key."""
    return 500 + _UNPACKED * len(key)


def decoded_weight(text: bytes) -> int:
    """Bytes that JSON takes as Python objects, roughly: small ones take many times their text."""
    return len(text) + 60 * text.count(b",") + 200 * (text.count(b"{") + text.count(b"["))


M = TypeVar("M", bound=Hashable)


class Index(Generic[K, M]):
    """Members by key. A single member is held without a set, which would take 216 bytes."""

    def __init__(self) -> None:
        self._single: dict[K, M] = {}
        self._several: dict[K, set[M]] = {}

    def add(self, key: K, member: M) -> None:
        """Add a member to those of a key; one that is there already stays."""
        if key in self._several:
            self._several[key].add(member)
        elif key not in self._single:
            self._single[key] = member
        elif self._single[key] != member:
            self._several[key] = {self._single.pop(key), member}

    def discard(self, key: K, member: M) -> None:
        """Take a member away from those of a key, if it is there."""
        if key in self._several:
            members = self._several[key]
            members.discard(member)
            if len(members) == 1:
                self._single[key] = members.pop()
                del self._several[key]
        elif key in self._single and self._single[key] == member:
            del self._single[key]

    def of(self, key: K) -> Collection[M]:
        """Members of a key; not to be kept over a change."""
        if key in self._single:
            return (self._single[key],)
        return self._several.get(key, ())

    def items(self) -> Iterator[tuple[K, Collection[M]]]:
        """Keys that have members, and these."""
        for key, member in self._single.items():
            yield key, (member,)
        yield from self._several.items()

    def __len__(self) -> int:
        return len(self._single) + len(self._several)
