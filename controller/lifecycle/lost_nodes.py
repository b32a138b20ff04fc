"""Allocations on nodes where their pod can go no more, given up before it is bound.

A node may be deleted, or tainted because it is not ready, after a claim was allocated there.
kube-scheduler takes such an allocation back only where another node refuses the claim itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from controller.cluster.cluster import Cluster
from controller.lifecycle.claimwrites import ClaimWrites
from controller.reporting.report import Reporter
from controller.writing.writer import Writer
from dra.claims.reading import KnownClaim
from dra.claims.reasons import Obstacle, Reason
from dra.pods.nodefit import MisfitReason, find_misfit
from dra.pods.pods import Pod

GRACE_SECONDS = 30.0
"""Time for which a node may be away before its unused allocations are given up."""


class LostNodes:
    """Pods that wait to be bound where they cannot go. ``now`` gives monotonic seconds."""

    def __init__(
        self,
        cluster: Cluster,
        writer: Writer,
        reporter: Reporter,
        *,
        writes: ClaimWrites,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._reporter = reporter
        self._writes = writes
        self._now = now
        self._since: dict[str, float] = {}

    def look_at(self, pod: Pod) -> float | None:
        """Give up what ``pod``, which is pending, has where it cannot go for long.

        Returns the monotonic time to look again, None if there is no reason to. What is reserved
        for the pod is deallocated in two steps: in between, whoever is about to bind it after all
        has to reserve the claim again, and then it stays.
        """
        lost = [
            (known, node, why)
            for key in ([] if pod.node else pod.claim_keys)
            if (known := self._cluster.claims.get(key)) is not None
            and (node := self._unused_on(known))
            and (why := self._why_lost(pod, node))
            and all(self._why_lost(other, node) for other in self._cluster.pods_of(key))
        ]
        if not lost:
            self._since.pop(pod.uid, None)
            return None
        end = self._since.setdefault(pod.uid, self._now()) + GRACE_SECONDS
        if self._now() < end:
            return end
        for known, node, why in lost:
            message = (
                f"the allocation on node {node} is given up, as its pod cannot go there: {why}"
            )
            obstacle = Obstacle(Reason.TAKEN_BACK, message)
            if known.claim.reserved_for:
                self._writes.send(known, self._writer.unreserve, lambda: None)
            else:
                told = partial(self._reporter.on_claim, known.obj, obstacle, warning=False)
                self._writes.send(known, self._writer.deallocate, told)
        return None

    def forget(self, pod_uid: str) -> None:
        """The pod is gone."""
        self._since.pop(pod_uid, None)

    def _unused_on(self, known: KnownClaim) -> str:
        """The node of an allocation of ours that no pod can use yet; empty for any other claim."""
        cluster, claim = self._cluster, known.claim
        if claim.allocation is None or not claim.allocation.of_driver(cluster.driver):
            return ""
        if claim.deleting or cluster.finalizer not in claim.finalizers:
            return ""
        pods = cluster.pods_of((claim.ref.namespace, claim.ref.name))
        waiting = {p.uid for p in pods if p.pending and not p.node}
        used = any(p.live and p.uid not in waiting for p in pods)
        reserved = {consumer.uid for consumer in claim.reserved_for}
        return "" if used or not reserved <= waiting else claim.allocation.node

    def _why_lost(self, pod: Pod, node: str) -> str:
        """Reason why ``pod`` cannot be bound to ``node`` whatever becomes free; empty if it can."""
        facts = self._cluster.hosts.facts.get(node)
        if facts is None:
            return "there is no such Node"
        misfit = find_misfit(pod.needs, facts, {})
        if misfit is None or misfit.reason is MisfitReason.RESOURCES:
            return ""
        return misfit.message
