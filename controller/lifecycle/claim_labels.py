"""Labels of nodes on claims: each node watches its claims by them.

Only the controller mirrors all claims; a node has its slices made before kubelet asks for them, and
with binding conditions no pod is bound before that. A write of ours that allocates brings the label
where it can. Others get it here: claims that kube-scheduler allocates at once, and ours that were
allocated in a burst once it is over. While pods come fast, what the API server does for a label is
worth more to those that wait than a slice which is made a little earlier; but without it a node
cannot see that kubelet does not ask for a claim.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.cluster.cluster import Cluster
from controller.lifecycle.claimwrites import ClaimWrites
from controller.writing.claim_writer import ClaimWriter
from dra.claims.claims import Claim
from dra.claims.reader import KnownClaim
from dra.common.resources import Obj, ObjectKey, at

QUIET_SECONDS = 1.0
"""Time without an allocation after which a burst counts as over."""

LATE_PAUSE_SECONDS = 0.02
"""Pace of the writes after a burst. Each claim has a time of its own, and is looked at then."""


class ClaimLabels:
    """Labels one claim after the other. ``now`` gives monotonic seconds.

    ``last`` gives the time of our last allocation.
    """

    def __init__(
        self,
        cluster: Cluster,
        writer: ClaimWriter,
        *,
        writes: ClaimWrites,
        last: Callable[[], float],
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._writes = writes
        self._last = last
        self._now = now
        self._times: dict[ObjectKey, float] = {}
        self._latest = float("-inf")

    def look_at(self, key: ObjectKey) -> float | None:
        """Begin to label a claim that a pod waits for on a node of ours, if it is time.

        Returns the monotonic time to look again, None if there is no reason to.
        """
        known = self._cluster.claims.get(key)
        node = self._unnamed_node(known) if known is not None else ""
        again: float | None = None
        if known is not None and node:
            if not known.claim.by_others(self._cluster.driver):
                again = self._time(key) if self._may_be_asked_for(key, known) else None
                is_due = again is not None and again <= self._now()
            else:
                is_due = self._is_of_a_node(known.claim, node)
            if is_due:
                again = None
                self._label(known, node)
        if again is None:
            self._times.pop(key, None)
        return again

    def _time(self, key: ObjectKey) -> float:
        """The monotonic time of a claim's label, as far as is known before the burst is over."""
        now, quiet, found = self._now(), self._last() + QUIET_SECONDS, self._times.get(key)
        if self._may_be_taken_back(key):
            quiet = now + QUIET_SECONDS
        if found is None or found <= now < quiet:
            found = max(now, quiet, self._latest + LATE_PAUSE_SECONDS)
            self._times[key] = self._latest = found
        return found

    def _may_be_taken_back(self, key: ObjectKey) -> bool:
        """True if a pod lacks another claim: kube-scheduler fails to take this back if it changes.

        It rests for long then.
        """
        claims = self._cluster.claims
        others = (claims.get(each) for p in self._cluster.pods_of(key) for each in p.claim_keys)
        return any(known is not None and known.claim.allocation is None for known in others)

    def _may_be_asked_for(self, key: ObjectKey, known: KnownClaim) -> bool:
        """True if kubelet has not prepared the claim for a pod, nor tried, as far as is known."""
        waits = any(pod.pending for pod in self._cluster.pods_of(key))
        return waits and not at(known.obj, "status", "devices")

    def _label(self, known: KnownClaim, node: str) -> None:
        def label(_: Claim) -> Obj:
            return self._writer.label(known.obj, node=node)

        self._writes.send(known, label, lambda: None)

    def _unnamed_node(self, known: KnownClaim) -> str:
        """The node where a claim is reserved for a pod, if it does not name it."""
        claim = known.claim
        if claim.allocation is None or claim.deleting or not claim.reserved_for:
            return ""
        node = claim.allocation.node
        if not claim.allocation.of_driver(self._cluster.driver):
            return ""
        return "" if self._writer.is_labelled(known.obj, node=node) else node

    def _is_of_a_node(self, claim: Claim, node: str) -> bool:
        """True if a claim has devices of a node with a MigNode."""
        inventory, driver = self._cluster.inventory(node), self._cluster.driver
        if inventory is None or claim.allocation is None:
            return False
        return any(d.pool == inventory.pool for d in claim.allocation.of_driver(driver))
