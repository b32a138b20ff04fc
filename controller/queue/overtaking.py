"""Overtaking of pods, kept within bounds by slices that are held back for the overtaken."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager

from controller.cluster.cluster import Cluster
from controller.queue.known_failures import alike
from controller.queue.turns import Turns
from controller.reporting.report import Reporter
from dra.allocator.allocate import Allocator
from dra.allocator.hold_back import plan
from dra.allocator.problem import Problem
from dra.claims.reasons import Obstacle, Reason
from dra.pods.pods import Pod

ASIDE_SECONDS = 30.0
"""How long a pod is skipped, with all that are alike, when nothing can be held back for it."""


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
        self._now = now
        self._aside: dict[Hashable, float] = {}

    def letting_by(self, pod: Pod) -> AbstractContextManager[bool]:
        """Decide for ``pod`` without what is held back for it or for less urgent ones."""
        return self._turns.letting_by(pod)

    def waits(self, pod: Pod, problem: Problem) -> None:
        """``pod`` found no room; hold slices back for it if that has happened too often."""
        if self._is_aside(pod, problem):
            self.leaves(pod.uid)
            return
        self._turns.wait(pod)
        if not self._turns.is_due(pod):
            return
        held_already = self._turns.next_in_line == pod.uid
        with self._turns.letting_by(pod):
            found = plan(problem, self._allocator)
        if found is None:
            self._stand_aside(pod, problem)
        elif self._turns.hold(pod, found):
            if held_already:  # what was held back elsewhere is free
                self._cluster.reconsider()
            gpus = ", ".join(dict.fromkeys(p.gpu for p in found.decision.picks))
            message = (
                f"others were served before pod {pod} too often: what becomes free on {gpus} of "
                f"node {found.decision.node} is held back for it"
            )
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
        """Whether ``pod`` would only be in the way of those for whom something can be held back."""
        if not self._aside:
            return False
        return self._aside.get(_kind(pod, problem), float("-inf")) > self._now()

    def served(self, pod: Pod) -> None:
        """``pod`` was allocated what it wants."""
        self._turns.served(pod)
        self.leaves(pod.uid)

    def leaves(self, pod_uid: str) -> None:
        """The pod waits no longer, whatever the reason."""
        if self._turns.leave(pod_uid):
            self._cluster.reconsider()


def _kind(pod: Pod, problem: Problem) -> Hashable:
    """Equal for pods of which one stands aside for all."""
    key = alike(problem)
    return pod.uid if key is None else key
