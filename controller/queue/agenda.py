"""Agenda of a leadership: the pods and claims to look at, and those held up by a write.

Pods come from three sources: pods to which something happened, sweeps over the waiting pods, and
timers. The three take turns, so that neither thousands of waiting pods nor thousands of new ones
keep the others from being looked at. A changed pod goes before a sweep over pods of lower priority.
Among changed pods namespaces take turns.

A sweep follows when room was made. It ends before the next one begins, however often room is made
meanwhile. Of each group of pods that are alike it looks at the most urgent one, and at the next one
only if the look before was not in vain.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from math import inf
from typing import NamedTuple

from controller import times
from controller.cluster.cluster import Cluster
from controller.worklist import WorkList
from dra.common.resources import ObjectKey
from dra.pods.pods import Pod, Urgency, priority, urgency

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
        self._began = -inf

    def __contains__(self, key: ObjectKey) -> bool:
        return key in self._places

    def add(self, key: ObjectKey, group: Hashable, urgency: Urgency) -> None:
        self.discard(key)
        place = (urgency, key)
        self._places[key] = group, place
        insort(self._groups.setdefault(group, []), place)

    def discard(self, key: ObjectKey) -> None:
        group, place = self._places.pop(key, (None, None))
        if place is None:
            return
        members = self._groups[group]
        del members[bisect_left(members, place)]
        if not members:
            del self._groups[group]

    def request(self) -> None:
        """Have a sweep begin once the present one has ended."""
        self._wanted = self._wanted or bool(self._groups)

    @property
    def due(self) -> float:
        """The monotonic time of the next look; in the past during a sweep, inf without one."""
        if self._left:
            return self._began
        return self._began + times.SWEEP if self._wanted and self._groups else inf

    def peek(self) -> Urgency | None:
        """The urgency of the next pod to look at, as far as is known; None when there is none."""
        self._begin_if_due()
        return self._left[0][0][0] if self._left else None

    def pop(self) -> tuple[ObjectKey, Callable[[], None]] | None:
        """The most urgent pod to look at, with a function; None if there is none now.

        The function is to be called if the look was not in vain: it adds the next pod of the group.
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
        if now < self._began + times.SWEEP:
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


class Look(NamedTuple):
    """A pod to look at. ``go_on``: to be called if pods alike are to be looked at too."""

    key: ObjectKey
    go_on: Callable[[], None] = lambda: None


class Agenda:
    """Pods that wait for us, and claims that may have ended. ``now`` gives monotonic seconds.

    Not thread-safe.
    """

    def __init__(self, cluster: Cluster, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self.changed: WorkList[ObjectKey] = WorkList(
            now, group=lambda key: key[0], rank=lambda order: -priority(order)
        )
        """Pods to which something has happened, or whose last look failed."""
        self.claims: WorkList[ObjectKey] = WorkList(now)
        self._again: WorkList[ObjectKey] = WorkList(now)
        self._sweeps = Sweeps(now)
        self._turns = deque([self._swept, self._from(self.changed), self._from(self._again)])
        self._held_up: set[tuple[ObjectKey, bool]] = set()
        """Keys of pods (with False) and of claims (with True)."""

    def waiting_pod(self, key: ObjectKey) -> Pod | None:
        """The pod of that name if it waits for us, else None.

        A pod with another gate does not wait for us: the gate's owner may still change its node
        selectors.
        """
        pod = self._cluster.pods.get(key)
        if pod is None or not pod.claims or not pod.pending:
            return None
        return pod if all(gate == self._cluster.finalizer for gate in pod.gates) else None

    def add_pod(self, key: ObjectKey, *, at: float | None = None) -> bool:
        """Look at a pod at once, or at the monotonic time ``at``; False if it does not wait."""
        pod = self.waiting_pod(key)
        if pod is None:
            self.leave(key)
            return False
        self.changed.add(key, urgency(pod), at=at)
        return True

    def add_claim(self, key: ObjectKey, *, at: float | None = None) -> None:
        self.claims.add(key, 0, at=at)

    def wait(self, pod: Pod, group: Hashable | None, *, at: float) -> None:
        """Look at ``pod`` at the monotonic time ``at``, and in the sweeps over its ``group``.

        Without a group no sweep looks at it.
        """
        self._again.add(pod.key, urgency(pod), at=at)
        if group is not None:
            self._sweeps.add(pod.key, group, urgency(pod))

    def waits(self, key: ObjectKey) -> bool:
        return key in self._sweeps

    def leave(self, key: ObjectKey) -> None:
        self._again.discard(key)
        self._sweeps.discard(key)

    def room_made(self) -> None:
        """Have a sweep over the waiting pods, as there may be room for some."""
        self._sweeps.request()

    def pop(self) -> Look | None:
        for _ in range(len(self._turns)):
            turn = self._turns[0]
            self._turns.rotate(-1)
            found = turn()
            if found is not None:
                return found
        return None

    @property
    def due(self) -> float:
        """The monotonic time of the next look, not in the future if one is due."""
        return min(self.claims.due, self.changed.due, self._again.due, self._sweeps.due)

    def hold_up(self, key: ObjectKey, *, is_claim: bool) -> None:
        """Look at a pod, or a claim, again when the next answers have come."""
        self._held_up.add((key, is_claim))

    def let_rest(self, key: ObjectKey, *, is_claim: bool) -> None:
        """Do not look at a pod, or a claim, for the next answers: a pause follows instead."""
        self._held_up.discard((key, is_claim))

    def go_on(self) -> None:
        """Answers have come: look again at what was held up."""
        held_up, self._held_up = self._held_up, set()
        for key, is_claim in held_up:
            (self.add_claim if is_claim else self.add_pod)(key)

    def _swept(self) -> Look | None:
        swept = self._sweeps.peek()
        if swept is None:
            return None
        changed = self.changed.peek()
        if changed is not None and priority(changed) > priority(swept):
            return self._from(self.changed)()
        found = self._sweeps.pop()
        return None if found is None else Look(*found)

    def _from(self, work: WorkList[ObjectKey]) -> Callable[[], Look | None]:
        def turn() -> Look | None:
            key = work.pop()
            return None if key is None else Look(key)

        return turn
