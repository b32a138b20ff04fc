"""Options: what one GPU could give, with its cost; and the budget of a decision.

Costs can be added up over devices and GPUs. The budget is counted in steps of some microseconds, so
that no clock decides what is found.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from dra.allocator.moves import Move, MoveTable
from dra.allocator.score import MOST_COSTS, Cost, Policy, Situation, Weights
from dra.allocator.search.constraints import (
    NO_VALUES,
    UNCONSTRAINED,
    ConstraintRules,
    ConstraintValues,
    Members,
    Vector,
    is_complete,
)
from dra.cel.offers import Offer
from dra.gpu.geometry import Occupant, Placement, Usage

NODE_STEPS = 10_000
"""Upper bound on the steps for one node; what people ask for takes tens of steps."""

ENOUGH_STEPS = 300_000
"""After these the best node found so far is taken, although others may be better."""

DECISION_STEPS = 3_000_000
"""After these no further node is searched: some seconds of work, done in parts."""


class TooHardError(Exception):
    """A node's steps are used up; whether there is a solution is not known."""


class Budget:
    """The steps that one decision has taken; ``too_hard`` counts the nodes that were given up."""

    def __init__(self) -> None:
        self.used = 0
        self.too_hard = 0
        self._begun = 0
        self._node_end = NODE_STEPS

    @property
    def is_enough(self) -> bool:
        """True if the best node found so far is good enough."""
        return self.used - self._begun >= ENOUGH_STEPS

    @property
    def is_used_up(self) -> bool:
        """True if no further node is to be searched."""
        return self.used - self._begun >= DECISION_STEPS

    def open_decision(self) -> None:
        """Begin with a decision that has as many steps as the one before."""
        self._begun, self.too_hard = self.used, 0

    def open_node(self) -> None:
        """Begin with a node, which may take ``NODE_STEPS``."""
        self._node_end = self.used + NODE_STEPS

    def spend(self, steps: int) -> None:
        """Count steps for the present node.

        Raises:
            TooHardError: the node has had all of its steps.
        """
        self.used += steps
        if self.used > self._node_end:
            raise TooHardError


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
    """Costs of the moves on one GPU, worked out once for every state that the GPU comes to."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing
        self._known: dict[tuple[object, ...], tuple[tuple[Cost, Move], ...]] = {}

    def of(
        self, index: int, offer: Offer, situation: Situation, seen: Situation
    ) -> tuple[tuple[Cost, Move], ...]:
        """The moves that make ``offer``, as the policy of type ``index`` judges them.

        ``situation``: the GPU with all that was chosen; ``seen``: the GPU as that policy sees it.
        """
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
        if seen is situation:
            for move in moves(situation.usage, offer.profile):
                yield (offer.size, *policy(seen, move)), move
            return
        judged = {m.placement: m for m in moves(seen.usage, offer.profile)}
        for move in moves(situation.usage, offer.profile):
            yield (offer.size, *policy(seen, judged[move.placement])), move


K = TypeVar("K")

WHOLE = 1e6
"""A whole GPU costs more than any set of slices, where either would do."""


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    """One device given to a want of type ``type``; no placement for a whole GPU."""

    type: int
    offer: Offer
    placement: Placement | None


@dataclass(frozen=True, slots=True)
class Option:
    """Devices that one GPU could give together, with their cost.

    ``used``: values that no device of another GPU may have then. ``bound``: values that the other
    devices under the same constraints must have.
    """

    take: Vector
    cost: Cost
    devices: tuple[ChosenDevice, ...]
    used: ConstraintValues = NO_VALUES
    bound: ConstraintValues = NO_VALUES

    @property
    def key(self) -> tuple[Vector, ConstraintValues, ConstraintValues]:
        """Equal for options that are alike to other GPUs."""
        return self.take, self.used, self.bound


def nothing(types: int) -> Option:
    """The option of giving nothing."""
    return Option((0,) * types, (), ())


class Slices:
    """The slices that a GPU could give to one want after another; ``empty``: the GPU before."""

    def __init__(
        self,
        empty: Situation,
        pricing: Pricing,
        *,
        target: Vector,
        allowed: Sequence[Iterable[Offer]],
        rules: ConstraintRules,
    ) -> None:
        self._empty = empty
        self._pricing = pricing
        self._prices = Prices(pricing)
        self._target = target
        self._offers = [
            [o for o in group if o.profile is not None and not o.shared] for group in allowed
        ]
        self._rules = rules
        self._is_one_policy = len({*pricing.policies}) == 1

    def options(self, budget: Budget) -> list[Option]:
        """Every combination of slices, up to the target, that fits the GPU.

        Of combinations that are alike to other GPUs only the cheapest is returned, the one found
        first (lowest starts) winning ties.

        Raises:
            TooHardError: there are more of them than ``budget`` suffices for.
        """
        layer = [(self._empty.usage, nothing(len(self._target)))]
        best: dict[object, Option] = {}
        while layer:
            following: dict[tuple[Usage, object], Option] = {}
            for usage, option in layer:
                known = leaving(option, self._target, self._rules.members)
                if known is not None:
                    keep(best, known.key, known)
                for after, longer in self.with_one_more(usage, option, budget):
                    keep(following, (after, longer.key), longer)
            layer = [(after, option) for (after, _), option in following.items()]
        return list(best.values())

    def with_one_more(
        self, usage: Usage, option: Option, budget: Budget
    ) -> Iterator[tuple[Usage, Option]]:
        """``option`` with one more slice, for each that still fits, and the GPU's usage then."""
        situation = self._empty._replace(
            usage=usage, instances=self._empty.instances + len(option.devices)
        )
        for index, wanted in enumerate(self._target):
            if option.take[index] < wanted:
                for offer in self._offers[index]:
                    yield from self._with(index, offer, option, situation, budget=budget)

    def making(
        self, index: int, offer: Offer, usage: Usage, option: Option, *, budget: Budget
    ) -> Iterator[tuple[Usage, Option]]:
        """``option`` with ``offer`` for a want of type ``index``, where it still fits."""
        made = len({device.placement for device in option.devices})
        situation = self._empty._replace(usage=usage, instances=self._empty.instances + made)
        return self._with(index, offer, option, situation, budget=budget)

    def _with(
        self, index: int, offer: Offer, option: Option, situation: Situation, *, budget: Budget
    ) -> Iterator[tuple[Usage, Option]]:
        """``option`` with ``offer`` for a want of type ``index``, at each of its placements."""
        values = self._rules.values_with(index, offer, option.used, option.bound)
        if values is None:
            return
        used, bound = values
        seen = situation
        if not self._is_one_policy:
            empty = self._empty.usage
            seen = _seen_by(index, option, situation, pricing=self._pricing, empty=empty)
        moves = self._prices.of(index, offer, situation, seen)
        budget.spend(len(moves))
        take = tuple(n + (i == index) for i, n in enumerate(option.take))
        for price, move in moves:
            devices = (*option.devices, ChosenDevice(index, offer, move.placement))
            yield move.after, Option(take, add(option.cost, price), devices, used, bound)


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
                option = leaving(
                    Option(take, (WHOLE,), devices, used, bound), target, rules.members
                )
                options += [] if option is None else [option]
    return options


