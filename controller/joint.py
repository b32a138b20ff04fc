"""Several devices at once: exact, over the GPUs of one node.

What a GPU could give is worked out for every combination of wants that fits it; the GPUs are then
combined by dynamic programming over how much of each want is served. A solution is found whenever
one exists, and it is the cheapest as long as costs add up over GPUs, which those of SWS do: what a
set of placements costs a GPU depends on its state before and after only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

from controller.kinds import Offer
from dra.geometry import Placement, Usage
from dra.moves import MoveTable
from dra.score import Key, Policy, Situation

K = TypeVar("K")
Vector = tuple[int, ...]
"""How many devices of each type of want."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One device given to a want of type ``type``; no placement for a whole GPU."""

    type: int
    offer: Offer
    placement: Placement | None


@dataclass(frozen=True, slots=True)
class Option:
    """What one GPU could give together, and what that costs."""

    take: Vector
    cost: Key
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class Pricing:
    """How placements on the GPUs of one market are judged."""

    table: MoveTable
    policy: Policy
    weights: tuple[float, ...]


def nothing(types: int) -> Option:
    """The option of giving nothing."""
    return Option((0,) * types, (), ())


def slice_options(
    usage: Usage,
    instances: int,
    pricing: Pricing,
    *,
    target: Vector,
    allowed: Sequence[Iterable[Offer]],
) -> list[Option]:
    """Every combination of slices, up to ``target``, that fits a GPU in state ``usage``.

    ``allowed`` are per type the offers that would do. Combinations of equal ``take`` are
    represented by the cheapest, the one found first (lowest starts) winning ties.
    """
    offers = [[o for o in group if o.profile is not None] for group in allowed]
    layer = {(usage, (0,) * len(target)): nothing(len(target))}
    best: dict[Vector, Option] = {}
    while layer:
        following: dict[tuple[Usage, Vector], Option] = {}
        for (state, taken), option in layer.items():
            _keep(best, taken, option)
            situation = Situation(
                state,
                instances + len(option.grants),
                pricing.table.geometry.memory_slices,
                pricing.weights,
            )
            for index, wanted in enumerate(target):
                if taken[index] < wanted:
                    for extended, after in _extended(
                        option, index, offers[index], situation, pricing
                    ):
                        _keep(following, (after, extended.take), extended)
        layer = following
    return list(best.values())


def whole_options(target: Vector, allowed: Sequence[Iterable[Offer]]) -> list[Option]:
    """Giving a whole GPU to each of the types that would take one."""
    options = [nothing(len(target))]
    for index, group in enumerate(allowed):
        for offer in group:
            if offer.profile is None and target[index]:
                take = tuple(int(i == index) for i in range(len(target)))
                options.append(Option(take, (_WHOLE,), (Grant(index, offer, None),)))
    return options


def combine(gpus: Sequence[Sequence[Option]], target: Vector) -> tuple[Key, list[Option]] | None:
    """The cheapest choice of one option per GPU that serves ``target`` exactly, or None.

    Earlier GPUs give as much as possible where the cost is equal.
    """
    reached: dict[Vector, tuple[Key, tuple[Option, ...]]] = {(0,) * len(target): ((), ())}
    for options in gpus:
        following: dict[Vector, tuple[Key, tuple[Option, ...]]] = {}
        for served in sorted(reached, key=sum, reverse=True):
            cost, chosen = reached[served]
            for option in options:
                total = tuple(a + b for a, b in zip(served, option.take, strict=True))
                if any(a > b for a, b in zip(total, target, strict=True)):
                    continue
                price = add(cost, option.cost)
                known = following.get(total)
                if known is None or price < known[0]:
                    following[total] = (price, (*chosen, option))
        reached = following
    found = reached.get(target)
    return None if found is None else (found[0], list(found[1]))


def add(one: Key, other: Key) -> Key:
    """The sum of two costs, component by component."""
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0))


_WHOLE = 1e6
"""A whole GPU costs more than any set of slices, where either would do."""


def _extended(
    option: Option, index: int, offers: Iterable[Offer], situation: Situation, pricing: Pricing
) -> Iterable[tuple[Option, Usage]]:
    """``option`` with one more slice for type ``index``, and the GPU's usage then."""
    take = tuple(n + (i == index) for i, n in enumerate(option.take))
    for offer in offers:
        if offer.profile is None:
            continue
        for move in pricing.table.moves(situation.usage, offer.profile):
            price = (offer.size, *pricing.policy(situation, move))
            grants = (*option.grants, Grant(index, offer, move.placement))
            yield Option(take, add(option.cost, price), grants), move.after


def _keep(best: dict[K, Option], key: K, option: Option) -> None:
    known = best.get(key)
    if known is None or option.cost < known.cost:
        best[key] = option
