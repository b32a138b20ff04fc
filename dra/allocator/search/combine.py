"""Several devices at once: exact, over the GPUs of one node.

What a GPU could give is worked out for every combination of wants that fits it; the GPUs are then
combined by dynamic programming over how much of each want is served. A solution is found whenever
one exists, and it is the cheapest as long as costs add up over GPUs, which those of SWS do: what a
set of placements costs a GPU depends on its state before and after only.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from dra.allocator.scoring.moves import Move, MoveTable
from dra.allocator.scoring.score import Cost, Policy, Situation, Weights
from dra.allocator.search.budget import Budget
from dra.allocator.search.constraint_values import (
    NO_MEMBERS,
    NO_VALUES,
    UNCONSTRAINED,
    ConstraintRules,
    ConstraintValues,
    Members,
    Vector,
    is_complete,
    joined,
)
from dra.cel.kinds import Offer
from dra.gpu.geometry import Occupant, Placement, Usage

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """One device given to a want of type ``type``; no placement for a whole GPU."""

    type: int
    offer: Offer
    placement: Placement | None


@dataclass(frozen=True, slots=True)
class Option:
    """Devices that one GPU could give together, with their cost.

    ``used`` are the values that no device of another GPU may have then; ``bound`` are those that
    the other devices of their constraints must have.
    """

    take: Vector
    cost: Cost
    devices: tuple[ChosenDevice, ...]
    used: ConstraintValues = NO_VALUES
    bound: ConstraintValues = NO_VALUES


@dataclass(frozen=True, slots=True)
class Pricing:
    """Pricing of placements on the GPUs of one geometry: by type, each with its policy."""

    table: MoveTable
    policies: Sequence[Policy]
    weights: Weights


def nothing(types: int) -> Option:
    """The option of giving nothing."""
    return Option((0,) * types, (), ())


def slice_options(  # noqa: PLR0913 - what the GPU is, and what is wanted of it
    usage: Usage,
    instances: int,
    pricing: Pricing,
    *,
    target: Vector,
    allowed: Sequence[Iterable[Offer]],
    rules: ConstraintRules = UNCONSTRAINED,
    budget: Budget | None = None,
) -> list[Option]:
    """Every combination of slices, up to ``target``, that fits a GPU in state ``usage``.

    ``allowed`` are per type the offers that would do. Of combinations that are alike to other GPUs
    only the cheapest is returned, the one found first (lowest starts) winning ties.

    Raises:
        TooHardError: there are more of them than ``budget`` suffices for.
    """
    prices = _Prices(pricing)
    budget = budget or Budget()
    offers = [[o for o in group if o.profile is not None] for group in allowed]
    layer = {(usage, (0,) * len(target), NO_VALUES, NO_VALUES): nothing(len(target))}
    best: dict[tuple[Vector, ConstraintValues, ConstraintValues], Option] = {}
    while layer:
        following: dict[tuple[Usage, Vector, ConstraintValues, ConstraintValues], Option] = {}
        for (state, taken, used, bound), option in layer.items():
            known = _leaving(option, target, rules.members)
            if known is not None:
                _keep(best, (taken, known.used, known.bound), known)
            situation = Situation(
                state,
                instances + len(option.devices),
                pricing.table.geometry.memory_slices,
                pricing.weights,
            )
            for index, wanted in enumerate(target):
                for offer in offers[index] if taken[index] < wanted else ():
                    new = rules.distinct.get((index, offer), NO_VALUES)
                    shared = joined(bound, rules.same.get((index, offer), NO_VALUES))
                    if new & used or shared is None:
                        continue
                    seen = _seen_by(index, option, situation, pricing=pricing, empty=usage)
                    moves = prices.of(index, offer, situation, seen)
                    budget.spend(len(moves))
                    more = tuple(n + (i == index) for i, n in enumerate(taken))
                    values = used | new if new else used
                    for price, move in moves:
                        devices = (*option.devices, ChosenDevice(index, offer, move.placement))
                        cost = add(option.cost, price)
                        extended = Option(more, cost, devices, values, shared)
                        _keep(following, (move.after, more, values, shared), extended)
        layer = following
    return list(best.values())


def whole_options(
    target: Vector, allowed: Sequence[Iterable[Offer]], rules: ConstraintRules = UNCONSTRAINED
) -> list[Option]:
    """Giving a whole GPU to each of the types that would take one."""
    options = [nothing(len(target))]
    for index, group in enumerate(allowed):
        for offer in group:
            if offer.profile is None and target[index]:
                take = tuple(int(i == index) for i in range(len(target)))
                used = rules.distinct.get((index, offer), NO_VALUES)
                bound = rules.same.get((index, offer), NO_VALUES)
                devices = (ChosenDevice(index, offer, None),)
                option = _leaving(
                    Option(take, (_WHOLE,), devices, used, bound), target, rules.members
                )
                options += [] if option is None else [option]
    return options


def combine(
    gpus: Sequence[Sequence[Option]],
    target: Vector,
    members: Members = NO_MEMBERS,
    budget: Budget | None = None,
) -> tuple[Cost, list[Option]] | None:
    """The cheapest choice of one option per GPU that serves ``target`` exactly, or None.

    Earlier GPUs give as much as possible where the cost is equal. No used value is used twice, and
    of the types ``members[c]`` all get the same value of constraint ``c``.

    Raises:
        TooHardError: there are more choices than ``budget`` suffices for.
    """
    budget = budget or Budget()
    start = ((0,) * len(target), NO_VALUES, NO_VALUES)
    reached: dict[
        tuple[Vector, ConstraintValues, ConstraintValues], tuple[Cost, tuple[Option, ...]]
    ] = {start: ((), ())}
    for options, needed in zip(gpus, _needed(gpus, target), strict=True):
        following: dict[
            tuple[Vector, ConstraintValues, ConstraintValues], tuple[Cost, tuple[Option, ...]]
        ] = {}
        for (served, used, bound), (cost, chosen) in sorted(
            reached.items(), key=_most_served_first
        ):
            budget.spend(1 + len(options) // _OPTIONS_PER_STEP)
            for option in options:
                total = tuple(map(operator.add, served, option.take))
                if (
                    not all(map(operator.le, total, target))
                    or not all(map(operator.ge, total, needed))
                    or (option.used and option.used & used)
                ):
                    continue
                shared = joined(bound, option.bound)
                if shared is None:
                    continue
                if shared:
                    shared = frozenset(
                        v for v in shared if not is_complete(v, total, target, members)
                    )
                key = (total, used | option.used if option.used else used, shared)
                price = add(cost, option.cost)
                known = following.get(key)
                if known is None or price < known[0]:
                    following[key] = (price, (*chosen, option))
        reached = following
    found = [solution for (total, *_), solution in reached.items() if total == target]
    if not found:
        return None
    cost, chosen = min(found, key=lambda solution: solution[0])
    return cost, list(chosen)


def _needed(gpus: Sequence[Sequence[Option]], target: Vector) -> list[Vector]:
    """By GPU, how much has to be served after it, lest the following cannot serve the rest."""
    needed = [target]
    for options in reversed(gpus[1:]):
        most = (max(counts) for counts in zip(*(o.take for o in options), strict=True))
        needed.append(tuple(map(operator.sub, needed[-1], most)))
    return needed[::-1][: len(gpus)]


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


_COMPONENTS = 3
"""The most that a policy's cost has."""

