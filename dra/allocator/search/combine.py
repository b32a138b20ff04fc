"""The combination of what single GPUs could give into what one node gives."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dra.allocator.gpustate import GpuState
from dra.allocator.ongoing import Budget
from dra.allocator.score import Cost
from dra.allocator.search.constraints import (
    NO_VALUES,
    Allowed,
    ConstraintRules,
    ConstraintValues,
    Members,
    Vector,
    is_complete,
    joined,
)
from dra.allocator.search.options import WHOLE, ChosenDevice, Option, nothing, sum_of
from dra.cel.offers import Offer
from dra.gpu.geometry import Placement, Usage

_OPTIONS_PER_STEP = 8


_Served = tuple[Vector, ConstraintValues, ConstraintValues]
"""Devices given so far, and the values used and bound with them (``Option.key``)."""


def combine(
    gpus: Sequence[Sequence[Option]], target: Vector, members: Members, budget: Budget
) -> tuple[Cost, list[Option]] | None:
    """The cheapest choice of one option per GPU that serves ``target`` exactly, or None.

    Earlier GPUs give as much as possible where the cost is equal. No used value is used twice, and
    of the types ``members[c]`` all get the same value of constraint ``c``.

    Raises:
        TooHardError: there are more choices than ``budget`` suffices for.
    """
    reached: dict[_Served, tuple[Cost, tuple[Option, ...]]] = {nothing(len(target)).key: ((), ())}
    for options, needed in zip(gpus, _needed(gpus, target), strict=True):
        following: dict[_Served, tuple[Cost, tuple[Option, ...]]] = {}
        for (served, used, bound), (cost, chosen) in sorted(
            reached.items(), key=lambda entry: -sum(entry[0][0])
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
                price = sum_of(cost, option.cost)
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


_DEARER = 1e9
"""Cost added by ``first_fit``: more than any solution costs that is known to be the cheapest."""

_Place = tuple[int, int, Placement | None]
"""Index of the GPU, rank of the offer, and placement (None for a whole GPU)."""

_Given = tuple[tuple[int, ChosenDevice], ...]
"""Devices that are given, each with the index of its GPU."""


class FittingGpu(NamedTuple):
    """A GPU that no claims share, with the offers allowed by type, and its constraints."""

    state: GpuState
    allowed: Allowed
    rules: ConstraintRules


class _Fill(NamedTuple):
    """The GPUs after some devices were given; usage is None for a GPU that gives no more."""

    usages: tuple[Usage | None, ...]
    used: ConstraintValues = NO_VALUES
    bound: ConstraintValues = NO_VALUES


def first_fit(
    gpus: Sequence[FittingGpu], target: Vector, budget: Budget
) -> tuple[Cost, list[Option]] | None:
    """Devices for ``target``, one option per GPU, or None where there are none.

    Raises:
        TooHardError: ``budget`` is used up before that is known.
    """
    given = _FirstFit(gpus, target, budget).found()
    if given is None:
        return None
    sizes = (WHOLE if d.placement is None else d.offer.size for _, d in given)
    options = []
    for number in range(len(gpus)):
        devices = tuple(device for gpu, device in given if gpu == number)
        types = [device.type for device in devices]
        options.append(Option(tuple(map(types.count, range(len(target)))), (), devices))
    return (_DEARER + sum(sizes),), options


class _FirstFit:
    def __init__(self, gpus: Sequence[FittingGpu], target: Vector, budget: Budget) -> None:
        self._gpus = [g._replace(rules=g.rules.of_gpu(n)) for n, g in enumerate(gpus)]
        self._budget = budget
        rarest = sorted(range(len(target)), key=self._count)
        self._wanted = [index for index in rarest for _ in range(target[index])]
        self._failed: set[tuple[int, _Fill, _Place | None]] = set()

    def found(self) -> _Given | None:
        return self._serve(0, _Fill(tuple(_start(gpu.state) for gpu in self._gpus)), None)

    def _count(self, index: int) -> int:
        offers = (offer for gpu in self._gpus for offer in gpu.allowed[index])
        return sum(len(o.profile.placements) if o.profile is not None else 1 for o in offers)

    def _serve(self, at: int, fill: _Fill, last: _Place | None) -> _Given | None:
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
                return ((place[0], device), *rest)
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
                values = gpu.rules.values_with(index, offer, fill.used, fill.bound)
                if values is None:
                    continue
                for placement, following in _room(gpu.state, usage, offer):
                    self._budget.spend(1)
                    place = (number, rank, placement)
                    if last is None or place > last:
                        usages = (*fill.usages[:number], following, *fill.usages[number + 1 :])
                        device = ChosenDevice(index, offer, placement)
                        yield place, device, _Fill(usages, *values)


def _start(state: GpuState) -> Usage | None:
    is_shared = bool(state.gpu.shares)
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
