"""The holdings in the way on a GPU, and the fewest that would have to go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dra.allocator.explain.answers import AnswerReason, Blocker
from dra.allocator.gpustate import GpuState
from dra.cel.offers import Offer
from dra.gpu.geometry import Geometry, Placement, Profile
from dra.gpu.holdings import Holding


def blocker(holding: Holding) -> Blocker:
    """A holding as what is told of it."""
    placement = holding.occupant.placement if holding.occupant else None
    return Blocker(holding.holder, holding.claim_uid, holding.namespace, placement)


def in_the_way(state: GpuState, offers: Iterable[Offer]) -> list[Holding]:
    """Holders of memory slices that ``offers`` could use; all, where it is not the slices."""
    wanted = 0
    for offer in offers:
        for placement in offer.profile.placements if offer.profile else ():
            wanted |= placement.mask
    return [
        h
        for h in state.holdings
        if h.occupant is None or not wanted or h.occupant.placement.mask & wanted
    ]


def ways(state: GpuState, offers: Sequence[Offer]) -> list[list[Holding]]:
    """For each placement of ``offers`` who would have to go, the cheapest first."""
    found: list[list[Holding]] = []
    for offer in sorted(offers, key=lambda o: o.size):
        if offer.profile is None or state.whole_held or state.gpu.geometry is None:
            found.append(list(state.holdings))
            continue
        found += [
            _to_go(state.holdings, offer.profile, at, state.gpu.geometry)
            for at in offer.profile.placements
        ]
    found.sort(key=lambda way: (cost_of(way), len(way)))
    return found


def cost_of(holdings: Iterable[Holding]) -> int:
    """Cost of having some go, to compare GPUs."""
    return sum(map(_weight, holdings))


def reason_of(state: GpuState, least: Sequence[Holding]) -> AnswerReason:
    """Reason common to those that would have to go."""
    if state.whole_held:
        return AnswerReason.HELD_WHOLE
    if least and all(h.leaving for h in least):
        return AnswerReason.RECLAIMING
    if least and not any(h.claim_uid for h in least):
        return AnswerReason.FOREIGN
    return AnswerReason.NO_ROOM


def _to_go(
    held: Sequence[Holding], profile: Profile, at: Placement, geometry: Geometry
) -> list[Holding]:
    """The holdings that have to go for ``profile`` to fit ``at``.

    First those that overlap; where memory slices are free, compute slices or engines lack, and
    others have to go until they suffice, the smallest first.
    """
    going = [h for h in held if h.occupant is not None and h.occupant.placement.overlaps(at)]
    staying = [h for h in held if h not in going]
    staying.sort(key=lambda h: (_weight(h), h.occupant.placement.size if h.occupant else 0))
    while staying:
        usage = geometry.usage({h.occupant for h in staying if h.occupant is not None})
        if geometry.fits(usage, profile, at):
            break
        going.append(staying.pop(0))
    return going


def _weight(holding: Holding) -> int:
    """Weight of a holding: least if it goes anyway, most if no claim holds it."""
    if holding.leaving:
        return 1
    return 2 if holding.claim_uid else 10
