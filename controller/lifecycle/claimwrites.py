"""Single writes to claims: taking an allocation or our finalizer away."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from controller.cluster.cluster import Cluster
from controller.writing.in_flight import InFlight, WriteAnswer
from dra.claims.claims import Claim
from dra.claims.reader import KnownClaim
from dra.common.resources import Obj, ObjectKey

Settle = Callable[[ObjectKey, Exception | None], None]
"""Called when a write to a claim was answered: with what went wrong, or None."""


class ClaimWrites:
    """Begins writes to claims, and tells the cluster index what was stored."""

    def __init__(self, cluster: Cluster, in_flight: InFlight, settle: Settle) -> None:
        self._cluster = cluster
        self._in_flight = in_flight
        self._settle = settle

    def send(
        self, known: KnownClaim, write: Callable[[Claim], Obj], then: Callable[[], None]
    ) -> None:
        """Have ``write`` change a claim; ``then`` is called when it did."""
        cluster, claim = self._cluster, known.claim
        key = (claim.ref.namespace, claim.ref.name)

        def job() -> Iterator[Obj]:
            yield write(claim)

        def done(answer: WriteAnswer) -> None:
            for obj in answer.written:
                cluster.confirm_claim(obj)
            cluster.end_write(claim.ref)
            if answer.error is None:
                then()
            self._settle(key, answer.error)

        cluster.begin_write(claim.ref)
        self._in_flight.start([key], job, done)
