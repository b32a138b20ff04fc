"""Devices of a decision that others have now, and who has them."""

from __future__ import annotations

from dra.allocator.fleet.view import FleetView, NodeGpus
from dra.allocator.problem import Decision, Pick
from dra.gpu.holdings import Holding

GPU_SLICES = 64
"""A whole GPU that is in use counts as more than any of its slices."""


def memory_in_use(decision: Decision, fleet: FleetView) -> int:
    """Memory slices of the devices of ``decision`` that somebody has now; 0 of an unknown node."""
    node = fleet.nodes.get(decision.node)
    return memory_in_use_on(decision, node) if node is not None else 0


def memory_in_use_on(decision: Decision, node: NodeGpus) -> int:
    """As ``memory_in_use``, of a node that is known."""
    total = 0
    for pick in decision.picks:
        state = node.gpu(pick.gpu)
        if state is None or state.whole_held or pick.placement is None:
            total += GPU_SLICES if state is None or state.holdings else 0
        else:
            held = 0
            for holding in state.holdings:
                held |= holding.occupant.placement.mask if holding.occupant else 0
            total += (held & pick.placement.mask).bit_count()
    return total


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
