"""Planner: looks for what to hold back, for one waiter after the other, in parts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from controller.cluster.cluster import Cluster
from controller.queue.overtaking.waiter import Waiter
from dra.allocator.problem import Problem
from dra.common.resources import ObjectKey
from dra.gangs.decision import Placed, Questions, Trial
from dra.gangs.planning import Planning

PART_STEPS = 2_000
"""Steps of one part: some tens of milliseconds."""

STALLED_SECONDS = 5.0
"""Time after which a plan is dropped with which nobody goes on."""

_SHARE = 10
"""Seconds that pass for each that was spent on looking for places, at the least."""


@dataclass(slots=True)
class _Ongoing:
    """A plan for a waiter, made on when the pod ``leader`` is looked at.

    It is to be called at ``at``, and dropped if nobody goes on with it after it was ``called``.
    """

    uid: str
    asked: Hashable
    planning: Planning
    leader: ObjectKey
    at: float
    called: float | None = None
    seconds: float = 0.0


class Planner:
    """One plan at a time. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(self, cluster: Cluster, questions: Questions, *, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._questions = questions
        self._now = now
        self._ongoing: _Ongoing | None = None
        self._not_before = float("-inf")

    def plan(
        self, waiter: Waiter, problems: Sequence[Problem], need: int, *, stays: AbstractSet[str]
    ) -> tuple[Placed, ...] | None:
        """Places for ``need`` of ``problems``; None while that is not known.

        ``call`` says when to ask again. Without any pod where there are none, whatever becomes
        free but ``stays``. Raises as ``Planning.go_on``.
        """
        claims = tuple(wants.claim.ref.uid for p in problems for wants in p.claims)
        if any(map(self._cluster.fleet.counts, claims)):
            self.forget(waiter.uid)
            return None  # of somebody who is not waited for any more
        ongoing, asked = self._ongoing, (need, claims)
        if ongoing is not None and ongoing.uid == waiter.uid and ongoing.asked != asked:
            ongoing = self._ongoing = None
        if ongoing is None:
            if self._now() < self._not_before:
                return None
            trial = Trial(self._cluster.fleet, self._cluster.hosts, pods=len(problems))
            planning = Planning(problems, need, trial, self._questions, stays=stays)
            ongoing = _Ongoing(waiter.uid, asked, planning, problems[0].pod.key, self._now())
            self._ongoing = ongoing
        elif ongoing.uid != waiter.uid or self._now() < ongoing.at:
            return None
        return self._part(ongoing)

    def _part(self, ongoing: _Ongoing) -> tuple[Placed, ...] | None:
        began = self._now()
        try:
            found = ongoing.planning.go_on(steps=PART_STEPS)
        except Exception:
            self._ongoing = None
            raise
        took = self._now() - began
        ongoing.seconds += took
        if found is None:
            ongoing.at, ongoing.called = self._now() + took, None
        else:
            self._ongoing = None
            self._not_before = self._now() + _SHARE * ongoing.seconds
        return found

    @property
    def due(self) -> float | None:
        """The monotonic time for ``call``, None without a plan that is being made."""
        ongoing = self._ongoing
        if ongoing is None:
            return None
        return ongoing.at if ongoing.called is None else ongoing.called + STALLED_SECONDS

    def call(self) -> ObjectKey | None:
        """The pod that is to be looked at, so that a plan goes on; None where there is none."""
        ongoing, due = self._ongoing, self.due
        if ongoing is None or due is None or self._now() < due:
            return None
        if ongoing.called is not None:
            self._ongoing = None
            return None
        ongoing.called = self._now()
        return ongoing.leader

    def forget(self, uid: str) -> None:
        """A waiter waits no longer."""
        if self._ongoing is not None and self._ongoing.uid == uid:
            self._ongoing = None
