"""Requests of a pod's claims, grouped into those that the same devices serve."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from dra.allocator.problem import OpenRequest
from dra.allocator.search.constraints import WantType
from dra.cel.kinds.kinds import Kinds
from dra.claims.requests.wants import ClaimWants


def group_wants(
    claims: Sequence[ClaimWants], kinds: Kinds, *, shared: bool
) -> dict[WantType, list[OpenRequest]]:
    """Wants by type, in the order in which they are asked for.

    ``shared``: there are GPUs that several claims may have, or slices of which.
    """
    grouped: dict[WantType, list[OpenRequest]] = {}
    selecting: dict[Hashable, tuple[str, ...]] = {}
    for claim in claims:
        for want in claim.wants:
            bound = tuple(c for c in claim.constraints if c.covers(want))
            # Whatever they say: expressions that select the same make wants of one type.
            selected = kinds.selected(want.expressions)
            expressions = selecting.setdefault(selected, want.expressions)
            kind = WantType(expressions, bound, want.policy, want.everything)
            if shared and (selected is want.expressions or _of_shares(selected)):
                kind = replace(kind, ask=want.ask, uid=claim.claim.ref.uid)
            grouped.setdefault(kind, []).append(OpenRequest(claim.claim.ref, want))
    return grouped


def single_request(claims: Sequence[ClaimWants], kinds: Kinds) -> OpenRequest | None:
    """The one device that is wanted, if any GPU of a kind would serve it alike."""
    claim = claims[0]
    if len(claims) > 1 or len(claim.choices) != 1 or claim.constraints:
        return None
    want = claim.choices[0][0]
    if want.count > 1 or want.everything or kinds.tells_gpus_apart(want.expressions):
        return None
    return OpenRequest(claim.claim.ref, want)


def selects_shares(expressions: tuple[str, ...], kinds: Kinds) -> bool:
    """True if they, which tell no GPUs of a kind apart, select what several claims may have."""
    return _of_shares(kinds.selected(expressions))


def _of_shares(selected: Hashable) -> bool:
    """True if ``selected``, the offers of each kind, has a device that several claims may have."""
    kinds = selected if isinstance(selected, Iterable) else ()
    return any(offer.shared for offers in kinds for offer in offers)
