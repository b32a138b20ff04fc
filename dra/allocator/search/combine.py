"""The combination of what single GPUs could give into what one node gives."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dra.allocator.gpustate import GpuState
from dra.allocator.score import Cost
from dra.allocator.search.constraints import (
    NO_MEMBERS,
    NO_VALUES,
    Allowed,
    ConstraintRules,
    ConstraintValues,
    Members,
    Vector,
    is_complete,
    joined,
)
from dra.allocator.search.options import WHOLE, Budget, ChosenDevice, Option, add
from dra.cel.offers import Offer
from dra.gpu.geometry import Placement, Usage

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
    """By GPU, the least to be served up to it, so that the GPUs after it can serve the rest."""
    needed = [target]
    for options in reversed(gpus[1:]):
        most = (max(counts) for counts in zip(*(o.take for o in options), strict=True))
        needed.append(tuple(map(operator.sub, needed[-1], most)))
    return needed[::-1][: len(gpus)]


def _most_served_first(
    entry: tuple[tuple[Vector, ConstraintValues, ConstraintValues], object],
) -> int:
    return -sum(entry[0][0])


_DEARER = 1e9
"""Cost added by ``first_fit``: more than any solution costs that is known to be the cheapest."""

_Place = tuple[int, int, Placement | None]
"""Index of the GPU, rank of the offer, and placement (None for a whole GPU)."""


@dataclass(frozen=True, slots=True)
class FittingGpu:
    """A GPU that no claims share, with the offers allowed by type, and its constraints."""

    state: GpuState
    allowed: Allowed
    rules: ConstraintRules


class _Fill(NamedTuple):
    """The GPUs after some devices were given; usage is None for a GPU that gives no more."""

    usages: tuple[Usage | None, ...]
    used: ConstraintValues = NO_VALUES
    bound: ConstraintValues = NO_VALUES


class _Chosen(NamedTuple):
    gpu: int
    device: ChosenDevice


def first_fit(
    gpus: Sequence[FittingGpu], target: Vector, budget: Budget
) -> tuple[Cost, list[Option]] | None:
    """Devices for ``target``, one option per GPU, or None where there are none.

    Raises:
        TooHardError: ``budget`` is used up before that is known.
    """
    return _FirstFit(gpus, target, budget).found()


class _FirstFit:
    def __init__(self, gpus: Sequence[FittingGpu], target: Vector, budget: Budget) -> None:
        self._gpus = gpus
        self._types = len(target)
        self._budget = budget
        rarest = sorted(range(len(target)), key=self._count)
        self._wanted = [index for index in rarest for _ in range(target[index])]
        self._failed: set[tuple[int, _Fill, _Place | None]] = set()

    def found(self) -> tuple[Cost, list[Option]] | None:
        chosen = self._serve(0, _Fill(tuple(_start(gpu.state) for gpu in self._gpus)), None)
        if chosen is None:
            return None
        sizes = (WHOLE if c.device.placement is None else c.device.offer.size for c in chosen)
        options = [self._option(gpu, chosen) for gpu in range(len(self._gpus))]
        return (_DEARER + sum(sizes),), options

    def _option(self, gpu: int, chosen: Sequence[_Chosen]) -> Option:
        devices = tuple(c.device for c in chosen if c.gpu == gpu)
        types = [device.type for device in devices]
        return Option(tuple(map(types.count, range(self._types))), (), devices)

    def _count(self, index: int) -> int:
        offers = (offer for gpu in self._gpus for offer in gpu.allowed[index])
        return sum(len(o.profile.placements) if o.profile is not None else 1 for o in offers)

    def _serve(self, at: int, fill: _Fill, last: _Place | None) -> tuple[_Chosen, ...] | None:
        """Devices for the wants from index ``at`` on; None where there are none.

        Devices of one type are given in the order of their places, after ``last``.
        """
        if at == len(self._wanted):
            return ()
        if (at, fill, last) in self._failed:
            return None
        index = self._wanted[at]
        is_last = at + 1 == len(self._wanted) or self._wanted[at + 1] != index
        for place, device, after in self._ways(index, fill, last):
            rest = self._serve(at + 1, after, None if is_last else place)
            if rest is not None:
                return (_Chosen(place[0], device), *rest)
        self._failed.add((at, fill, last))
        return None

    def _ways(
        self, index: int, fill: _Fill, last: _Place | None
    ) -> Iterator[tuple[_Place, ChosenDevice, _Fill]]:
        """Every device that would do for type ``index``, and the GPUs after it was given."""
        for number, (gpu, usage) in enumerate(zip(self._gpus, fill.usages, strict=True)):
            if usage is None or (last is not None and number < last[0]):
                continue
            for rank, offer in enumerate(sorted(gpu.allowed[index], key=lambda o: o.size)):
                values = self._values(number, (index, offer), fill)
                if values is None:
                    continue
                for placement, following in _room(gpu.state, usage, offer):
                    self._budget.spend(1)
                    place = (number, rank, placement)
                    if last is None or place > last:
                        usages = (*fill.usages[:number], following, *fill.usages[number + 1 :])
                        device = ChosenDevice(index, offer, placement)
                        yield place, device, _Fill(usages, *values)

    def _values(
        self, number: int, given: tuple[int, Offer], fill: _Fill
    ) -> tuple[ConstraintValues, ConstraintValues] | None:
        """Values used and bound once device ``given`` is; None where a constraint forbids it."""
        rules = self._gpus[number].rules
        new = _of_gpu(number, rules.distinct.get(given, NO_VALUES))
        bound = joined(fill.bound, _of_gpu(number, rules.same.get(given, NO_VALUES)))
        return None if new & fill.used or bound is None else (fill.used | new, bound)


def _of_gpu(number: int, values: ConstraintValues) -> ConstraintValues:
    """``values``; to those that only one GPU could have its number is added."""
    return frozenset(v._replace(value=(number, v.value)) if v.local else v for v in values)


def _start(state: GpuState) -> Usage | None:
    is_shared = state.gpu.sharing is not None
    is_held = state.whole_held or (state.table is None and state.holdings)
    return None if state.blocked or is_shared or is_held else state.usage


def _room(
    state: GpuState, usage: Usage, offer: Offer
) -> Iterator[tuple[Placement | None, Usage | None]]:
    """The places for ``offer`` on a GPU, and its usage afterwards."""
    if offer.shared:
        return
    if offer.profile is None:
        yield None, None
    elif state.table is not None:
        for move in state.table.moves(usage, offer.profile):
            yield move.placement, move.after
