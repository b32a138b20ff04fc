"""Options of a GPU that several claims may have: the sets of shares that it could give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.search.budget import Budget
from dra.allocator.search.constraint_values import NO_VALUES, ConstraintRules, Vector, joined
from dra.allocator.search.constraints import Allowed, WantType
from dra.allocator.search.options import WHOLE, ChosenDevice, Option, leaving, nothing
from dra.cel.offers import Offer
from dra.gpu.shares import NONE_HELD, SharesHeld

EMPTIEST = "spread"
"""The policy that spreads."""


@dataclass(frozen=True, slots=True)
class SharesWanted:
    """Wants by type, how many devices of each, and what of one GPU would do.

    ``allowed`` is per type, ``namespace`` that of the pod.
    """

    types: Sequence[WantType]
    target: Vector
    namespace: str
    allowed: Allowed
    rules: ConstraintRules


def share_options(state: GpuState, wants: SharesWanted, budget: Budget) -> list[Option]:
    """Every set of shares that fits the GPU beside those that it gave, one of a claim at most.

    The fullest GPU is preferred, or the emptiest by a policy that spreads; an empty GPU is the last
    that one that packs would begin.

    Raises:
        TooHardError: there are more of them than ``budget`` suffices for.
    """
    held = state.shared or NONE_HELD
    found = [(nothing(len(wants.target)), held, frozenset[str]())]
    for index, kind in enumerate(wants.types):
        share = state.share(kind.ask, wants.namespace)
        offers = [offer for offer in wants.allowed[index] if offer.profile is None]
        if share is None or not wants.target[index] or not offers:
            continue
        budget.spend(len(found))
        for option, beside, claims in [*found]:
            if kind.uid in claims or state.why_full(share, beside=beside):
                continue
            longer = _with(option, index, offers[0], _price(state, kind, held), wants.rules)
            if longer is not None:
                found.append((longer, beside.add(share), claims | {kind.uid}))
    kept = (leaving(option, wants.target, wants.rules.members) for option, _, _ in found)
    return [option for option in kept if option is not None]


def _price(state: GpuState, kind: WantType, held: SharesHeld) -> float:
    """Cost of a share of the GPU: that of a whole one, and how empty or full it is by memory."""
    full = held.memory_mib / state.gpu.memory_mib if state.gpu.memory_mib else 0.0
    return WHOLE + (full if kind.policy == EMPTIEST else 1.0 - full)


def _with(
    option: Option, index: int, offer: Offer, price: float, rules: ConstraintRules
) -> Option | None:
    """``option`` with a share for a want of type ``index``; None where a constraint forbids it."""
    new = rules.distinct.get((index, offer), NO_VALUES)
    bound = joined(option.bound, rules.same.get((index, offer), NO_VALUES))
    if new & option.used or bound is None:
        return None
    take = tuple(n + (i == index) for i, n in enumerate(option.take))
    cost = (option.cost[0] + price,) if option.cost else (price,)
    devices = (*option.devices, ChosenDevice(index, offer, None))
    return Option(take, cost, devices, option.used | new, bound)
