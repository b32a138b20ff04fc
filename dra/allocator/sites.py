"""GPUs as the planner sees them: slices that stay or may leave, and the places for others. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from operator import sub
from typing import NamedTuple

from dra.allocator.gpustate import GpuId, GpuState
from dra.allocator.moves import MoveTable
from dra.gpu.geometry import Geometry, Occupant, Usage


class Ending(NamedTuple):
    """Cost of ending a pod: its priority, and whether a PodDisruptionBudget is against it."""

    priority: int
    is_against_budget: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Mover:
    """A claim's only slice, which may leave its place.

    ``since``: creation time of its pod, in seconds since the epoch. ``ending``: cost of ending its
    pod, which gets no other place; None if the pod is moved. ``is_leaving``: the slice goes by
    itself, at no cost.
    """

    uid: str
    gpu: GpuId
    profile: str
    occupant: Occupant
    since: float
    ending: Ending | None = None
    is_leaving: bool = False

    @property
    def stays(self) -> bool:
        """True if the mover needs another place when it leaves its own."""
        return self.ending is None and not self.is_leaving


Cost = tuple[int, float, int, int, int, float]
"""Cost of those that leave; as kube-scheduler forms it, then that of moves.

Pods ended against a budget, highest priority that ends, sum of these priorities; pods that end or
move, their memory slices, sum of their ages in seconds.
"""

_LOWEST = 2**31
"""Added to each priority that is summed, so that none is below zero."""


NOTHING: Cost = (0, -inf, 0, 0, 0, 0.0)


def cost_of(mover: Mover, latest: float) -> Cost:
    if mover.is_leaving:
        return NOTHING
    size, age = mover.occupant.placement.size, latest - mover.since
    if mover.ending is None:
        return 0, -inf, 0, 1, size, age
    priority, is_against = mover.ending
    return int(is_against), priority, priority + _LOWEST, 1, size, age


def add_costs(left: Cost, right: Cost) -> Cost:
    a, p, b, c, d, e = left
    v, q, w, x, y, z = right
    return a + v, max(q, p), b + w, c + x, d + y, e + z


def least_of(costs: Iterable[Cost]) -> Cost:
    """The least of each entry."""
    against, highest, total, pods, memory, ages = zip(*([*costs] or [NOTHING]), strict=True)
    return min(against), min(highest), min(total), min(pods), min(memory), min(ages)


class Way(NamedTuple):
    """A place for a slice; ``blockers``: movers that leave for it, at ``cost``.

    ``free``: memory slices of the GPU that are free now.
    """

    gpu: GpuId
    occupant: Occupant
    blockers: tuple[Mover, ...]
    cost: Cost
    free: int


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Occupants of a GPU: the ``firm`` stay, the ``loose`` may leave; ``usage`` is of both.

    ``shape_of`` gives the same shape for equal occupants, so that shapes are compared by identity.
    ``kept``: memory slices of the firm, ``each``: usage of each of the loose, ``spare``: what is
    left of all that is counted.
    """

    table: MoveTable
    firm: tuple[Occupant, ...]
    usage: Usage
    kept: int
    each: tuple[Usage, ...]
    spare: tuple[int, ...]

    @property
    def free(self) -> int:
        """Number of free memory slices."""
        return self.table.geometry.memory_slices - self.usage.mask.bit_count()


