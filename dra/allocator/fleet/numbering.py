"""Numbers for equal values, so that results can be cached per value."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Numbering(Generic[T]):
    """One number per distinct value in use; numbers are not used again. Not thread-safe."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}
        self._uses: dict[T, int] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def acquire(self, value: T) -> int:
        """The number of ``value``; to be given back by ``release``."""
        if value not in self._numbers:
            self._last += 1
            self._numbers[value], self._uses[value] = self._last, 0
        self._uses[value] += 1
        return self._numbers[value]

    def find(self, value: T) -> int | None:
        """The number of ``value``, None where nobody uses it."""
        return self._numbers.get(value)

    def release(self, value: T) -> None:
        """Give the number of ``value`` back."""
        self._uses[value] -= 1
        if not self._uses[value]:
            del self._numbers[value], self._uses[value]
