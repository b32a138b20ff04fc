"""Fairness among waiting pods: bounded overtaking, and slices held back for the overtaken.

Slices that suit a pod which asks for little are taken as soon as they are free; a pod that asks for
much may never find enough of them together. Every pod that was overtaken too often is next in line:
the slices that it needs on one node are held back for it as they become free, unless the claims
that it would have to wait for do not move.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from collections.abc import Set as AbstractSet

from controller.cluster.cluster import Cluster
from controller.queue.held_back import HeldBack, Hold
from controller.queue.known_failures import alike
from controller.queue.line import Line
from controller.reporting.report import Reporter
from dra.allocator.allocate import Allocator
from dra.allocator.contention.hold_back import plan
from dra.allocator.problem import Problem
from dra.claims.reasons import Obstacle, Reason
from dra.pods.pods import Pod

ASIDE_SECONDS = 30.0
"""Time for which a pod and its equals are skipped when nothing can be held back for it."""

REPLAN_SECONDS = 5.0
"""Time for which slices are held back in one place, before another is looked for."""

_SHARE = 10
"""Seconds that pass for each that was spent on looking for places, at the least."""


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
        self._now = now
        self._aside: dict[Hashable, float] = {}
        self._planned: dict[str, float] = {}
        self._not_before = float("-inf")

    def yielding_to(self, pod: Pod) -> frozenset[str]:
        """UIDs of what is held back for ``pod`` or for lower priorities: it does not bind it."""
        return self._held.yielding_to(pod)

    def is_held_for(self, pod_uid: str) -> bool:
        """True if slices are held back for a pod."""
        return self._held.of(pod_uid) is not None

    def waits(self, pod: Pod, problem: Problem) -> None:
        """``pod`` found no room; hold slices back for it if that has happened too often."""
        if self._is_aside(pod, problem):
            self.leaves(pod.uid)
            return
        self._line.wait(pod)
        planned = self._planned.get(pod.uid, float("-inf"))
        if self._now() < max(self._not_before, planned + REPLAN_SECONDS):
            return
        held = self._held.of(pod.uid)
        if held is not None or self._line.is_due(pod.uid):
            self._plan(pod, problem, held)

    def _plan(self, pod: Pod, problem: Problem, held: Hold | None) -> None:
        """Look for the slices to hold back, and hold them."""
        began = self._now()
        fleet = self._cluster.fleet.without(self._held.yielding_to(pod))
        stays = self._held.unmoving(pod)
        found = plan(problem, self._allocator.on(fleet), stays=stays)
        self._not_before = began + _SHARE * (self._now() - began)
        self._planned[pod.uid] = began
        if found is None:
            if held is None and not stays:
                self._stand_aside(pod, problem)
            return
        if held is not None and held.plan.decision == found.decision:
            return
        self._make_room(self._held.hold(pod, found))
        gpus = ", ".join(dict.fromkeys(p.gpu for p in found.decision.picks))
        self._tell(
            problem,
            f"others were served before pod {pod} too often: what becomes free on {gpus} of "
            f"node {found.decision.node} is held back for it",
        )

    def _tell(self, problem: Problem, message: str) -> None:
        for wants in problem.claims:
            known = self._cluster.claims[wants.claim.ref.namespace, wants.claim.ref.name]
            obstacle = Obstacle(Reason.NEXT_IN_LINE, message)
            self._reporter.on_claim(known.obj, obstacle, warning=False)

    def _stand_aside(self, pod: Pod, problem: Problem) -> None:
        now = self._now()
        self._aside = {key: until for key, until in self._aside.items() if until > now}
        self._aside[_kind(pod, problem)] = now + ASIDE_SECONDS
        self.leaves(pod.uid)

    def _is_aside(self, pod: Pod, problem: Problem) -> bool:
        """True if ``pod`` would only be in the way of those for whom something can be held back."""
        if not self._aside:
            return False
        return self._aside.get(_kind(pod, problem), float("-inf")) > self._now()

    @property
    def due(self) -> float | None:
        """The monotonic time to call ``expire``, None when nothing is held back."""
        return self._held.due

    def expire(self) -> list[Pod]:
        """Let go what was held back in vain; returns the pods that it was held back for."""
        ended = [*self._held.expire()]
        self._make_room(hold.node for hold in ended)
        return [hold.pod for hold in ended]

    def note_room(self, nodes: AbstractSet[str]) -> None:
        """Something became free on ``nodes``."""
        self._held.note_room(nodes)

    def served(self, pod: Pod) -> None:
        """``pod`` was allocated what it wants."""
        self._line.served(pod)
        self.leaves(pod.uid)

    def leaves(self, pod_uid: str) -> None:
        """The pod waits no longer, whatever the reason."""
        self._line.leave(pod_uid)
        self._planned.pop(pod_uid, None)
        self._make_room([self._held.leave(pod_uid)])

    def forget_claim(self, uid: str) -> None:
        """The claim is gone."""
        self._held.forget_claim(uid)

    def _make_room(self, nodes: Iterable[str]) -> None:
        if freed := [node for node in nodes if node]:
            self._cluster.make_room(*freed)


def _kind(pod: Pod, problem: Problem) -> Hashable:
    """Equal for pods of which one stands aside for all."""
    key = alike(problem)
    return pod.uid if key is None else key
