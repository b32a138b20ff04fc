"""Queue that serves groups by turns: one of many entries keeps nobody else's waiting."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class FairQueue(Generic[K, V]):
    """Entries by key, each of a group such as a namespace; within one, the oldest goes first.

    Not thread-safe.
    """

    def __init__(self) -> None:
        self._groups: OrderedDict[str, OrderedDict[K, V]] = OrderedDict()
        self._group_of: dict[K, str] = {}

    def __len__(self) -> int:
        return len(self._group_of)

    def get(self, key: K) -> V | None:
        """The entry of ``key``, if there is one."""
        group = self._group_of.get(key)
        return None if group is None else self._groups[group][key]

    def put(self, group: str, key: K, value: V) -> None:
        """Add an entry, or change that of ``key``, which keeps its place."""
        self._group_of.setdefault(key, group)
        self._groups.setdefault(self._group_of[key], OrderedDict())[key] = value

    def discard(self, key: K) -> None:
        """Take an entry out, if there is one."""
        group = self._group_of.pop(key, None)
        if group is not None:
            del self._groups[group][key]
            if not self._groups[group]:
                del self._groups[group]

    def heads(self) -> Iterator[tuple[K, V]]:
        """The oldest entry of each group; those first whose turn is nearest."""
        return (next(iter(group.items())) for group in self._groups.values())

    def take(self, key: K) -> V:
        """Take an entry out; its group is the last to have a turn again.

        Raises:
            KeyError: there is none.
        """
        group = self._group_of[key]
        value = self._groups[group][key]
        self._groups.move_to_end(group)
        self.discard(key)
        return value

    def drop_of_largest(self) -> None:
        """Take out the oldest entry of the group that has most; there must be one."""
        largest = max(self._groups.values(), key=len)
        self.discard(next(iter(largest)))

    def clear(self) -> None:
        """Take all entries out."""
        self._groups.clear()
        self._group_of.clear()
