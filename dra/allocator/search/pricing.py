"""Costs of moves on one GPU, in a form that can be added up over devices and GPUs."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dra.allocator.scoring.moves import Move, MoveTable
from dra.allocator.scoring.score import MOST_COSTS, Cost, Policy, Situation, Weights
from dra.cel.offers import Offer

_COMPONENTS = MOST_COSTS + 1
"""Upper bound on the entries of a cost, with the one that idle slices add."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """Pricing of placements on the GPUs of one geometry: by type, each with its policy."""

    table: MoveTable
    policies: Sequence[Policy]
    weights: Weights


def segmented(policies: Sequence[Policy]) -> list[Policy]:
    """The same policies with costs that can be added up: each has components of its own.

    Where they disagree, the policy that comes first decides.
    """
    order = {p: _shifted(p, n * _COMPONENTS) for n, p in enumerate(dict.fromkeys(policies))}
    return [order[policy] for policy in policies]


def _shifted(policy: Policy, places: int) -> Policy:
    if not places:
        return policy
    padding = (0.0,) * places
    return lambda situation, move: (*padding, *policy(situation, move))


def add(one: Cost, other: Cost) -> Cost:
    """The sum of two costs, component by component."""
    if len(one) < len(other):
        one, other = other, one
    return (*map(operator.add, one, other), *one[len(other) :])


class Prices:
    """Costs of the moves on one GPU, worked out once for every state that it may come to."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing
        self._known: dict[tuple[object, ...], tuple[tuple[Cost, Move], ...]] = {}

    def of(
        self, index: int, offer: Offer, situation: Situation, seen: Situation
    ) -> tuple[tuple[Cost, Move], ...]:
        """The moves that make ``offer``, as the policy of type ``index`` judges them."""
        policy = self._pricing.policies[index]
        key = (policy, offer, situation.usage, seen.usage, seen.instances)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = tuple(self._judged(policy, offer, situation, seen))
        return known

    def _judged(
        self, policy: Policy, offer: Offer, situation: Situation, seen: Situation
    ) -> Iterable[tuple[Cost, Move]]:
        if offer.profile is None:
            return
        moves = self._pricing.table.moves
        judged = {m.placement: m for m in moves(seen.usage, offer.profile)}
        for move in moves(situation.usage, offer.profile):
            yield (offer.size, *policy(seen, judged[move.placement])), move
