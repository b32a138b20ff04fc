"""Queue of pods to look at: what happened to them, the sweeps over those that wait, and timers.

The three take turns, so that neither thousands of waiting pods nor thousands of new ones keep the
others from being looked at. A pod of higher priority goes before a sweep over lower ones. Among
those to which something happened namespaces take turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from controller.queue.overtaking.line import priority, urgency
from controller.queue.ready import Fair
from controller.queue.sweeps import Sweeps
from controller.queue.worklist import WorkList
from dra.common.resources import ObjectKey
from dra.pods.pods import Pod


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Look:
    """A pod to look at. ``go_on`` is to be called if that was not in vain for those alike."""

    key: ObjectKey
    go_on: Callable[[], None] = _nothing


class PodQueue:
    """Pods by namespace and name. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        by_namespace: Fair[ObjectKey] = Fair(
            group=lambda key: key[0], rank=lambda order: -priority(order)
        )
        self.changed: WorkList[ObjectKey] = WorkList(now, by_namespace)
        """Pods to which something has happened, or that failed and are tried again."""
        self._again: WorkList[ObjectKey] = WorkList(now)
        self._sweeps = Sweeps(now)
        self._turns = deque([self._swept, self._from(self.changed), self._from(self._again)])

    def add(self, pod: Pod, *, at: float | None = None) -> None:
        """Look at ``pod`` at once, or at the monotonic time ``at``."""
        self.changed.add(pod.key, urgency(pod), at=at)

    def wait(self, pod: Pod, group: Hashable | None, *, at: float) -> None:
        """Look at ``pod`` at the time ``at``, and when room is made for it or its ``group``.

        Without a group room is nothing to it.
        """
        self._again.add(pod.key, urgency(pod), at=at)
        if group is not None:
            self._sweeps.add(pod.key, group, urgency(pod))

    def waits(self, key: ObjectKey) -> bool:
        """True if a pod waits for room."""
        return key in self._sweeps

    def leave(self, key: ObjectKey) -> None:
        """The pod waits no longer, or is being looked at."""
        self._again.discard(key)
        self._sweeps.discard(key)

    def room_made(self) -> None:
        """Have the pods that wait looked at: there is room for some, maybe."""
        self._sweeps.request()

    def pop(self) -> Look | None:
        """The next pod that is due, or None."""
        for _ in range(len(self._turns)):
            turn = self._turns[0]
            self._turns.rotate(-1)
            found = turn()
            if found is not None:
                return found
        return None

    def next_due(self) -> float | None:
        """The monotonic time of the next look: now or in the past when one is due."""
        times = (self.changed.next_due(), self._again.next_due(), self._sweeps.next_due())
        return min((t for t in times if t is not None), default=None)

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
