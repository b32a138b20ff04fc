"""Claims that kube-scheduler allocated: labelled with their node, which watches its claims by it.

Only the controller mirrors all claims; a node has its slices made before kubelet asks for them, and
with binding conditions no pod is bound before that.
"""

from __future__ import annotations

from functools import partial

from controller.cluster.cluster import Cluster
from controller.lifecycle.claimwrites import ClaimWrites
from controller.writing.claim_writer import ClaimWriter
from dra.claims.claims import Claim
from dra.common.resources import Obj, ObjectKey


class ScheduledClaims:
    """Labels one claim after the other."""

    def __init__(self, cluster: Cluster, writer: ClaimWriter, *, writes: ClaimWrites) -> None:
        self._cluster = cluster
        self._writer = writer
        self._writes = writes

    def look_at(self, key: ObjectKey) -> bool:
        """Begin to label a claim that a pod waits for on a node of ours; True if that is done."""
        known = self._cluster.claims.get(key)
        if known is None or not self._is_of_a_node(known.claim):
            return False
        allocation = known.claim.allocation
        node = allocation.node if allocation is not None else ""
        if self._writer.is_labelled(known.obj, node=node):
            return False
        label = partial(self._label, known.obj, node)
        self._writes.send(known, label, lambda: None)
        return True

    def _label(self, obj: Obj, node: str, _claim: Claim) -> Obj:
        return self._writer.label(obj, node=node)

    def _is_of_a_node(self, claim: Claim) -> bool:
        """True if another than this controller gave the claim devices of a node with a MigNode."""
        driver = self._cluster.driver
        if claim.allocation is None or claim.deleting or not claim.reserved_for:
            return False
        inventory = self._cluster.inventory(claim.allocation.node)
        if inventory is None or not claim.by_others(driver):
            return False
        return any(d.pool == inventory.pool for d in claim.allocation.of_driver(driver))
