"""Claims that are read together: what is still to be served, and what is in the way of that."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dra.claims.claims import Claim
from dra.claims.reasons import Obstacle, Reason
from dra.claims.requests.reader import Reader
from dra.claims.requests.wants import ClaimWants
from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef

MOST_CHOICES = 512
"""Requests, or their alternatives, that are read of all claims of a pod together."""

LOOKS_AND_HOLDS = Obstacle(
    Reason.UNSUPPORTED,
    "a claim with adminAccess and one without cannot be allocated for the same pod; use two pods",
)


TOO_MANY = Obstacle(
    Reason.UNSUPPORTED,
    f"it and the pod's claims before it have more than {MOST_CHOICES} requests and alternatives "
    "together, which is more than this driver reads: ask for fewer, or by count, or put some into "
    "claims of other pods",
)


@dataclass(frozen=True, slots=True, eq=False)
class KnownClaim:
    """A claim with the object that it was read from."""

    claim: Claim
    obj: Obj

    @property
    def node_selector(self) -> dict[str, Any] | None:
        """Nodes that its allocation can be used on; None if that is any, or without one."""
        if self.claim.allocation is None:
            return None
        selector: dict[str, Any] | None = self.obj["status"]["allocation"].get("nodeSelector")
        return selector


class Fault(NamedTuple):
    """A claim that cannot be allocated whatever is free, and why."""

    claim: ClaimRef
    obstacle: Obstacle


class ReadClaims(NamedTuple):
    """Claims as read by ``read_claims``.

    ``wants`` are those of claims that are to be allocated, be they about to go. ``pins`` are the
    node selectors of the claims that are allocated. ``ours``: one of these has devices of our
    driver. ``foreign`` are those for other drivers that are not allocated.
    """

    wants: tuple[ClaimWants, ...]
    pins: tuple[dict[str, Any], ...]
    faults: tuple[Fault, ...]
    ours: bool
    foreign: tuple[Claim, ...] = ()

    @property
    def going(self) -> tuple[ClaimRef, ...]:
        """Claims of ``wants`` that are being deleted."""
        return tuple(wants.claim.ref for wants in self.wants if wants.claim.deleting)

    @property
    def mixture(self) -> Fault | None:
        """Fault of a claim that only looks at GPUs, where others hold some."""
        if len(self.wants) == 1:
            return None
        looks = [wants.claim.ref for wants in self.wants if wants.views]
        if not looks or len(looks) == len(self.wants):
            return None
        return Fault(looks[0], LOOKS_AND_HOLDS)


def read_claims(
    claims: Iterable[KnownClaim], reader: Reader, *, driver: str, stops_early: bool = False
) -> ReadClaims:
    """The claims of one pod, read. ``stops_early``: none is read after a faulty or a going one.

    None is read either after more of our requests than are read: that takes time, and the search
    for their devices more. What ``reader`` raises goes through.
    """
    wants: list[ClaimWants] = []
    pins: list[dict[str, Any]] = []
    faults: list[Fault] = []
    foreign: list[Claim] = []
    ours = False
    count = 0
    for known in claims:
        allocation = known.claim.allocation
        if allocation is not None:
            selector = known.node_selector
            pins += [selector] if selector is not None else []
            ours = ours or bool(allocation.of_driver(driver))
            continue
        read = reader.read(known.claim)
        count += 0 if read is None else sum(len(r.choices) for r in known.claim.requests)
        if count > MOST_CHOICES:
            faults.append(Fault(known.claim.ref, TOO_MANY))
            break
        if isinstance(read, Obstacle):
            faults.append(Fault(known.claim.ref, read))
        elif read is None:
            foreign.append(known.claim)
        else:
            wants.append(read)
        if stops_early and (faults or (read is not None and known.claim.deleting)):
            break
    return ReadClaims(tuple(wants), tuple(pins), tuple(faults), ours, tuple(foreign))
