"""Claims that their node will never prepare: their allocation is moved where no pod holds them.

A pod that is bound cannot be moved, and kubelet goes on trying: whoever can delete it is told to.
Its claim keeps its place, so nobody else is sent there; what the node cannot do, it takes out of
its MigNode.
"""

from __future__ import annotations

from functools import partial

from controller.cluster.cluster import Cluster
from controller.lifecycle.claimwrites import ClaimWrites
from controller.queue.exclusions import Exclusions
from controller.reporting.report import Reporter
from controller.writing.claim_writer import ClaimWriter
from dra.claims.conditions import failed_prepare
from dra.claims.reader import KnownClaim
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import ObjectKey
from dra.pods.pods import Pod


class FailedPrepares:
    """Claims whose node failed for good, given up where no pod holds them."""

    def __init__(
        self,
        cluster: Cluster,
        writer: ClaimWriter,
        reporter: Reporter,
        *,
        writes: ClaimWrites,
        exclusions: Exclusions,
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._writes = writes
        self._reporter = reporter
        self._exclusions = exclusions

    def look_at(self, key: ObjectKey) -> bool:
        """Deallocate a claim that failed for good and that no pod holds; True when under way.

        A claim is held as long as a pod has it reserved or is bound, and as long as its node has
        anything left of it.
        """
        cluster = self._cluster
        known = cluster.claims.get(key)
        why = _failure(known, cluster) if known is not None else ""
        if known is None or not why:
            return False
        claim, pods = known.claim, [p for p in cluster.pods_of(key) if p.live]
        node = claim.allocation.node if claim.allocation else ""
        if claim.reserved_for or any(p.node for p in pods):
            self._tell(known, [p for p in pods if p.node and p.pending], node=node, why=why)
            return False
        if not pods or not node or self._may_be_on(node, claim.ref.uid):
            return False
        for pod in pods:
            self._exclusions.refuse(cluster.template_of(pod), node)
        message = f"node {node} cannot prepare the claim, it is placed elsewhere: {why}"
        obstacle = Obstacle(Reason.PREPARE_FAILED, message)
        self._writes.send(
            known,
            self._writer.deallocate,
            partial(self._reporter.on_claim, known.obj, obstacle),
        )
        return True

    def _may_be_on(self, node: str, uid: str) -> bool:
        """True if the node still has something of the claim; one that cannot tell counts as yes."""
        if node not in self._cluster.hosts.facts:
            return False
        instances = self._cluster.fleet.instance_claims(node)
        return instances is None or uid in instances

    def _tell(self, known: KnownClaim, pods: list[Pod], *, node: str, why: str) -> None:
        ref = known.claim.ref
        for pod in pods:
            remedy = (
                "delete the pod: its controller makes another, which is placed anew"
                if _is_replaced(pod)
                else "delete the pod and create it again: it is placed anew"
            )
            message = (
                f"node {node} cannot prepare claim {ref}, and a pod that is bound cannot be moved; "
                f"{remedy}. The node says: {why}"
            )
            self._reporter.stranded(pod, known.obj, Obstacle(Reason.PREPARE_FAILED, message))


def _failure(known: KnownClaim, cluster: Cluster) -> str:
    """Reason why a claim that we allocated failed for good; empty if it did not."""
    claim = known.claim
    if claim.allocation is None or claim.deleting or claim.by_others(cluster.driver):
        return ""
    if cluster.finalizer not in claim.finalizers:
        return ""
    return failed_prepare(known.obj, driver=cluster.driver)


def _is_replaced(pod: Pod) -> bool:
    owners = pod.obj["metadata"].get("ownerReferences") or ()
    return any(o.get("controller") for o in owners)
