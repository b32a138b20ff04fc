"""Pace of what anybody may ask for, and what takes the program's time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from dra.kube.timing import Clock, SystemClock

T = TypeVar("T")
_REST = 4
_LONGEST_REST = 1.0


class Pace:
    """One call at a time, and a rest of four times as long after it, of a second at most.

    So calls take no more than a fifth of a processor, however many ask; who asks now and then waits
    for nothing. Thread-safe.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._rested_at = 0.0

    def call(self, work: Callable[[], T]) -> T:
        """The result of ``work``, once it is its turn."""
        with self._lock:
            now = self._clock.monotonic()
            if now < self._rested_at:
                self._clock.sleep(self._rested_at - now)
            began = self._clock.monotonic()
            try:
                return work()
            finally:
                ended = self._clock.monotonic()
                self._rested_at = ended + min(_LONGEST_REST, _REST * (ended - began))
