"""Options of one GPU: the combinations of devices that it could give, and what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from dra.allocator.scoring.score import Cost, Situation
from dra.allocator.search.budget import Budget
from dra.allocator.search.constraint_values import (
    NO_VALUES,
    UNCONSTRAINED,
    ConstraintRules,
    ConstraintValues,
    Members,
    Vector,
    is_complete,
    joined,
)
from dra.allocator.search.pricing import Prices, Pricing, add
from dra.cel.offers import Offer
from dra.gpu.geometry import Occupant, Placement, Usage
from dra.gpu.inventory import IdleInstance

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

    ``used`` are the values that no device of another GPU may have then; ``bound`` are those that
    the other devices of their constraints must have.
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


def slice_options(  # noqa: PLR0913 - what the GPU is, and what is wanted of it
    usage: Usage,
    instances: int,
    pricing: Pricing,
    *,
    target: Vector,
    allowed: Sequence[Iterable[Offer]],
    rules: ConstraintRules = UNCONSTRAINED,
    idle: tuple[IdleInstance, ...] = (),
    budget: Budget | None = None,
) -> list[Option]:
    """Every combination of slices, up to ``target``, that fits a GPU in state ``usage``.

    ``idle`` are the idle slices on it, ``allowed`` per type the offers that would do. Of
    combinations that are alike to other GPUs only the cheapest is returned, the one found first
    (lowest starts) winning ties.

    Raises:
        TooHardError: there are more of them than ``budget`` suffices for.
    """
    budget = budget or Budget()
    situation = Situation(usage, instances, pricing.weights, idle)
    slices = Slices(situation, pricing, target=target, allowed=allowed, rules=rules)
    layer = [(usage, nothing(len(target)))]
    best: dict[object, Option] = {}
    while layer:
        following: dict[tuple[Usage, object], Option] = {}
        for state, option in layer:
            known = leaving(option, target, rules.members)
            if known is not None:
                _keep(best, known.key, known)
            for after, longer in slices.with_one_more(state, option, budget):
                _keep(following, (after, longer.key), longer)
        layer = [(after, option) for (after, _), option in following.items()]
    return list(best.values())


class Slices:
    """The slices that a GPU could give to one want after another; ``empty`` is it before them."""

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

    def with_one_more(
        self, usage: Usage, option: Option, budget: Budget
    ) -> Iterator[tuple[Usage, Option]]:
        """``option`` with each slice more that still fits, and the GPU's usage then."""
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
        values = self.values(index, offer, option)
        if values is None:
            return
        used, bound = values
        seen = _seen_by(index, option, situation, pricing=self._pricing, empty=self._empty.usage)
        moves = self._prices.of(index, offer, situation, seen)
        budget.spend(len(moves))
        take = tuple(n + (i == index) for i, n in enumerate(option.take))
        for price, move in moves:
            devices = (*option.devices, ChosenDevice(index, offer, move.placement))
            yield move.after, Option(take, add(option.cost, price), devices, used, bound)

    def values(
        self, index: int, offer: Offer, option: Option
    ) -> tuple[ConstraintValues, ConstraintValues] | None:
        """Values used and bound with ``offer`` as well; None where a constraint forbids it."""
        new = self._rules.distinct.get((index, offer), NO_VALUES)
        bound = joined(option.bound, self._rules.same.get((index, offer), NO_VALUES))
        if new & option.used or bound is None:
            return None
        return option.used | new if new else option.used, bound


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

    Else one that packs would draw the slices of one that spreads to the GPU that it fills. The GPU
    was in state ``empty`` before ``option``.
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

    None where it binds others to a value that they cannot have.
    """
    if not option.used and not option.bound:
        return option
    bound = {v for v in option.bound if not is_complete(v, option.take, target, members)}
    if any(value.local for value in bound):
        return None
    used = frozenset(v for v in option.used if not v.local)
    return replace(option, used=used, bound=frozenset(bound))


def _keep(best: dict[K, Option], key: K, option: Option) -> None:
    known = best.get(key)
    if known is None or option.cost < known.cost:
        best[key] = option
