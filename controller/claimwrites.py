"""Single writes to claims: taking an allocation or our finalizer away.

A deallocation that was not answered may be made any time later, while the claim stays as it is.
Where a claim is reserved for its pod already, nobody changes it before that pod runs: so the pod
gets nothing more before the deallocation is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from controller.cluster import Cluster, KnownClaim
from controller.flights import Answer, Flights
from dra.claims import Claim
from dra.kube.errors import UnavailableError
from dra.kube.resources import Obj
from dra.pods import Key

Settle = Callable[[Key, Exception | None], None]
"""Called when a write to a claim was answered: with what went wrong, or None."""


class ClaimWrites:
    """Begins writes to claims, and tells the cluster index what was stored."""

    def __init__(self, cluster: Cluster, flights: Flights, settle: Settle) -> None:
        self._cluster = cluster
        self._flights = flights
        self._settle = settle
        self._unanswered: dict[str, tuple[Claim, Callable[[], None]]] = {}

    def send(
        self, known: KnownClaim, write: Callable[[Claim], Obj], then: Callable[[], None]
    ) -> None:
        """Have ``write`` change a claim; ``then`` is called when it did."""
        cluster, claim = self._cluster, known.claim
        key = (claim.ref.namespace, claim.ref.name)

        def job() -> Iterator[Obj]:
            yield write(claim)

        def done(answer: Answer) -> None:
            for obj in answer.written:
                cluster.confirm_claim(obj)
            cluster.end_write(claim.ref)
            if answer.error is None:
                then()
            elif isinstance(answer.error, UnavailableError) and claim.reserved_for:
                again = partial(self.send, known, write, then)
                self._unanswered[claim.ref.uid] = claim, again
            self._settle(key, answer.error)

        cluster.begin_write(claim.ref)
        self._flights.start([key], job, done)

    def repeat(self, claims: Iterable[Key]) -> bool:
        """Write again what was not answered and may still be made; False when there is no such."""
        repeated = False
        for key in claims:
            known = self._cluster.claims.get(key)
            found = self._unanswered.pop(known.claim.ref.uid, None) if known else None
            if known and found and found[0].resource_version == known.claim.resource_version:
                found[1]()
                repeated = True
        return repeated

    def forget(self, uid: str) -> None:
        """The claim is gone."""
        self._unanswered.pop(uid, None)
