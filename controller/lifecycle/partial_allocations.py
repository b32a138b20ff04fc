"""Partial allocations, given up where they keep a pod from being served as a whole.

A pod with several claims may hold some on a node that has no room for the rest: after a write that
failed half-way, or when the scheduler took back only one of them.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial

from controller.cluster.cluster import Cluster
from controller.lifecycle.claimwrites import ClaimWrites
from controller.writing.claim_writer import ClaimWriter
from dra.allocator.admin_access import looks_only
from dra.allocator.allocate import Allocator
from dra.allocator.fleet import Fleet
from dra.allocator.problem import Problem
from dra.claims.reader import KnownClaim, Reader
from dra.claims.wants import ClaimWants
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)


class PartialAllocations:
    """Allocations of pods that lack others; given up only where nobody uses them yet."""

    def __init__(
        self,
        cluster: Cluster,
        reader: Reader,
        writer: ClaimWriter,
        *,
        writes: ClaimWrites,
        allocator: Allocator,
    ) -> None:
        self._cluster = cluster
        self._reader = reader
        self._writer = writer
        self._writes = writes
        self._allocator = allocator

    def give_up(self, pod: Pod, problem: Problem, fleet: Fleet) -> bool:
        """Deallocate claims of ``pod`` if all its claims then fit together; True when under way.

        ``problem`` is what the pod still lacks on ``fleet``. What is reserved for the pod is
        deallocated in two steps, each when the pod is looked at: in between, whoever is about to
        bind it after all has to reserve the claim again, and then it stays.
        """
        pins = _own_pins(pod, self._cluster)
        if looks_only(problem) or not pins or not self._fits_whole(pod, problem, pins, fleet):
            return False
        for known in pins:
            fields = {"claim": str(known.claim.ref), "pod": str(pod)}
            if known.claim.reserved_for:
                write, what = self._writer.unreserve, "no longer reserved for the pod"
            else:
                write, what = self._writer.deallocate, "deallocated"
            message = f"{what}, to serve the pod as a whole on another node"
            self._writes.send(known, write, partial(_log.info, message, extra=fields))
        return True

    def _fits_whole(self, pod: Pod, problem: Problem, pins: list[KnownClaim], fleet: Fleet) -> bool:
        """True if all claims fit somewhere once those in ``pins`` are given up."""
        cluster = self._cluster
        movable = {known.claim.ref.uid for known in pins}
        freed = [self._reader.read(replace(known.claim, allocation=None)) for known in pins]
        extra = tuple(wants for wants in freed if isinstance(wants, ClaimWants))
        others = tuple(
            selector
            for key in pod.claim_keys
            if (known := cluster.claims[key]).claim.ref.uid not in movable
            and (selector := known.node_selector)
        )
        whole = replace(problem, claims=(*problem.claims, *extra), pins=others)
        return self._allocator.on(fleet.without(movable)).decide(whole) is not None


def _own_pins(pod: Pod, cluster: Cluster) -> list[KnownClaim]:
    """Claims of ``pod`` that we allocated and that are reserved for nobody else."""
    found = []
    for key in pod.claim_keys:
        known = cluster.claims.get(key)
        if known is None:
            continue
        claim = known.claim
        movable = (
            claim.allocation is not None
            and bool(claim.allocation.of_driver(cluster.driver))
            and cluster.finalizer in claim.finalizers
            and all(consumer.uid == pod.uid for consumer in claim.reserved_for)
            and not claim.deleting
            and all(p.uid == pod.uid or not p.live for p in cluster.pods_of(key))
        )
        if movable:
            found.append(known)
    return found
