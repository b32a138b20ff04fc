"""GPUs as the planner sees them: slices that stay or may leave, and the places for others. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from operator import sub
from typing import NamedTuple

from dra.allocator.gpustate import GpuId, GpuState
from dra.allocator.moves import MoveTable
from dra.gpu.geometry import Geometry, Occupant, Placement, Profile, Usage


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


@dataclass(frozen=True, slots=True)
class Site:
    """A GPU: its ``firm`` occupants stay, the ``loose`` may be moved; ``usage`` is of both."""

    gpu: GpuId
    table: MoveTable
    firm: tuple[Occupant, ...]
    loose: tuple[Mover, ...]
    usage: Usage


@lru_cache(maxsize=2**14)
def ways(
    geometry: Geometry, firm: tuple[Occupant, ...], loose: tuple[Occupant, ...], name: str
) -> tuple[tuple[Occupant, tuple[int, ...]], ...]:
    """Every place for a slice of profile ``name``, with each smallest set in its way of ``loose``.

    A set has the indices of its members in ``loose``.
    """
    profile = geometry.by_name(name)
    if profile is None:
        return ()
    kept = geometry.usage(firm).mask
    return tuple(
        (Occupant(placement, profile.id), numbers)
        for placement in profile.placements
        if not kept & placement.mask
        for numbers in _blockers(geometry, firm, loose, profile, placement)
    )


def _blockers(
    geometry: Geometry,
    firm: tuple[Occupant, ...],
    loose: tuple[Occupant, ...],
    profile: Profile,
    placement: Placement,
) -> Iterator[tuple[int, ...]]:
    mask = placement.mask
    over = tuple([i for i, o in enumerate(loose) if o.placement.mask & mask])
    beside = tuple([i for i in range(len(loose)) if i not in over])
    found: list[frozenset[int]] = []
    for number in range(len(beside) + 1):
        for more in itertools.combinations(beside, number):
            if any(known <= {*more} for known in found):
                continue
            usage = geometry.usage((*firm, *(loose[i] for i in beside if i not in more)))
            if geometry.fits(usage, profile, placement):
                found.append(frozenset(more))
                yield (*over, *more)
        if frozenset() in found:  # memory alone decides, as for nearly all profiles
            return


@lru_cache(maxsize=4096)
def room(table: MoveTable, held: tuple[Occupant, ...], names: tuple[str, ...]) -> tuple[int, ...]:
    """Upper bounds of what fits beside what is held.

    In order: slices of each profile by itself, memory slices of all, compute slices, engines.
    """
    geometry, usage = table.geometry, table.geometry.usage(held)
    known = (geometry.by_name(name) for name in names)
    return (
        *(table.most(usage, profile) if profile is not None else 0 for profile in known),
        table.usable(usage, table.every),
        geometry.compute_slices - usage.compute_slices,
        *map(sub, geometry.engine_totals, usage.engines),
    )


def need(name: str, names: tuple[str, ...], geometries: Iterable[Geometry]) -> tuple[int, ...]:
    """Least that a slice of profile ``name`` takes of each entry of ``room``, on any geometry."""
    found = filter(None, (geometry.by_name(name) for geometry in geometries))
    each = [(p.memory_slices, p.compute_slices, *p.engines) for p in found]
    return (*(int(other == name) for other in names), *map(min, zip(*each, strict=True)))


def is_left(site: Site, name: str, served: AbstractSet[str], *, with_ends: bool) -> bool:
    """True if there is a place for profile ``name`` whose blockers may all leave it.

    A blocker leaves by itself, for a place of a profile in ``served``, or for another place of its
    own profile ``name``; ``with_ends``: also if its pod is ended.
    """
    geometry, occupants = site.table.geometry, tuple([m.occupant for m in site.loose])

    def leaves(mover: Mover, occupant: Occupant) -> bool:
        if not mover.stays:
            return with_ends or mover.is_leaving
        is_own = mover.profile == name and mover.occupant != occupant
        return is_own or mover.profile in served

    return any(
        all(leaves(site.loose[number], occupant) for number in numbers)
        for occupant, numbers in ways(geometry, site.firm, occupants, name)
    )


def site_of(state: GpuState, table: MoveTable, movers: dict[str, Mover]) -> Site:
    there = (
        movers[h.claim_uid]
        for h in state.holdings
        if h.claim_uid in movers and h.occupant == movers[h.claim_uid].occupant
        if movers[h.claim_uid].is_leaving or not h.leaving
    )
    loose = tuple(sorted(there, key=lambda m: _start(m.occupant)))
    moved = {m.uid for m in loose}
    held = (h.occupant for h in state.holdings if h.claim_uid not in moved)
    firm = sorted(dict.fromkeys(o for o in held if o is not None), key=_start)
    return Site(state.id, table, tuple(firm), loose, state.usage)


def _start(occupant: Occupant) -> int:
    return occupant.placement.start