@lru_cache(maxsize=2**14)
def shape_of(table: MoveTable, firm: tuple[Occupant, ...], loose: tuple[Occupant, ...]) -> Shape:
    geometry = table.geometry
    kept, each = geometry.usage(firm), tuple([geometry.usage((occupant,)) for occupant in loose])
    usage = geometry.add(kept, *loose)
    spare = tuple(map(sub, geometry.totals, usage.counts))
    return Shape(table, firm, usage, kept.mask, each, spare)


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A GPU; ``loose``: who has the loose occupants of its shape, in their order."""

    gpu: GpuId
    shape: Shape
    loose: tuple[Mover, ...]


def site_of(state: GpuState, table: MoveTable, movers: Mapping[str, Mover]) -> Site:
    loose, firm = list[Mover](), dict[Occupant, None]()
    for holding in state.holdings:
        mover, occupant = movers.get(holding.claim_uid), holding.occupant
        may_leave = mover is not None and (mover.is_leaving or not holding.leaving)
        if mover is not None and may_leave and mover.occupant == occupant:
            loose.append(mover)
        elif occupant is not None:
            firm[occupant] = None
    loose.sort(key=lambda m: m.occupant.placement.start)
    stay = tuple(sorted(firm, key=lambda o: o.placement.start))
    return Site(state.id, shape_of(table, stay, tuple([m.occupant for m in loose])), tuple(loose))


@lru_cache(maxsize=2**15)
def ways(shape: Shape, name: str) -> Sequence[tuple[Occupant, tuple[int, ...]]]:
    """Every place for a slice of profile ``name``, with each smallest set in its way.

    A set has the numbers of its members among the loose.
    """
    profile = shape.table.geometry.by_name(name)
    if profile is None:
        return ()
    pairs = zip(profile.counts, shape.spare, strict=True)
    lacks = [(i, n - s) for i, (n, s) in enumerate(pairs) if n > s]
    takes = [alone.counts for alone in shape.each]
    found = list[tuple[Occupant, tuple[int, ...]]]()
    for placement in profile.placements:
        taken = placement.mask
        if not shape.kept & taken:
            over = tuple([n for n, u in enumerate(shape.each) if u.mask & taken])
            place = Occupant(placement, profile.id)
            more = _beside(takes, over, lacks) if lacks else [()]
            found += [(place, over + beside) for beside in more]
    return found


def _beside(
    takes: Sequence[Sequence[int]], over: Collection[int], lacks: Iterable[tuple[int, int]]
) -> Sequence[tuple[int, ...]]:
    """The smallest sets that have to leave beside ``over``.

    ``lacks``: numbers in ``takes`` of what is too little with none gone, and by how much.
    """
    left = [(i, lack - sum([takes[n][i] for n in over])) for i, lack in lacks]
    left = [(i, lack) for i, lack in left if lack > 0]
    if not left:
        return [()]
    beside = [
        n for n, taken in enumerate(takes) if n not in over and any(taken[i] for i, _ in left)
    ]
    found: list[tuple[int, ...]] = []
    for number in range(1, len(beside) + 1):
        for more in itertools.combinations(beside, number):
            if not any({*more}.issuperset(known) for known in found) and all(
                sum(takes[n][i] for n in more) >= lack for i, lack in left
            ):
                found.append(more)
    return found


@lru_cache(maxsize=4096)
def room(table: MoveTable, held: tuple[Occupant, ...], names: tuple[str, ...]) -> tuple[int, ...]:
    """Upper bounds of what fits beside what is held.

    In order: slices of each profile by itself, memory slices of all, what else is counted.
    """
    geometry, usage = table.geometry, table.geometry.usage(held)
    known = (geometry.by_name(name) for name in names)
    return (
        *(table.most(usage, profile) if profile is not None else 0 for profile in known),
        table.usable(usage, table.every),
        *map(sub, geometry.totals, usage.counts),
    )


def need(name: str, names: tuple[str, ...], geometries: Iterable[Geometry]) -> tuple[int, ...]:
    """Least that a slice of profile ``name`` takes of each entry of ``room``, on any geometry."""
    found = filter(None, (geometry.by_name(name) for geometry in geometries))
    each = [(p.memory_slices, *p.counts) for p in found]
    return (*(int(other == name) for other in names), *map(min, zip(*each, strict=True)))


def openings(site: Site, served: AbstractSet[str], *, with_ends: bool) -> set[str]:
    """The profiles that have a place on a GPU whose blockers may all leave it.

    A blocker leaves by itself, for a place of a profile in ``served``, or for another place of the
    profile of which it has one; ``with_ends``: also if its pod is ended.
    """
    table, stay = site.shape.table, list[Mover]()
    for mover in site.loose:
        if mover.profile not in served if mover.stays else not (with_ends or mover.is_leaving):
            stay.append(mover)
    geometry, firm = table.geometry, site.shape.firm
    usage = geometry.usage((*firm, *(m.occupant for m in stay)))
    fits = zip(geometry.profiles, table.feasible(usage), strict=True)
    found = {profile.name for profile, number in fits if number}
    for name in {m.profile for m in stay if m.stays} - found:
        own = {m.occupant.placement for m in stay if m.profile == name}
        others = (m.occupant for m in stay if m.profile != name or not m.stays)
        profile, left = geometry.by_name(name), geometry.usage((*firm, *others))
        free = geometry.free_placements(left, profile) if profile is not None else ()
        if any(placement not in own for placement in free):
            found.add(name)
    return found
