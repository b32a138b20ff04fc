"""Allocations that no pod uses yet, and the two steps in which they are given up.

What is reserved for a pod is deallocated in two steps: in between, whoever is about to bind it
after all has to reserve the claim again, and then it stays.
"""

from __future__ import annotations

from functools import partial

from controller.cluster.cluster import Cluster
from controller.lifecycle.claimwrites import ClaimWrites
from controller.reporting.report import Reporter
from controller.writing.claim_writer import ClaimWriter
from dra.claims.reader import KnownClaim
from dra.claims.reasons import Obstacle, Reason
from dra.pods.pods import Pod


class GivingUp:
    """Finds and gives up what pods that are not bound have."""

    def __init__(
        self, cluster: Cluster, writer: ClaimWriter, reporter: Reporter, *, writes: ClaimWrites
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._reporter = reporter
        self._writes = writes

    def unused_of(self, pod: Pod) -> list[tuple[KnownClaim, str]]:
        """The claims of ``pod`` with an allocation of ours that no pod can use yet, and where."""
        found = []
        for key in [] if pod.node else pod.claim_keys:
            known = self._cluster.claims.get(key)
            node = self._unused_on(known) if known is not None else ""
            if known is not None and node:
                found.append((known, node))
        return found

    def give_up(self, known: KnownClaim, message: str) -> None:
        """Begin the next step; ``message`` is said of the claim once it is deallocated."""
        if known.claim.reserved_for:
            self._writes.send(known, self._writer.unreserve, lambda: None)
        else:
            obstacle = Obstacle(Reason.TAKEN_BACK, message)
            told = partial(self._reporter.on_claim, known.obj, obstacle, warning=False)
            self._writes.send(known, self._writer.deallocate, told)

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
