"""Cleanup of claims: the end of an allocation, and the removal of our finalizer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from controller.cluster.cluster import Cluster
from controller.lifecycle.claimwrites import ClaimWrites
from controller.writing.claim_writer import ClaimWriter
from dra.cel.offers import Question, UnansweredError
from dra.claims.claims import Claim
from dra.claims.reader import KnownClaim, Reader
from dra.common.resources import ObjectKey

_log = logging.getLogger(__name__)

OWNED_GRACE_SECONDS = 5.0
"""Time for which an unused claim of a pod that has ended may wait to be deleted with it."""

UNKNOWN_SECONDS = 1.0
"""Pause before a claim is looked at again of whose class it is not known yet whose it is."""


class Step(Enum):
    """Next step for a claim that may have ended."""

    KEEP = auto()
    WAIT_FOR_NODE = auto()
    DEALLOCATE = auto()
    REMOVE_FINALIZER = auto()


@dataclass(frozen=True, slots=True)
class Facts:
    """Conditions on which the next step for a claim depends; asked only where it does.

    ``ours``: we allocated the claim, or are to. ``in_use``: a pod that has not ended refers to it.
    ``on_node``: its node still has a slice of it, or cannot tell.
    """

    ours: Callable[[], bool]
    in_use: Callable[[], bool]
    on_node: Callable[[], bool]


def next_step(claim: Claim, facts: Facts, *, finalizer: str, at_creation: bool) -> Step:
    """The next step for ``claim``.

    A claim without our finalizer is not ours to end; a reserved one is in use whatever else is
    true. With ``at_creation`` claims have our finalizer from their creation to their deletion,
    otherwise from the decision on them until nobody uses them. Others' claims never keep it.
    """
    if finalizer not in claim.finalizers:
        return Step.KEEP
    if not facts.ours():
        return Step.REMOVE_FINALIZER
    allocated = claim.allocation is not None
    stays = not claim.deleting and ((at_creation and not allocated) or facts.in_use())
    if claim.reserved_for or stays:
        return Step.KEEP
    if facts.on_node():
        return Step.WAIT_FOR_NODE
    return Step.DEALLOCATE if allocated and not claim.deleting else Step.REMOVE_FINALIZER


class Ender:
    """Takes the next step for claims that may have ended.

    ``at_creation``: see ``next_step``. ``ask`` has a question answered on which it depends whose a
    class is. ``now`` gives monotonic seconds.
    """

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        cluster: Cluster,
        reader: Reader,
        writer: ClaimWriter,
        *,
        writes: ClaimWrites,
        at_creation: bool,
        ask: Callable[[Question], None],
        now: Callable[[], float],
    ) -> None:
        self._ask = ask
        self._cluster = cluster
        self._reader = reader
        self._writer = writer
        self._writes = writes
        self._at_creation = at_creation
        self._now = now
        self._unused_since: dict[ObjectKey, float] = {}

    def look_at(self, key: ObjectKey) -> float | None:
        """Begin the next step for a claim; returns the time to look again, if there is one."""
        cluster = self._cluster
        known = cluster.claims.get(key)
        if known is None or cluster.finalizer not in known.claim.finalizers:
            self._unused_since.pop(key, None)
            return None
        claim = known.claim
        facts = Facts(
            ours=lambda: self._is_ours(known),
            in_use=lambda: any(p.live for p in cluster.pods_of(key)),
            on_node=lambda: self._on_node(known),
        )
        # Whether a write was made is known once the next one is: here, that of the finalizer.
        stays = self._at_creation and not cluster.fleet.counts(claim.ref.uid)
        try:
            step = next_step(claim, facts, finalizer=cluster.finalizer, at_creation=stays)
        except UnansweredError as error:
            self._ask(error.question)
            return self._now() + UNKNOWN_SECONDS
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

    def _is_ours(self, known: KnownClaim) -> bool:
        if known.claim.allocation is not None:
            return not known.claim.by_others(self._cluster.driver)
        return self._reader.concerns(known.claim)

    def _on_node(self, known: KnownClaim) -> bool:
        """True if the node of its allocation still has a slice of the claim, or cannot tell.

        What other nodes say is not asked: nobody but its own node can keep a claim from its end.
        """
        allocation = known.claim.allocation
        if allocation is None or allocation.node not in self._cluster.hosts.facts:
            return False
        instances = self._cluster.fleet.instance_claims(allocation.node)
        return instances is None or known.claim.ref.uid in instances
