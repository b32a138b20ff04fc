"""A bounded memory of results."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """The ``limit`` results that were used last. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def values(self) -> Iterable[V]:
        """The results that are remembered."""
        return self._known.values()

    def get(self, key: K, compute: Callable[[], V]) -> V:
        """The result for ``key``, computed when it is not remembered."""
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        value = compute()
        self._known[key] = value
        if len(self._known) > self._limit:
            self._known.popitem(last=False)
        return value
