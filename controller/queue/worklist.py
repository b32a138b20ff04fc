"""Work list: each key once, the most urgent first, failures after a pause."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from dra.kube.timing import Backoff

K = TypeVar("K", bound=Hashable)

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 30.0
_FEW = 64


class WorkList(Generic[K]):
    """Keys that wait to be looked at. ``now`` gives monotonic seconds. Not thread-safe.

    A key is due at once or at a time; adding it again keeps the earlier time. ``order`` of a key
    is compared among those that are due: the least comes first.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._order: dict[K, Any] = {}
        self._ready: list[tuple[Any, int, K]] = []
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._failures: dict[K, Backoff] = {}
        self._ticket = 0

    def __len__(self) -> int:
        return len(self._order)

    @property
    def is_blank(self) -> bool:
        """True if neither a key nor a failure is known."""
        return not self._order and not self._failures

    def add(self, key: K, order: Any, *, at: float | None = None) -> None:
        """Look at ``key`` at once, or at the monotonic time ``at``."""
        self._ticket += 1
        if at is not None and at > self._now():
            if key in self._order and self._due.get(key, 0.0) <= at:
                return
            self._order[key], self._due[key] = order, at
            heapq.heappush(self._later, (at, self._ticket, key))
            self._tidy()
            return
        if key in self._order and key not in self._due and self._order[key] == order:
            return
        self._order[key] = order
        self._due.pop(key, None)
        heapq.heappush(self._ready, (order, self._ticket, key))

    def _tidy(self) -> None:
        """Forget the times of keys that were looked at earlier, once they are most of all."""
        if len(self._later) > _FEW + 2 * len(self._due):
            self._later = [(at, n, key) for n, (key, at) in enumerate(self._due.items())]
            heapq.heapify(self._later)

    def retry(self, key: K, order: Any) -> float:
        """Look at ``key`` again after a pause that doubles with every failure in a row."""
        backoff = self._failures.get(key)
        if backoff is None:
            backoff = Backoff(first=FIRST_PAUSE, limit=LONGEST_PAUSE, jitter=0)
            self._failures[key] = backoff
        pause = backoff.next_delay()
        self.add(key, order, at=self._now() + pause)
        return pause

    def discard(self, key: K) -> None:
        """Look at ``key`` no more; its failures stay known."""
        self._order.pop(key, None)
        self._due.pop(key, None)

    def forget_failure(self, key: K) -> None:
        """Forget the failures of ``key``."""
        self._failures.pop(key, None)

    def peek(self) -> Any | None:
        """The ``order`` of the most urgent key that is due, None when none is."""
        self._promote()
        while self._ready:
            order, _, key = self._ready[0]
            if self._is_current(key, order):
                return order
            heapq.heappop(self._ready)
        return None

    def pop(self) -> K | None:
        """The most urgent key that is due, or None."""
        if self.peek() is None:
            return None
        key = heapq.heappop(self._ready)[2]
        del self._order[key]
        return key

    def _is_current(self, key: K, order: Any) -> bool:
        return key in self._order and key not in self._due and bool(self._order[key] == order)

    def _promote(self) -> None:
        """Have ready what is due by now."""
        now = self._now()
        while self._later and self._later[0][0] <= now:
            at, ticket, key = heapq.heappop(self._later)
            if self._due.get(key) == at:
                del self._due[key]
                heapq.heappush(self._ready, (self._order[key], ticket, key))

    def next_due(self) -> float | None:
        """The monotonic time of the next key: now or in the past when one is ready."""
        if len(self._order) > len(self._due):
            return self._now()
        return min(self._due.values(), default=None)
