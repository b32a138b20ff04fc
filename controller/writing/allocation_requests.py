"""Requests that write a decision: finalizers, allocations, the pod's gate, and labels last.

Made by threads that write, on values that nobody changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from controller.writing.writers import Writers
from dra.allocator.problem import Decision, Pick
from dra.claims.allocation import Allocation
from dra.claims.claims import Claim, read_claim
from dra.claims.wants import ClaimWants
from dra.common.resources import Obj, ObjectKey
from dra.kube.errors import KubeError
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class AllocationWrite:
    """One claim's part of a decision; ``uncertain``: it may have been written already."""

    wants: ClaimWants
    decision: Decision
    uncertain: bool = False

    @property
    def claim(self) -> Claim:
        """The claim in the state that is written to."""
        return self.wants.claim

    @property
    def key(self) -> ObjectKey:
        """Namespace and name of the claim."""
        return self.claim.ref.namespace, self.claim.ref.name

    @property
    def picks(self) -> tuple[Pick, ...]:
        """Devices for the claim."""
        return self.decision.of(self.claim.ref)

    def allocation(self, driver: str) -> Allocation:
        """As the claim will have it, without its configuration."""
        return self.decision.allocation(self.claim.ref, driver)


class AllocationRequests:
    """Makes the requests of one decision after the other. Thread-safe."""

    def __init__(self, writers: Writers, *, finalizer: str, gate: str) -> None:
        self._claims, self._pods = writers.claims, writers.pods
        self._finalizer = finalizer
        self._gate = gate

    def make(
        self,
        pod: Pod,
        writes: Sequence[AllocationWrite],
        labelled: Sequence[AllocationWrite],
        *,
        lifting: bool,
    ) -> Iterator[Obj]:
        """Write the claims, lift the gate of ``pod`` if ``lifting``, label some of the claims.

        Yields the claims as stored. What the writers raise goes through.
        """
        last: dict[str, Obj] = {}
        for write in writes:
            claim = write.claim
            node = write.decision.node
            if self._finalizer not in claim.finalizers:
                stored = self._claims.add_finalizer(claim, node=node)
                yield stored
                claim = read_claim(stored)
            stored = self._claims.allocate(
                claim,
                write.picks,
                node=node,
                pool=write.decision.pool,
                config=write.wants.config(p.request for p in write.picks),
                pod=pod,
            )
            yield stored
            last[claim.ref.uid] = stored
        if lifting:
            self._pods.lift_gate(pod, self._gate)
        for write in labelled:
            yield self._labelled(last[write.claim.ref.uid], write.decision.node)

    def _labelled(self, stored: Obj, node: str) -> Obj:
        """The claim with the label of its node, without which its slice is made a little later."""
        try:
            return self._claims.label(stored, node=node)
        except KubeError as error:
            _log.debug("not labelled: %s", error)
            return stored
