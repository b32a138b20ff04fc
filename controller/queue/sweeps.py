"""Sweeps over waiting pods: one look for all that are alike, each time that room was made.

A sweep ends before the next begins, however often room is made meanwhile. Of each group of pods
that are alike the most urgent one is looked at; the next one only if that look was not in vain.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable
from functools import partial

from controller.queue.overtaking.line import Urgency
from dra.common.resources import ObjectKey

SWEEP_SECONDS = 0.05
"""From the beginning of a sweep to that of the next, at the least."""

_Place = tuple[Urgency, ObjectKey]


class Sweeps:
    """Waiting pods in groups. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._groups: dict[Hashable, list[_Place]] = {}
        self._places: dict[ObjectKey, tuple[Hashable, _Place]] = {}
        self._left: list[tuple[_Place, int, Hashable]] = []
        self._ticket = 0
        self._wanted = False
        self._began = float("-inf")

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._places

    def add(self, key: ObjectKey, group: Hashable, urgency: Urgency) -> None:
        """A pod waits, like those of its group."""
        self.discard(key)
        place = (urgency, key)
        self._places[key] = group, place
        insort(self._groups.setdefault(group, []), place)

    def discard(self, key: ObjectKey) -> None:
        """The pod waits no longer, or is looked at."""
        group, place = self._places.pop(key, (None, None))
        if place is None:
            return
        members = self._groups[group]
        del members[bisect_left(members, place)]
        if not members:
            del self._groups[group]

    def request(self) -> None:
        """Room was made: have a sweep begin once the one that is under way has ended."""
        self._wanted = self._wanted or bool(self._groups)

    def next_due(self) -> float | None:
        """The monotonic time of the next look; in the past during a sweep, None without."""
        if self._left:
            return self._began
        return self._began + SWEEP_SECONDS if self._wanted and self._groups else None

    def peek(self) -> Urgency | None:
        """The urgency of the next pod to look at, as far as is known; None when there is none."""
        self._begin_if_due()
        return self._left[0][0][0] if self._left else None

    def pop(self) -> tuple[ObjectKey, Callable[[], None]] | None:
        """The most urgent pod that is to be looked at, None when none is now.

        To be called after a look that was not in vain: what is returned with the pod, which has
        the next one of its group looked at.
        """
        self._begin_if_due()
        while self._left:
            place, _, group = heapq.heappop(self._left)
            members = self._groups.get(group, [])
            at = bisect_left(members, place)
            if at < len(members):
                return members[at][1], partial(self._push, group, members[at])
        return None

    def _begin_if_due(self) -> None:
        if self._left or not self._wanted:
            return
        now = self._now()
        if now < self._began + SWEEP_SECONDS:
            return
        self._wanted, self._began = False, now
        for group, members in self._groups.items():
            self._ticket += 1
            self._left.append((members[0], self._ticket, group))
        heapq.heapify(self._left)

    def _push(self, group: Hashable, after: _Place) -> None:
        members = self._groups.get(group, [])
        at = bisect_right(members, after)
        if at < len(members):
            self._ticket += 1
            heapq.heappush(self._left, (members[at], self._ticket, group))