_OPTIONS_PER_STEP = 8

_WHOLE = 1e6
"""A whole GPU costs more than any set of slices, where either would do."""


class _Prices:
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


def _seen_by(
    index: int, option: Option, situation: Situation, *, pricing: Pricing, empty: Usage
) -> Situation:
    """The GPU as the policy of type ``index`` sees it: without what other policies chose.

    Else one that packs would draw the slices of one that spreads to the GPU that it fills. The GPU
    was in state ``empty`` before ``option``.
    """
    policy = pricing.policies[index]
    others = [g for g in option.devices if pricing.policies[g.type] is not policy]
    if not others:
        return situation
    usage = pricing.table.geometry.usage(
        Occupant(g.placement, g.offer.profile.id)
        for g in option.devices
        if g not in others and g.placement is not None and g.offer.profile is not None
    )
    return situation._replace(
        usage=Usage(
            empty.mask | usage.mask,
            empty.compute_slices + usage.compute_slices,
            empty.engines + usage.engines,
        ),
        instances=situation.instances - len(others),
    )


def _leaving(option: Option, target: Vector, members: Members) -> Option | None:
    """``option`` with only the values that matter to other GPUs.

    None where it binds others to a value that they cannot have.
    """
    if not option.used and not option.bound:
        return option
    bound = {v for v in option.bound if not is_complete(v, option.take, target, members)}
    if any(value.local for value in bound):
        return None
    used = frozenset(v for v in option.used if not v.local)
    return replace(option, used=used, bound=frozenset(bound))


def _most_served_first(
    entry: tuple[tuple[Vector, ConstraintValues, ConstraintValues], object],
) -> int:
    return -sum(entry[0][0])


def _keep(best: dict[K, Option], key: K, option: Option) -> None:
    known = best.get(key)
    if known is None or option.cost < known.cost:
        best[key] = option
