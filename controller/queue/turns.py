"""Bounded overtaking: the waiting pods, the overtakings of each, and the slices held back.

Slices that suit a pod which asks for little are taken as soon as they are free; a pod that asks for
much may never find enough of them together. Overtaken too often, it is next in line: the slices
that it needs on one node are held back for it as they become free.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from dra.allocator.fleet.fleet import Fleet
from dra.allocator.hold_back import Plan
from dra.claims.allocation import AllocatedDevice, Allocation
from dra.gpu.inventory import ClaimRef
from dra.pods.pods import Pod

OVERTAKEN = 20
"""How often others may be served before a pod that has waited longer or is more urgent."""

PATIENCE_SECONDS = 120.0
"""After so long a single overtaking is enough."""

REPLAN_SECONDS = 5.0
"""At most so often another place is looked for."""

_WATCHED = 16
"""Overtakings are counted for so many pods at the head of the line."""

Urgency = tuple[int, str, str, str]


def urgency(pod: Pod) -> Urgency:
    """Where a pod stands in the line: higher priority first, then older, then by name."""
    return (-pod.priority, pod.created, *pod.key)


@dataclass(slots=True)
class _Waiting:
    uid: str
    urgency: Urgency
    since: float
    overtaken: int = 0


@dataclass(slots=True)
class _Held:
    """What is held back, and for whom."""

    pod: Pod
    plan: Plan
    at: float
    ref: ClaimRef = field(init=False)

    def __post_init__(self) -> None:
        namespace, name = self.pod.key
        self.ref = ClaimRef(namespace, f"of pod {name}, next in line", f"next:{self.pod.uid}")


class Turns:
    """The line of waiting pods. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(self, fleet: Fleet, now: Callable[[], float]) -> None:
        self._fleet = fleet
        self._now = now
        self._line: list[tuple[Urgency, str]] = []
        self._waiting: dict[str, _Waiting] = {}
        self._held: _Held | None = None

    @property
    def next_in_line(self) -> str:
        """The UID of the pod for which slices are held back, empty when there is none."""
        return self._held.pod.uid if self._held else ""

    def wait(self, pod: Pod) -> None:
        """``pod`` waits until something becomes free."""
        known, place = self._waiting.get(pod.uid), urgency(pod)
        if known is not None and known.urgency == place:
            return
        if known is not None:
            self._drop(known)
        self._waiting[pod.uid] = _Waiting(pod.uid, place, self._now())
        insort(self._line, (place, pod.uid))

    def served(self, pod: Pod) -> None:
        """``pod`` was served, before those that are ahead of it."""
        for ahead, uid in self._line[:_WATCHED]:
            if ahead >= urgency(pod):
                break
            self._waiting[uid].overtaken += 1

    def leave(self, uid: str) -> bool:
        """The pod waits no longer; True when that gives up what was held back for it."""
        known = self._waiting.pop(uid, None)
        if known is not None:
            self._drop(known)
        if self._held is None or self._held.pod.uid != uid:
            return False
        self._fleet.release(self._held.ref.uid)
        self._held = None
        return True

    def is_due(self, pod: Pod) -> bool:
        """Whether a place is to be sought for ``pod``: for one pod at a time, again and again."""
        known = self._waiting.get(pod.uid)
        if known is None:
            return False
        if self._held is not None:
            due = self._now() >= self._held.at + REPLAN_SECONDS
            return self._held.pod.uid == pod.uid and due
        patient = self._now() - known.since < PATIENCE_SECONDS
        return known.overtaken >= (OVERTAKEN if patient else 1)

    def hold(self, pod: Pod, plan: Plan) -> bool:
        """Hold back what ``plan`` says; True when it is not what was held back before."""
        before = self._held
        if before is not None:
            self._fleet.release(before.ref.uid)
        self._held = _Held(pod, plan, self._now())
        self._take()
        return before is None or before.plan.decision != plan.decision

    @contextmanager
    def letting_by(self, pod: Pod) -> Iterator[bool]:
        """Decide for ``pod`` without what is held back for itself, or for a lower priority.

        Yields whether something is let go meanwhile.
        """
        held = self._held
        if held is None or (held.pod.uid != pod.uid and held.pod.priority >= pod.priority):
            yield False
            return
        self._fleet.release(held.ref.uid)
        try:
            yield True
        finally:
            self._take()

    def _take(self) -> None:
        if self._held is None:
            return
        decision = self._held.plan.decision
        devices = tuple(
            AllocatedDevice(p.request, self._fleet.driver, decision.pool, p.device)
            for p in decision.picks
        )
        self._fleet.hold(self._held.ref, Allocation(devices, decision.node))

    def _drop(self, known: _Waiting) -> None:
        self._waiting.pop(known.uid, None)
        entry = (known.urgency, known.uid)
        at = bisect_left(self._line, entry)
        if at < len(self._line) and self._line[at] == entry:
            del self._line[at]
