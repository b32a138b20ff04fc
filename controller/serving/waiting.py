"""Pods that cannot be served now: they are told why, and looked at again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from controller.cluster.cluster import Cluster
from controller.queue.exclusions import Exclusions
from controller.reporting.report import Reporter
from controller.serving.agenda import Agenda
from dra.claims.reasons import Obstacle
from dra.gpu.inventory import ClaimRef
from dra.pods.pods import Pod

LOOK_AGAIN_SECONDS = 60.0
"""Pause after which a waiting pod is looked at although nothing happened."""


class Waiting:
    """Has pods wait. ``now`` gives monotonic seconds."""

    def __init__(
        self,
        cluster: Cluster,
        agenda: Agenda,
        reporter: Reporter,
        *,
        exclusions: Exclusions,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._agenda = agenda
        self._reporter = reporter
        self._exclusions = exclusions
        self._now = now

    def wait(
        self,
        pod: Pod,
        obstacle: Obstacle,
        claims: Iterable[ClaimRef],
        *,
        group: Hashable | None = None,
    ) -> None:
        """Tell ``pod`` and its ``claims`` of an obstacle.

        They are looked at again when room is made for its ``group``, and after a while.
        """
        keys = [(ref.namespace, ref.name) for ref in claims]
        known = [self._cluster.claims[key].obj for key in keys if key in self._cluster.claims]
        fleet = self._cluster.fleet
        if fleet.nodes or not fleet.schedulers or pod.gates:  # else kube-scheduler says why
            self._reporter.waiting(pod, obstacle, known)
        at = self._now() + LOOK_AGAIN_SECONDS
        end = self._exclusions.next_end(self._cluster.template_of(pod))
        self._agenda.pods.wait(pod, group, at=at if end is None else min(at, end))
