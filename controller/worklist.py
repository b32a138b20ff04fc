"""Work list: keys that wait to be looked at, at once or each at its time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from math import inf
from typing import Any, Generic, TypeVar

from controller import times
from dra.kube.timing import Backoff

_FEW = 64

K = TypeVar("K", bound=Hashable)


class Ranked(Generic[K]):
    """Keys, each with a rank: the key with the least rank comes first. Not thread-safe.

    Keys of equal rank come in the order in which they were added. The amortised cost of a call is
    the logarithm of the number of keys.
    """

    def __init__(self) -> None:
        self._known: dict[K, tuple[Any, int]] = {}
        self._heap: list[tuple[Any, int, K]] = []
        self._ticket = 0

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: K) -> Any:
        """The rank of a key, None when it has none."""
        known = self._known.get(key)
        return None if known is None else known[0]

    def put(self, key: K, rank: Any) -> None:
        """Give a key its rank; a key that had another rank keeps its order among equals."""
        known = self._known.get(key)
        if known is not None and known[0] == rank:
            return
        self._ticket += 1
        place = self._known[key] = rank, self._ticket if known is None else known[1]
        heapq.heappush(self._heap, (*place, key))
        if len(self._heap) > _FEW + 2 * len(self._known):  # most are out of date
            self._heap = [(*place, name) for name, place in self._known.items()]
            heapq.heapify(self._heap)

    def discard(self, key: K) -> None:
        """Take the rank away from a key that has one."""
        self._known.pop(key, None)

    def first(self) -> K | None:
        """The key with the least rank, None when there is none."""
        while self._heap:
            rank, ticket, key = self._heap[0]
            if self._known.get(key) == (rank, ticket):
                return key
            heapq.heappop(self._heap)
        return None


class WorkList(Generic[K]):
    """Keys that wait to be looked at. ``now`` gives monotonic seconds. Not thread-safe.

    A key is due at once or at a time; adding it again keeps the earlier time. Of the due keys, the
    one with the least ``order`` goes first, of equals the one that was added first.

    ``group``: the group of a key; groups take turns.
    ``rank``: a number for an order; groups whose first key has the least rank go before others.
    ``pauses``: the first and the longest pause after failures, as in ``controller.times``.
    """

    def __init__(
        self,
        now: Callable[[], float],
        *,
        group: Callable[[K], str] = lambda _: "",
        rank: Callable[[Any], Any] = lambda _: 0,
        pauses: tuple[float, float] = times.FAILED_WORK,
    ) -> None:
        self._now = now
        self._pauses = pauses
        self._group = group
        self._rank = rank
        self._order: dict[K, Any] = {}
        self._ready: dict[str, list[tuple[Any, int, K]]] = {}
        """By group, a heap of the keys that are due; entries may be out of date."""
        self._turns: Ranked[str] = Ranked()
        self._ticket = 0
        self._later: Ranked[K] = Ranked()
        self._failures: dict[K, Backoff] = {}

    def __bool__(self) -> bool:
        return bool(self._order)

    def add(self, key: K, order: Any, *, at: float | None = None) -> None:
        due = self._later.get(key)
        if at is not None and at > self._now():
            if key not in self._order or (due is not None and due > at):
                self._order[key] = order
                self._later.put(key, at)
        elif key not in self._order or due is not None or self._order[key] != order:
            self._order[key] = order
            self._later.discard(key)
            self._put(key, order)

    def retry(self, key: K, order: Any) -> float:
        """Add ``key`` after a pause, which doubles with each failure; returns its seconds."""
        pause = self._failures.setdefault(key, times.growing(self._pauses))
        seconds = pause.next_delay()
        pause.postpone(self._now())
        self.add(key, order, at=pause.until)
        return seconds

    def rests_until(self, key: K) -> float:
        """The monotonic time at which the pause after the last failure of ``key`` is over."""
        return self._failures[key].until if key in self._failures else -inf

    def discard(self, key: K) -> None:
        self._order.pop(key, None)
        self._later.discard(key)

    def forget_failure(self, key: K) -> None:
        self._failures.pop(key, None)

    def peek(self) -> Any | None:
        """The ``order`` of the next key that is due, None when none is."""
        group = self._next()
        return None if group is None else self._ready[group][0][0]

    def pop(self) -> K | None:
        group = self._next()
        if group is None:
            return None
        self._turns.discard(group)  # it goes behind groups of equal rank
        _, _, key = heapq.heappop(self._ready[group])
        self._wait(group)
        del self._order[key]
        return key

    @property
    def due(self) -> float:
        """The monotonic time of the next key, not in the future if one is due; inf if empty."""
        if not self._order:
            return inf
        if len(self._order) > len(self._later):
            return self._now()
        late = self._later.first()
        return inf if late is None else float(self._later.get(late))

    def _next(self) -> str | None:
        """The group whose turn it is, with its next key first; None when no key is due."""
        if not self._order:
            return None
        now = self._now()
        while (late := self._later.first()) is not None and self._later.get(late) <= now:
            self._later.discard(late)
            self._put(late, self._order[late])
        while (group := self._turns.first()) is not None:
            order, _, key = self._ready[group][0]
            if self._order.get(key) == order and self._later.get(key) is None:
                return group
            heapq.heappop(self._ready[group])
            self._wait(group)
        return None

    def _put(self, key: K, order: Any) -> None:
        group = self._group(key)
        self._ticket += 1
        heapq.heappush(self._ready.setdefault(group, []), (order, self._ticket, key))
        self._wait(group)

    def _wait(self, group: str) -> None:
        """Give a group its turn, by the rank of its first key; an empty one waits for none."""
        if waiting := self._ready[group]:
            self._turns.put(group, self._rank(waiting[0][0]))
        else:
            del self._ready[group]
            self._turns.discard(group)
