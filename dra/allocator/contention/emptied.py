"""Devices of one node that would serve a problem once others have ended there."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from dra.allocator.contention.blocked import GPU_SLICES, memory_in_use_on
from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.fleet.shared_slices import joinable
from dra.allocator.fleet.view import NodeGpus
from dra.allocator.problem import Decision, OpenRequest
from dra.allocator.search.search import Search
from dra.cel.offers import Offer
from dra.gpu.shares import sum_of


@dataclass(frozen=True, slots=True)
class Plan:
    """Devices to wait for. ``blocked`` counts the memory slices of them that others have now."""

    decision: Decision
    blocked: int


def least_blocked(search: Search, node: NodeGpus, stays: AbstractSet[str]) -> Plan | None:
    """The devices of ``node`` that serve it once the fewest memory slices become free.

    None where it would not be served even if the node were empty of claims. What nobody claims
    stays, and so do the claims whose UIDs are in ``stays``.
    """
    best: Plan | None = None
    for decision in _decisions(search, node, stays):
        found = Plan(decision, memory_in_use_on(decision, node))
        if best is None or found.blocked < best.blocked:
            best = found
    return best


def _decisions(search: Search, node: NodeGpus, stays: AbstractSet[str]) -> Iterator[Decision]:
    """Decisions on ``node`` with ever more of its GPUs emptied, the least used first."""
    order = sorted(range(len(node.gpus)), key=lambda n: (_held(node.gpus[n]), n))
    gpus = [*node.gpus]
    for index in order:
        gpus[index] = _emptied(node.gpus[index], stays)
        decision = search.decision(node, gpus)
        if decision is not None:
            yield decision
    request = search.single
    if request is not None:
        for state in node.gpus:
            yield from _single(search, request, _emptied(state, stays))


def _single(search: Search, request: OpenRequest, state: GpuState) -> Iterator[Decision]:
    """Every placement on an emptied GPU of the smallest profile that would do."""
    if state.blocked or state.geometry_index is None:
        return
    offers = [o for o in search.match(state, 0).offers if _may_be_made(o, search, state)]
    for offer in sorted(offers, key=lambda o: o.size)[:1]:
        if offer.profile is not None:
            for placement in (
                state.gpu.geometry.free_placements(state.usage, offer.profile)
                if (state.gpu.geometry)
                else ()
            ):
                yield request.at(state, offer, placement)


def _may_be_made(offer: Offer, search: Search, state: GpuState) -> bool:
    """True of a slice, and of a share that fits a slice by itself."""
    if offer.profile is None or not offer.shared:
        return offer.profile is not None
    share = state.share(search.types[0].ask, search.namespace, offer.profile)
    return share is not None and not state.why_slice_full(share, offer.profile)


def _emptied(state: GpuState, stays: AbstractSet[str]) -> GpuState:
    """The GPU without what claims hold but those that stay."""
    kept = tuple(h for h in state.holdings if not h.claim_uid or h.claim_uid in stays)
    geometry = state.gpu.geometry
    occupants = {h.occupant for h in kept if h.occupant is not None}
    claims = {key: ref for key, ref in state.claims.items() if ref.uid in stays}
    slice_shares = {key: s for key, s in state.slice_shares.items() if key[0] in stays}
    shares = {uid: share for uid, share in state.shares.items() if uid in stays}
    sharing = state.gpu.sharing
    emptied = replace(
        state,
        claims=claims,
        holdings=kept,
        instances=len(occupants) + sum(h.occupant is None for h in kept),
        usage=geometry.usage(occupants) if geometry is not None else state.usage,
        whole_held=any(h.occupant is None for h in kept)
        if sharing is None
        else len(shares) >= sharing.shares,
        shares=shares,
        shared=None if sharing is None else sum_of(shares.values()),
        slice_shares=slice_shares,
        shared_slices=joinable(state.gpu, claims, slice_shares) if slice_shares else (),
    )
    emptied.fingerprint = emptied.traits
    return emptied


def _held(state: GpuState) -> int:
    return GPU_SLICES if state.whole_held else state.usage.mask.bit_count()
