"""Several devices at once: exact, over the GPUs of one node.

What a GPU could give is worked out for every combination of wants that fits it; the GPUs are then
combined by dynamic programming over how much of each want is served. A solution is found whenever
one exists, and it is the cheapest as long as costs add up over GPUs, which those of SWS do: what a
set of placements costs a GPU depends on its state before and after only.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence

from dra.allocator.scoring.score import Cost
from dra.allocator.search.budget import Budget
from dra.allocator.search.constraint_values import (
    NO_MEMBERS,
    NO_VALUES,
    ConstraintValues,
    Members,
    Vector,
    is_complete,
    joined,
)
from dra.allocator.search.options import Option
from dra.allocator.search.pricing import add

_OPTIONS_PER_STEP = 8


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


def _most_served_first(
    entry: tuple[tuple[Vector, ConstraintValues, ConstraintValues], object],
) -> int:
    return -sum(entry[0][0])