def _seen_by(
    index: int, option: Option, situation: Situation, *, pricing: Pricing, empty: Usage
) -> Situation:
    """The GPU as the policy of type ``index`` sees it: without what other policies chose.

    Otherwise a policy that packs would draw slices of one that spreads to the GPU that it fills.
    ``empty``: state of the GPU before ``option``.
    """
    policy = pricing.policies[index]
    others = [g for g in option.devices if pricing.policies[g.type] is not policy]
    if not others:
        return situation
    usage = pricing.table.geometry.usage(
        {
            Occupant(g.placement, g.offer.profile.id)
            for g in option.devices
            if g not in others and g.placement is not None and g.offer.profile is not None
        }
    )
    return situation._replace(
        usage=Usage(
            empty.mask | usage.mask,
            empty.compute_slices + usage.compute_slices,
            empty.engines + usage.engines,
        ),
        instances=situation.instances - len(others),
    )


def leaving(option: Option, target: Vector, members: Members) -> Option | None:
    """``option`` with only the values that matter to other GPUs.

    None where it binds devices of other GPUs to a value that only this GPU has.
    """
    if not option.used and not option.bound:
        return option
    bound = {v for v in option.bound if not is_complete(v, option.take, target, members)}
    if any(value.local for value in bound):
        return None
    used = frozenset(v for v in option.used if not v.local)
    return replace(option, used=used, bound=frozenset(bound))


def keep(best: dict[K, Option], key: K, option: Option) -> None:
    """Take an option if it is cheaper than the one that is known for ``key``."""
    known = best.get(key)
    if known is None or option.cost < known.cost:
        best[key] = option
