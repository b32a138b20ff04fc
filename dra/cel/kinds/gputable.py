"""Table of the answers to selectors that tell GPUs apart, with one byte for each GPU."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

_MOST = 254


class GpuTable(Generic[T]):
    """A result for each of the GPUs, which are known by small numbers.

    Results are few: after 254 different ones the last stands for any other.
    """

    def __init__(self) -> None:
        self._codes = bytearray()
        self._results: list[T] = []
        self._code_of: dict[T, int] = {}

    @property
    def weight(self) -> int:
        """Bytes that the codes take."""
        return len(self._codes)

    def get(self, number: int) -> T | None:
        """The result for a GPU, None when there is none yet."""
        code = self._codes[number] if number < len(self._codes) else 0
        return self._results[code - 1] if code else None

    def put(self, number: int, result: T) -> None:
        """Take the result for a GPU."""
        code = self._code_of.get(result)
        if code is None:
            if len(self._results) < _MOST:
                self._results.append(result)
            code = self._code_of[result] = len(self._results)
            if len(self._code_of) > _MOST:
                del self._code_of[result]
        if number >= len(self._codes):
            self._codes.extend(bytes(number + 1 - len(self._codes)))
        self._codes[number] = code
