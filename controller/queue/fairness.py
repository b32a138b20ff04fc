"""Fairness among waiting pods: bounded overtaking, and slices held back for the overtaken.

Slices that suit a pod which asks for little are taken as soon as they are free; a pod that asks for
much may never find enough of them together, nor may pods that are allocated all or none. Everybody
who was overtaken too often is next in line: the slices that a pod needs on one node, or all pods of
a gang on theirs, are held back as they become free, unless the claims that would have to be waited
for do not move. What to hold back is looked for in parts, for one waiter at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from controller import times
from controller.cluster.cluster import Cluster
from controller.queue.decisions import Decisions, Made
from controller.queue.holds import (
    HeldBack,
    Hold,
    Line,
    Places,
    Waiter,
    gang_uid,
    pod_waiter,
    uid_of,
)
from controller.queue.searches import alike
from controller.report.report import Reporter
from dra.allocator.allocate import Allocator
from dra.allocator.problem import Decision, Problem
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import ObjectKey
from dra.gangs.decision import Placed, Questions, Trial
from dra.gangs.planning import Planning
from dra.pods.pods import Pod

PART_STEPS = 2_000
"""Steps of one part of a plan: some tens of milliseconds."""

_SHARE = 10
"""Seconds that pass for each that was spent on looking for places, at the least."""

_PLAN = "plan"
"""Key of the one plan that is made at a time."""

_NAMED_NODES = 3


@dataclass(frozen=True, slots=True)
class Need:
    """Room for ``need`` of ``problems``; ``kind`` is equal for those who wait for the like."""

    problems: Sequence[Problem]
    need: int
    kind: Hashable


class WaitingLine:
    """Takes notice of who waits and who was served. ``now`` gives monotonic seconds."""

    def __init__(
        self,
        cluster: Cluster,
        allocator: Allocator,
        reporter: Reporter,
        decisions: Decisions,
        *,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._allocator = allocator
        self._reporter = reporter
        self._decisions = decisions
        self._now = now
        self._line = Line(now)
        self._held = HeldBack(cluster, now)
        self._questions = Questions(self.allocator_for, kind=alike)
        self._planning_for = ""
        self._no_plan_before = float("-inf")
        self._aside: dict[Hashable, float] = {}
        self._planned: dict[str, float] = {}

    # -- what is held back, and for whom

    def yielding_to(self, pod: Pod) -> frozenset[str]:
        """UIDs of what is held back for ``pod``, its gang or lower priorities: it does not bind."""
        return self._held.yielding_to(self._uid(pod), pod.priority)

    def allocator_for(self, pod: Pod) -> Allocator:
        """Allocator on the fleet as ``pod`` may have it: what is held back for others is taken."""
        return self._without(self.yielding_to(pod))

    def own_allocator_for(self, pod: Pod) -> Allocator:
        """As ``allocator_for``, but what is held back for others of its gang is taken, too."""
        hold = self._held.of(self._uid(pod))
        others = hold.uids - {uid_of(pod.uid)} if hold is not None else frozenset[str]()
        return self._without(self.yielding_to(pod) - others)

    def is_held_for(self, uid: str) -> bool:
        return self._held.of(uid) is not None

    # -- who waits, and who does no longer

    def waits(self, pod: Pod, problem: Problem) -> None:
        """``pod`` found no room; hold slices back for it if that has happened too often."""
        key = alike(problem)
        self.wait(pod_waiter(pod), Need([problem], 1, pod.uid if key is None else key))

    def wait(self, waiter: Waiter, need: Need) -> None:
        """``waiter`` found no room for ``need``; hold that back if it has happened too often."""
        if self._aside and self._aside.get(need.kind, float("-inf")) > self._now():
            self.leaves(waiter.uid)  # it would only be in the way of others
            return
        self._line.wait(waiter.uid, waiter.place)
        planned = self._planned.get(waiter.uid, float("-inf"))
        if self._now() < planned + times.PLAN_AGAIN:
            return
        held = self._held.of(waiter.uid)
        if held is not None and held.is_made:
            return
        if held is not None or self._line.is_due(waiter.uid):
            self._hold_back(waiter, need, held)

    def served(self, pod: Pod) -> None:
        self._line.served(pod)
        self._make_room(self._held.serve(pod.uid))
        self.leaves(pod.uid)

    def leaves(self, uid: str) -> None:
        """A pod waits no longer, or a gang, whatever the reason.

        Of the gang of such a pod what is held back is released; it waits on.
        """
        self._line.leave(uid)
        self._planned.pop(uid, None)
        self._drop_plan(uid)
        self._make_room(self._held.leave(uid))

    def hold_made(self, pod: Pod, decision: Decision, *, seconds: float) -> None:
        """Hold back for ``pod`` what others are to leave within so many seconds."""
        places = {pod.uid: (pod, decision)}
        self._make_room(self._held.hold(pod_waiter(pod), places, made_in=seconds))

    def end_made(self, pod: Pod) -> None:
        """Others do not leave after all what is held back for ``pod``, which waits on."""
        held = self._held.of(pod.uid)
        if held is not None and held.is_made:
            self._make_room(self._held.leave(pod.uid))

    def waits_with_gang(self, pod: Pod) -> None:
        """``pod`` waits with others: nothing is held back for it alone."""
        self._line.leave(pod.uid)
        if self.is_held_for(pod.uid):
            self.leaves(pod.uid)

    def note_room(self, nodes: AbstractSet[str]) -> None:
        self._held.note_room(nodes)

    @property
    def due(self) -> float | None:
        return self._held.due

    def look_again(self) -> list[ObjectKey]:
        """Release what was held back in vain; returns the pods that are to be looked at."""
        found = []
        for hold, freed in self._held.expire():
            self._make_room(freed)
            found.append(hold.pod)
        return found

    # -- what to hold back

    def _hold_back(self, waiter: Waiter, need: Need, held: Hold | None) -> None:
        """Look for the slices to hold back, and hold them."""
        stays = self._held.unmoving(waiter)
        found = self._find_places(waiter, need, stays)
        if found is None:
            return
        self._planned[waiter.uid] = self._now()
        # Pods that have the claims of others need nothing more.
        places = {p.rest.pod.uid: (p.rest.pod, p.decision) for p in found if p.decision is not None}
        if not found:
            if held is None and not stays:
                self._stand_aside(waiter, need)
        elif places and (held is None or held.places != places):
            self._make_room(self._held.hold(waiter, places))
            if held is None or need.need == 1:
                self._tell(waiter, places)

    def _find_places(
        self, waiter: Waiter, need: Need, stays: AbstractSet[str]
    ) -> tuple[Placed, ...] | None:
        """Places for what a waiter needs; None while that is not known: it is to be asked again.

        Without any pod where there are none, whatever becomes free but ``stays``.
        """
        problems = need.problems
        claims = tuple(wants.claim.ref.uid for p in problems for wants in p.claims)
        if any(map(self._cluster.fleet.counts, claims)):
            self._drop_plan(waiter.uid)
            return None  # of somebody who is not waited for any more
        if self._decisions.is_begun(_PLAN):
            if self._planning_for != waiter.uid:
                return None
        elif self._now() < self._no_plan_before:
            return None
        self._planning_for = waiter.uid
        trial = Trial(self._cluster.fleet, self._cluster.hosts, pods=len(problems))
        made: Made[tuple[Placed, ...]] | None = self._decisions.decide(
            _PLAN,
            problems[0].pod.key,
            asked=(waiter.uid, need.need, claims),
            begin=lambda: Planning(problems, need.need, trial, self._questions, stays=stays),
            go_on=lambda planning: planning.go_on(steps=PART_STEPS),
        )
        if made is None:
            return None
        self._no_plan_before = self._now() + _SHARE * made.seconds
        return made.outcome

    def _drop_plan(self, uid: str) -> None:
        if self._planning_for == uid:
            self._decisions.forget(_PLAN)

    def _stand_aside(self, waiter: Waiter, need: Need) -> None:
        now = self._now()
        self._aside = {key: until for key, until in self._aside.items() if until > now}
        self._aside[need.kind] = now + times.PLAN_IN_VAIN
        self.leaves(waiter.uid)

    def _tell(self, waiter: Waiter, places: Places) -> None:
        for _, decision in places.values():
            gpus = ", ".join(dict.fromkeys(p.gpu for p in decision.picks))
            message = (
                f"others were served before {waiter.name} too often: what becomes free on {gpus} "
                f"of node {decision.node} is held back for it"
            )
            others = {d.node for _, d in places.values()} - {decision.node}
            if others:
                named = ", ".join(sorted(others)[:_NAMED_NODES])
                more = len(others) - _NAMED_NODES
                named += f" and {more} more" if more > 0 else ""
                message += f", beside that of its other pods on {named}"
            obstacle = Obstacle(Reason.NEXT_IN_LINE, message)
            for ref in dict.fromkeys(pick.claim for pick in decision.picks):
                known = self._cluster.claims.get(ref.key)
                if known is not None:
                    self._reporter.on_claim(known, obstacle, warning=False)

    def _uid(self, pod: Pod) -> str:
        gang = self._cluster.gangs.find(pod.key)
        uid = gang_uid(gang.key) if gang is not None else pod.uid
        return uid if self.is_held_for(uid) else pod.uid

    def _without(self, uids: AbstractSet[str]) -> Allocator:
        fleet = self._cluster.fleet
        return self._allocator.on(fleet.without(uids)) if uids else self._allocator

    def _make_room(self, nodes: Iterable[str]) -> None:
        if freed := [*nodes]:
            self._cluster.make_room(*freed)
