"""When a claim's allocation ends, and when our finalizer goes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from controller.claimwrites import ClaimWrites
from controller.cluster import Cluster, KnownClaim
from controller.writer import Writer
from dra.claims import Claim
from dra.pods import Key

_log = logging.getLogger(__name__)

OWNED_GRACE_SECONDS = 5.0
"""How long an unused claim of a pod that has ended may wait to be deleted with it."""


class Step(Enum):
    """What to do with a claim that may have ended."""

    KEEP = auto()
    WAIT_FOR_NODE = auto()
    DEALLOCATE = auto()
    REMOVE_FINALIZER = auto()


def next_step(claim: Claim, *, finalizer: str, in_use: bool, on_node: bool) -> Step:
    """The next step for ``claim``.

    ``in_use``: a pod that has not ended refers to it. ``on_node``: its node still has a slice of
    it, or cannot tell. A claim without our finalizer is not ours to end; a reserved one is in use
    whatever else is true.
    """
    if finalizer not in claim.finalizers or claim.reserved_for:
        return Step.KEEP
    if not claim.deleting and in_use:
        return Step.KEEP
    if on_node:
        return Step.WAIT_FOR_NODE
    if claim.allocation is not None and not claim.deleting:
        return Step.DEALLOCATE
    return Step.REMOVE_FINALIZER


class Ender:
    """Takes the next step for claims that may have ended. ``now`` gives monotonic seconds."""

    def __init__(
        self, cluster: Cluster, writer: Writer, writes: ClaimWrites, now: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._writes = writes
        self._now = now
        self._unused_since: dict[Key, float] = {}

    def look_at(self, key: Key) -> float | None:
        """Begin the next step for a claim; returns the time to look again, if there is one."""
        cluster = self._cluster
        known = cluster.claims.get(key)
        if known is None or cluster.finalizer not in known.claim.finalizers:
            self._unused_since.pop(key, None)
            return None
        claim = known.claim
        step = next_step(
            claim,
            finalizer=cluster.finalizer,
            in_use=any(p.live for p in cluster.pods_of(key)),
            on_node=self._on_node(known),
        )
        fields = {"claim": str(claim.ref)}
        if step is not Step.DEALLOCATE:
            self._unused_since.pop(key, None)
        elif claim.owner_pod_uid:
            # The claims of a pod go with it; that is somebody else's work, usually under way.
            since = self._unused_since.setdefault(key, self._now())
            if self._now() < since + OWNED_GRACE_SECONDS:
                return since + OWNED_GRACE_SECONDS
            del self._unused_since[key]
        if step is Step.WAIT_FOR_NODE:
            _log.debug("the node still has a slice of an ended claim", extra=fields)
        elif step is Step.DEALLOCATE:
            told = partial(_log.info, "deallocated: no pod uses it", extra=fields)
            self._writes.send(known, self._writer.deallocate, told)
        elif step is Step.REMOVE_FINALIZER:
            told = partial(_log.info, "released", extra=fields)
            self._writes.send(known, self._writer.remove_finalizer, told)
        return None

    def _on_node(self, known: KnownClaim) -> bool:
        """Whether a node still has a slice of the claim; a node that cannot tell counts as yes."""
        fleet, allocation = self._cluster.fleet, known.claim.allocation
        uid = known.claim.ref.uid
        if allocation is None or not allocation.node:
            nodes = fleet.nodes_with_instances(uid)
            return any(n in self._cluster.hosts.facts for n in nodes)
        if allocation.node not in self._cluster.hosts.facts:
            return False
        instances = fleet.instance_claims(allocation.node)
        return instances is None or uid in instances
