"""Index of members by key, for tables where most keys have one member."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
M = TypeVar("M", bound=Hashable)


class Index(Generic[K, M]):
    """Members of each key. An only member is held without a set, which takes 216 bytes."""

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
        """Take a member away from those of a key, if it is one."""
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
