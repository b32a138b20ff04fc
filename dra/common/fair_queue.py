"""Queue that serves groups by turns: one of many entries keeps nobody else's waiting."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from dra.common.turns import Turns

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
