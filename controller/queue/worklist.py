"""Work list: each key once, the most urgent first, failures after a pause."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from controller.queue.ready import Ready, Urgent
from dra.common.queues import Timers
from dra.kube.timing import Backoff

K = TypeVar("K", bound=Hashable)

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 30.0


class WorkList(Generic[K]):
    """Keys that wait to be looked at. ``now`` gives monotonic seconds. Not thread-safe.

    A key is due at once or at a time; adding it again keeps the earlier time. Of those that are due
    ``ready`` chooses by the ``order`` that they were added with, at first the least.
    """

    def __init__(self, now: Callable[[], float], ready: Ready[K] | None = None) -> None:
        self._now = now
        self._order: dict[K, Any] = {}
        self._ready: Ready[K] = Urgent() if ready is None else ready
        self._later: Timers[K] = Timers()
        self._failures: dict[K, Backoff] = {}

    def add(self, key: K, order: Any, *, at: float | None = None) -> None:
        """Look at ``key`` at once, or at the monotonic time ``at``."""
        due = self._later.get(key)
        if at is not None and at > self._now():
            if key not in self._order or (due is not None and due > at):
                self._order[key] = order
                self._later.set(key, at)
        elif key not in self._order or due is not None or self._order[key] != order:
            self._order[key] = order
            self._later.discard(key)
            self._ready.put(key, order)

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
        self._later.discard(key)

    def forget_failure(self, key: K) -> None:
        """Forget the failures of ``key``."""
        self._failures.pop(key, None)

    def peek(self) -> Any | None:
        """The ``order`` of the next key that is due, None when none is."""
        if not self._order:
            return None
        for key in self._later.take(self._now()):
            self._ready.put(key, self._order[key])
        while (found := self._ready.first()) is not None:
            key, order = found
            if key in self._order and self._order[key] == order and self._later.get(key) is None:
                return order
            self._ready.drop()
        return None

    def pop(self) -> K | None:
        """The next key that is due, or None."""
        found = None if self.peek() is None else self._ready.first()
        if found is None:
            return None
        self._ready.take()
        del self._order[found[0]]
        return found[0]

    def next_due(self) -> float | None:
        """The monotonic time of the next key: now or in the past when one is ready."""
        return self._now() if len(self._order) > len(self._later) else self._later.next()
