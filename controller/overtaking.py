"""Keeps pods from being overtaken without end, and tells those for whom slices are held back."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager

from controller.allocate import Allocator
from controller.cluster import Cluster
from controller.decision import Problem
from controller.report import Reporter
from controller.reserve import plan
from controller.turns import Turns, Urgency
from dra.pods import Pod
from dra.reasons import Obstacle, Reason


class Overtaking:
    """What the engine tells about who waits and who was served. ``now`` gives monotonic seconds."""

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
        self._turns = Turns(cluster.fleet, now)

    def letting_by(self, pod: Pod) -> AbstractContextManager[bool]:
        """Decide for ``pod`` without what is held back for it or for less urgent ones."""
        return self._turns.letting_by(pod)

    def waits(
        self, pod: Pod, urgency: Urgency, *, problem: Problem, delegated: AbstractSet[str]
    ) -> None:
        """``pod`` found no room; hold slices back for it if that has happened too often."""
        self._turns.wait(pod, urgency)
        if not self._turns.is_due(pod):
            return
        with self._turns.letting_by(pod):
            found = plan(problem, self._allocator, self._cluster.fleet, delegated)
        if found is None:
            self.leaves(pod.uid)
        elif self._turns.hold(pod, found):
            gpus = ", ".join(dict.fromkeys(p.gpu for p in found.decision.picks))
            message = (
                f"others were served before pod {pod} too often: what becomes free on {gpus} of "
                f"node {found.decision.node} is held back for it"
            )
            for wants in problem.claims:
                known = self._cluster.claims[wants.claim.ref.namespace, wants.claim.ref.name]
                obstacle = Obstacle(Reason.NEXT_IN_LINE, message)
                self._reporter.on_claim(known.obj, obstacle, warning=False)

    def served(self, pod: Pod, urgency: Urgency) -> None:
        """``pod`` was allocated what it wants."""
        self._turns.served(urgency)
        self.leaves(pod.uid)

    def leaves(self, pod_uid: str) -> None:
        """The pod waits no longer, whatever the reason."""
        if self._turns.leave(pod_uid):
            self._cluster.reconsider()
