"""Slices to hold back for a pod that waits: those where it would have to wait least."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from dra.allocator.allocate import Allocator
from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.fleet.view import FleetView, NodeGpus
from dra.allocator.problem import Decision, OpenRequest, Pick, Problem
from dra.allocator.search.search import Search
from dra.claims.requests.alternatives import choices
from dra.gpu.holdings import Holding
from dra.gpu.shares import sum_of

_GPU_SLICES = 64
"""A whole GPU that is in use counts as more than any of its slices."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Slices to hold back. ``blocked`` counts the memory slices of them that others have now."""

    decision: Decision
    blocked: int


def plan(
    problem: Problem, allocator: Allocator, *, stays: AbstractSet[str] = frozenset()
) -> Plan | None:
    """The devices that would serve ``problem`` once the fewest memory slices become free.

    None where no node would serve it even if it were empty of claims. What nobody claims stays, and
    so do the claims whose UIDs are in ``stays``. A preference of nodes only decides between equals:
    how full they are when it has become free, nobody knows.
    """
    fleet = allocator.fleet
    for claims in choices(problem.claims):
        chosen = replace(problem, claims=claims)
        search = Search(chosen, fleet)
        best: Plan | None = None
        for name in allocator.preferred(chosen):
            if best is not None and best.blocked == 0:
                break
            node = fleet.nodes[name]
            for decision in _on_node(search, node, stays):
                found = Plan(decision, _blocked(decision, node))
                if best is not None and found.blocked >= best.blocked:
                    continue
                if allocator.find_misfit(chosen, name) is not None:
                    break
                best = found
        if best is not None:
            return best
    return None


def _on_node(search: Search, node: NodeGpus, stays: AbstractSet[str]) -> Iterator[Decision]:
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
    offers = [o for o in search.match(state, 0).offers if o.profile is not None]
    for offer in sorted(offers, key=lambda o: o.size)[:1]:
        if offer.profile is not None:
            for placement in (
                state.gpu.geometry.free_placements(state.usage, offer.profile)
                if (state.gpu.geometry)
                else ()
            ):
                yield request.at(state, offer, placement)


def _emptied(state: GpuState, stays: AbstractSet[str]) -> GpuState:
    """The GPU without what claims hold but those that stay."""
    kept = tuple(h for h in state.holdings if not h.claim_uid or h.claim_uid in stays)
    geometry = state.gpu.geometry
    occupants = [h.occupant for h in kept if h.occupant is not None]
    shares = {uid: share for uid, share in state.shares.items() if uid in stays}
    sharing = state.gpu.sharing
    emptied = replace(
        state,
        claims={key: ref for key, ref in state.claims.items() if ref.uid in stays},
        holdings=kept,
        usage=geometry.usage(occupants) if geometry is not None else state.usage,
        whole_held=any(h.occupant is None for h in kept)
        if sharing is None
        else len(shares) >= sharing.shares,
        shares=shares,
        shared=None if sharing is None else sum_of(shares.values()),
    )
    emptied.fingerprint = emptied.traits
    return emptied


def memory_in_use(decision: Decision, fleet: FleetView) -> int:
    """Memory slices of the devices of ``decision`` that somebody has now; 0 of an unknown node."""
    node = fleet.nodes.get(decision.node)
    return _blocked(decision, node) if node is not None else 0


def blockers(decision: Decision, fleet: FleetView) -> frozenset[str]:
    """UIDs of the claims that have some of the devices of ``decision`` now."""
    node = fleet.nodes.get(decision.node)
    return frozenset(
        holding.claim_uid
        for pick in decision.picks
        if node is not None and (state := node.gpu(pick.gpu)) is not None
        for holding in state.holdings
        if holding.claim_uid and _overlaps(holding, pick)
    )


def _overlaps(holding: Holding, pick: Pick) -> bool:
    if holding.occupant is None or pick.placement is None:
        return True
    return bool(holding.occupant.placement.mask & pick.placement.mask)


def _blocked(decision: Decision, node: NodeGpus) -> int:
    total = 0
    for pick in decision.picks:
        state = node.gpu(pick.gpu)
        if state is None or state.whole_held or pick.placement is None:
            total += _GPU_SLICES if state is None or state.holdings else 0
        else:
            held = 0
            for holding in state.holdings:
                held |= holding.occupant.placement.mask if holding.occupant else 0
            total += (held & pick.placement.mask).bit_count()
    return total


def _held(state: GpuState) -> int:
    return _GPU_SLICES if state.whole_held else state.usage.mask.bit_count()
