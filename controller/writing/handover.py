"""Handover to the next leader: a Lease that says whether an allocation may still arrive.

Most leaders end cleanly, by SIGTERM. They wait for the answers to what they have sent; if all came,
the next leader needs no fence (``controller.engine.fence``) around the claims that wait, which may
be thousands. The Lease is given back *settled* (``dra.kube.lease``) only if

- nothing of earlier leaders could arrive: the Lease was settled when it was taken, or the fence of
  this leader stands and has no gap, and
- every allocation that was sent has been answered, or its claim was seen to have changed since, so
  that it no longer fits.

Otherwise it is given back as well, since a fence does not depend on how long one waits before it,
but not as settled, and the next leader raises its fence. So does whoever takes a Lease that ran
out, that it created itself, that somebody else emptied, or that came from a version of this program
without that promise. Without an election nobody can tell what went before: there is always a fence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from controller.cluster.known_claims import newer
from dra.claims.claims import Claim
from dra.claims.reader import KnownClaim
from dra.common.resources import ObjectKey
from dra.gpu.inventory import ClaimRef


class Handover(Protocol):
    """Handover from the former leader, and to the next; LeaderElector is one."""

    @property
    def settled(self) -> bool:
        """True if nothing that earlier leaders sent can arrive any more."""

    def settle(self) -> None:
        """Tell the next leader that nothing can arrive any more."""


class NoHandover:
    """For a controller without election."""

    settled = False

    def settle(self) -> None:
        """There is nobody to tell."""


class Unanswered:
    """Allocations that were sent and not answered, so that they may still be made.

    An allocation names the resourceVersion that it fits, and a later one of the same claim a later
    version: the last one of each claim is enough. Thread-safe: no method needs more than one step.
    """

    def __init__(self) -> None:
        self._left: dict[str, Claim] = {}

    def add(self, claim: Claim) -> None:
        """An allocation of ``claim`` was sent, in the state in which it is given here."""
        self._left[claim.ref.uid] = claim

    def forget(self, uid: str) -> None:
        """The claim has changed since, or is gone."""
        self._left.pop(uid, None)

    def fitting(self, claims: Mapping[ObjectKey, KnownClaim]) -> list[ClaimRef]:
        """Those that such an allocation still fits, for all that is known of the claims.

        What is known may be older than what was sent: the answer to our finalizer before it.
        Another claim of the name is newer.
        """
        return [
            claim.ref
            for claim in self._left.copy().values()
            if (known := claims.get((claim.ref.namespace, claim.ref.name)))
            and not newer(known.claim.resource_version, claim.resource_version)
        ]
