"""Fairness among waiting pods: bounded overtaking, and slices held back for the overtaken.

Slices that suit a pod which asks for little are taken as soon as they are free; a pod that asks for
much may never find enough of them together, nor may pods that are allocated all or none. Everybody
who was overtaken too often is next in line: the slices that a pod needs on one node, or all pods of
a gang on theirs, are held back as they become free, unless the claims that would have to be waited
for do not move.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from controller.cluster.cluster import Cluster
from controller.queue.known_failures import alike
from controller.queue.overtaking.held_back import HeldBack, Hold, Places, uid_of
from controller.queue.overtaking.line import Line
from controller.queue.overtaking.planner import Planner
from controller.queue.overtaking.waiter import Waiter, gang_uid, pod_waiter
from controller.reporting.report import Reporter
from dra.allocator.allocate import Allocator
from dra.allocator.problem import Problem
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import ObjectKey
from dra.gangs.decision import Placed, Questions
from dra.pods.pods import Pod

ASIDE_SECONDS = 30.0
"""Time for which a pod and its equals are skipped when nothing can be held back for it."""

REPLAN_SECONDS = 5.0
"""Time for which slices are held back in one place, before another is looked for."""

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
        *,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._allocator = allocator
        self._reporter = reporter
        self._line = Line(now)
        self._held = HeldBack(cluster.fleet, now)
        self._planner = Planner(cluster, Questions(self.allocator_for, kind=alike), now=now)
        self._now = now
        self._aside: dict[Hashable, float] = {}
        self._planned: dict[str, float] = {}

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
        """True if slices are held back for a pod, or for a gang."""
        return self._held.of(uid) is not None

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
        if self._now() < planned + REPLAN_SECONDS:
            return
        held = self._held.of(waiter.uid)
        if held is not None or self._line.is_due(waiter.uid):
            self._plan(waiter, need, held)

    def _plan(self, waiter: Waiter, need: Need, held: Hold | None) -> None:
        """Look for the slices to hold back, and hold them."""
        stays = self._held.unmoving(waiter)
        found = self._planner.plan(waiter, need.problems, need.need, stays=stays)
        if found is None:
            return
        self._planned[waiter.uid] = self._now()
        places = _places(found)
        if not found:
            if held is None and not stays:
                self._stand_aside(waiter, need)
        elif places and (held is None or held.places != places):
            self._make_room(self._held.hold(waiter, places))
            if held is None or need.need == 1:
                self._tell(waiter, places)

    def _tell(self, waiter: Waiter, places: Places) -> None:
        """Tell the claims of what is held back for their pods."""
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
                known = self._cluster.claims.get((ref.namespace, ref.name))
                if known is not None:
                    self._reporter.on_claim(known.obj, obstacle, warning=False)

    def _stand_aside(self, waiter: Waiter, need: Need) -> None:
        now = self._now()
        self._aside = {key: until for key, until in self._aside.items() if until > now}
        self._aside[need.kind] = now + ASIDE_SECONDS
        self.leaves(waiter.uid)

    @property
    def due(self) -> float | None:
        """The monotonic time to call ``look_again``, None when nothing is held back or planned."""
        times = [t for t in (self._held.due, self._planner.due) if t is not None]
        return min(times, default=None)

    def look_again(self) -> list[ObjectKey]:
        """Release what was held back in vain; returns the pods that are to be looked at."""
        again = self._planner.call()
        found = [again] if again is not None else []
        for hold, freed in self._held.expire():
            self._make_room(freed)
            found.append(hold.pod)
        return found

    def note_room(self, nodes: AbstractSet[str]) -> None:
        """Something became free on ``nodes``."""
        self._held.note_room(nodes)

    def served(self, pod: Pod) -> None:
        """``pod`` was allocated what it wants."""
        self._line.served(pod)
        self._make_room(self._held.serve(pod.uid))
        self.leaves(pod.uid)

    def leaves(self, uid: str) -> None:
        """A pod waits no longer, or a gang, whatever the reason.

        Of the gang of such a pod what is held back is released; it waits on.
        """
        self._line.leave(uid)
        self._planned.pop(uid, None)
        self._planner.forget(uid)
        self._make_room(self._held.leave(uid))

    def waits_with_gang(self, pod: Pod) -> None:
        """``pod`` waits with others: nothing is held back for it alone."""
        self._line.leave(pod.uid)
        if self.is_held_for(pod.uid):
            self.leaves(pod.uid)

    def forget_claim(self, uid: str) -> None:
        """The claim is gone."""
        self._held.forget_claim(uid)

    def _uid(self, pod: Pod) -> str:
        """The waiter that ``pod`` is, or belongs to."""
        gang = self._cluster.gangs.find(pod.key)
        uid = gang_uid(gang.key) if gang is not None else pod.uid
        return uid if self.is_held_for(uid) else pod.uid

    def _without(self, uids: AbstractSet[str]) -> Allocator:
        fleet = self._cluster.fleet
        return self._allocator.on(fleet.without(uids)) if uids else self._allocator

    def _make_room(self, nodes: Iterable[str]) -> None:
        if freed := [*nodes]:
            self._cluster.make_room(*freed)


def _places(placed: Sequence[Placed]) -> Places:
    """Places to hold back; pods that have the claims of others need nothing more."""
    return {p.rest.pod.uid: (p.rest.pod, p.decision) for p in placed if p.decision is not None}
