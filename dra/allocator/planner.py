"""Fewest slices to move so that others have room: which, where to, and in which order.

A slice is moved by ending its pod and serving the one that takes its place elsewhere, so a move
frees before it takes. Everything is supposed: nothing of the fleet changes. Pure.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from dra.allocator.fleet import Fleet
from dra.allocator.gpustate import GpuId, GpuState
from dra.allocator.moves import move_table
from dra.gpu.geometry import Geometry, Occupant, Placement, Profile

STEPS = 30_000
"""Ways looked at before a search gives up: some tenths of a second."""


@dataclass(frozen=True, slots=True)
class Mover:
    """A claim's only slice, which may be moved; ``since`` its pod is there, in seconds."""

    uid: str
    gpu: GpuId
    profile: str
    occupant: Occupant
    since: float


@dataclass(frozen=True, slots=True)
class Step:
    """A slice to be made: for a mover, whose own goes before that, or for who asks (None)."""

    mover: Mover | None
    gpu: GpuId
    profile: str
    occupant: Occupant


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in an order in which each has room when its turn comes; those who ask are last."""

    steps: tuple[Step, ...]

    @property
    def moves(self) -> tuple[Step, ...]:
        """The steps that move somebody."""
        return tuple(step for step in self.steps if step.mover is not None)


@dataclass(frozen=True, slots=True)
class Planned:
    """``plan`` is None where no moves make room.

    ``bounded``: not all was searched, so that there may be a plan, or one of fewer moves.
    """

    plan: Plan | None
    bounded: bool = False


MayGo = Callable[[Mover | None, GpuId], bool]
"""True if a mover, or who asks, could run on the node of a GPU."""


def anywhere(_mover: Mover | None, _gpu: GpuId) -> bool:
    return True


def find_plan(
    fleet: Fleet,
    asked: Sequence[str],
    movers: Iterable[Mover],
    *,
    may_go: MayGo = anywhere,
    most: int = STEPS,
) -> Planned:
    """The smallest set of moves that makes room for a slice of each profile that is ``asked`` for.

    Fewest pods, then least memory, then youngest. Nobody is moved twice. ``most`` bounds the ways
    that are looked at.
    """
    planning = _Planning(fleet, movers, may_go)
    found = planning.find(asked, most)
    if found.bounded and len(asked) > 1:
        found = Planned(planning.find(asked, most, estimates=True).plan, bounded=True)
    return found


_Held = dict[GpuId, list[Occupant]]

Cost = tuple[int, int, float]
"""Pods that move, their memory slices, and the sum of their ages."""


class _Way(NamedTuple):
    """A place for a slice, and who has to go for it; ``free`` memory slices are there now."""

    gpu: GpuId
    occupant: Occupant
    blockers: tuple[Mover, ...]
    free: int


@dataclass(frozen=True, slots=True)
class _Site:
    """A GPU: its ``firm`` occupants stay, the ``loose`` may be moved."""

    gpu: GpuId
    geometry: Geometry
    firm: tuple[Occupant, ...]
    loose: tuple[Mover, ...]

    def ways(self, profile: str) -> Iterator[_Way]:
        """Every place for a slice of the profile, with the smallest sets that have to go for it."""
        known = self.geometry.by_name(profile)
        if known is None:
            return
        held = self.geometry.usage((*self.firm, *(m.occupant for m in self.loose)))
        free = self.geometry.memory_slices - held.mask.bit_count()
        for placement in known.placements:
            if not any(o.placement.overlaps(placement) for o in self.firm):
                for blockers in self._blockers(known, placement):
                    yield _Way(self.gpu, Occupant(placement, known.id), blockers, free)

    def _blockers(self, profile: Profile, placement: Placement) -> Iterator[tuple[Mover, ...]]:
        over = tuple(m for m in self.loose if m.occupant.placement.overlaps(placement))
        beside = tuple(m for m in self.loose if m not in over)
        found: list[frozenset[Mover]] = []
        for number in range(len(beside) + 1):
            for more in itertools.combinations(beside, number):
                if any(known <= {*more} for known in found):
                    continue
                stay = (m.occupant for m in beside if m not in more)
                usage = self.geometry.usage((*self.firm, *stay))
                if self.geometry.fits(usage, profile, placement):
                    found.append(frozenset(more))
                    yield (*over, *more)
            if frozenset() in found:  # memory alone decides, as for nearly all profiles
                return


@dataclass(frozen=True, slots=True)
class _State:
    """``steps`` that are decided; ``waiting`` are movers that left, and who asks, by profile."""

    steps: tuple[Step, ...]
    waiting: tuple[tuple[Mover | None, str], ...]

    @property
    def key(self) -> Hashable:
        """Equal for states from which the same can be reached at the same cost.

        Those who have left their place, and what is taken: slices of one profile are alike.
        """
        return self.gone, frozenset((step.gpu, step.occupant) for step in self.steps)

    @property
    def gone(self) -> frozenset[Mover]:
        """Those who have left their place."""
        waiting = (mover for mover, _ in self.waiting if mover is not None)
        return frozenset((*waiting, *(s.mover for s in self.steps if s.mover is not None)))

    def with_way(self, way: _Way) -> _State:
        """The first that waits is served; those in its way wait, the largest first."""
        who, profile = self.waiting[0]
        step = Step(who, way.gpu, profile, way.occupant)
        waiting = (*self.waiting[1:], *((m, m.profile) for m in way.blockers))
        asks = tuple(w for w in waiting if w[0] is None)
        movers = (w for w in waiting if w[0] is not None)
        ordered = sorted(movers, key=lambda w: -w[0].occupant.placement.size if w[0] else 0)
        return _State((*self.steps, step), (*asks, *ordered))


class _Planning:
    """Search by ever higher cost: what is found first is the cheapest.

    A state's cost is that of who has left its place. Whoever waits is given a place, free or not,
    and whoever is in the way there leaves its own.
    """

    def __init__(self, fleet: Fleet, movers: Iterable[Mover], may_go: MayGo) -> None:
        self._may_go = may_go
        by_gpu: dict[GpuId, dict[str, Mover]] = {}
        self._latest = 0.0
        for mover in movers:
            by_gpu.setdefault(mover.gpu, {})[mover.uid] = mover
            self._latest = max(self._latest, mover.since)
        states = (state for node in fleet.nodes.values() for state in node.gpus)
        sites = (
            _site(s, s.table.geometry, by_gpu.get(s.id, {}))
            for s in states
            if s.takes_slices and s.table is not None
        )
        self._sites = {site.gpu: site for site in sites}
        self._movers = [m for site in self._sites.values() for m in site.loose]
        self._most: Counter[str] = Counter()
        """As of ``_rooms``, of all GPUs."""
        self._sizes: dict[str, int] = {}
        for site in self._sites.values():
            self._most.update(_rooms(site.geometry, site.firm))
            self._sizes |= {p.name: p.memory_slices for p in site.geometry.profiles}
        self._ways: dict[str, list[_Way]] = {}
        self._least: dict[str, Cost] = {}
        self._changed: dict[Hashable, list[_Way]] = {}

    def find(self, asked: Sequence[str], most: int, *, estimates: bool = False) -> Planned:
        """The cheapest plan. ``estimates``: who asks counts as what it would cost by itself.

        That leads to a plan soon, and to a dearer one where two who ask make room for each other.
        """
        state = _State((), tuple((None, profile) for profile in asked))
        cost, numbers, seen = _NOTHING, itertools.count(), set[Hashable]()
        heap = list[tuple[tuple[Cost, int, int, int], Cost, _State, _Way]]()
        while True:
            if not state.waiting:
                if (ordered := self._in_order(state.steps)) is not None:
                    return Planned(Plan(ordered))
            elif state.key not in seen and self._could_hold(state):
                seen.add(state.key)
                who, profile = state.waiting[0]
                to_come = self._alone(state.waiting[1:]) if estimates else _NOTHING
                for way in self._ways_now(state, profile):
                    if self._may_go(who, way.gpu):
                        waiting = len(state.waiting) + len(way.blockers)
                        then = self._cost(cost, way.blockers)
                        order = (_sum(then, to_come), waiting, way.free, next(numbers))
                        heapq.heappush(heap, (order, then, state, way))
            if not heap or next(numbers) > most:
                return Planned(None, bounded=bool(heap))
            _, cost, state, way = heapq.heappop(heap)
            state = state.with_way(way)

    def _could_hold(self, state: _State) -> bool:
        """False where those who wait have no room even if all others who may move were away.

        By profile, and by the memory of all: most of what is impossible is so by one of these.
        """
        wanted = Counter(profile for _, profile in state.waiting)
        gone = state.gone
        wanted.update(m.profile for m in self._movers if m not in gone)
        rooms = Counter(self._most)
        made: dict[GpuId, list[Occupant]] = {}
        for step in state.steps:
            made.setdefault(step.gpu, []).append(step.occupant)
        for gpu, occupants in made.items():
            site = self._sites[gpu]
            rooms.subtract(_rooms(site.geometry, site.firm))
            rooms.update(_rooms(site.geometry, (*site.firm, *occupants)))
        needed = sum(number * self._sizes.get(name, 0) for name, number in wanted.items())
        return needed <= rooms[""] and all(rooms[name] >= n for name, n in wanted.items())

    def _cost(self, cost: Cost, blockers: Iterable[Mover]) -> Cost:
        for mover in blockers:
            age = self._latest - mover.since
            cost = _sum(cost, (1, mover.occupant.placement.size, age))
        return cost

    def _alone(self, waiting: Iterable[tuple[Mover | None, str]]) -> Cost:
        """Cost of those who ask, if each were alone."""
        total = _NOTHING
        for profile in (profile for mover, profile in waiting if mover is None):
            ways = self._all_ways(profile)
            least = (self._cost(_NOTHING, way.blockers) for way in ways)
            if profile not in self._least:
                self._least[profile] = min(least, default=_NOTHING)
            total = _sum(total, self._least[profile])
        return total

    def _all_ways(self, profile: str) -> Sequence[_Way]:
        if profile not in self._ways:
            found = (way for site in self._sites.values() for way in site.ways(profile))
            self._ways[profile] = [*found]
        return self._ways[profile]

    def _ways_now(self, state: _State, profile: str) -> Iterator[_Way]:
        """Ways to place the profile beside what the state has decided."""
        gone = state.gone
        changed = {m.gpu for m in gone} | {s.gpu for s in state.steps}
        for way in self._all_ways(profile):
            if way.gpu not in changed:
                yield way
        for gpu in sorted(changed):
            site = self._sites[gpu]
            made = frozenset(s.occupant for s in state.steps if s.gpu == gpu)
            loose = tuple(m for m in site.loose if m not in gone)
            key = gpu, made, loose, profile
            if key not in self._changed:
                changed_site = _Site(gpu, site.geometry, (*site.firm, *made), loose)
                self._changed[key] = [*changed_site.ways(profile)]
            yield from self._changed[key]

    def _in_order(self, steps: tuple[Step, ...]) -> tuple[Step, ...] | None:
        """Steps to the same places in an order in which each has room; None if there is none.

        Slices of one profile may change their places with each other.
        """
        touched = {s.gpu for s in steps} | {s.mover.gpu for s in steps if s.mover is not None}
        held: _Held = {}
        for gpu in touched:
            site = self._sites[gpu]
            held[gpu] = [*site.firm, *(m.occupant for m in site.loose)]
        movers = [s.mover for s in steps if s.mover is not None]
        found = self._moved(movers, [s for s in steps if s.mover is not None], held)
        return None if found is None else (*found, *(s for s in steps if s.mover is None))

    def _moved(
        self, movers: Sequence[Mover], places: Sequence[Step], held: _Held
    ) -> tuple[Step, ...] | None:
        if not movers:
            return ()
        for mover in movers:
            held[mover.gpu].remove(mover.occupant)
            for place in places:
                if place.profile != mover.profile or not self._has_room(place, held):
                    continue
                if place.mover is not mover and not self._may_go(mover, place.gpu):
                    continue
                held[place.gpu].append(place.occupant)
                others = [m for m in movers if m is not mover]
                rest = self._moved(others, [p for p in places if p is not place], held)
                if rest is not None:
                    return (replace(place, mover=mover), *rest)
                held[place.gpu].remove(place.occupant)
            held[mover.gpu].append(mover.occupant)
        return None

    def _has_room(self, place: Step, held: _Held) -> bool:
        geometry = self._sites[place.gpu].geometry
        profile = geometry.by_name(place.profile)
        usage = geometry.usage(held[place.gpu])
        return profile is not None and geometry.fits(usage, profile, place.occupant.placement)


_NOTHING: Cost = (0, 0, 0.0)


def _sum(left: Cost, right: Cost) -> Cost:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2]


@lru_cache(maxsize=4096)
def _rooms(geometry: Geometry, held: tuple[Occupant, ...]) -> Mapping[str, int]:
    """The most slices beside what is held, by profile; under "" their memory, of any profiles."""
    table, usage = move_table(geometry), geometry.usage(held)
    most = {p.name: table.most(usage, p) for p in geometry.profiles}
    return {**most, "": table.usable(usage, table.every)}


def _site(state: GpuState, geometry: Geometry, movers: dict[str, Mover]) -> _Site:
    loose = tuple(
        movers[h.claim_uid]
        for h in state.holdings
        if h.claim_uid in movers and h.occupant == movers[h.claim_uid].occupant and not h.leaving
    )
    moved = {m.uid for m in loose}
    held = (h.occupant for h in state.holdings if h.claim_uid not in moved)
    firm = tuple(dict.fromkeys(o for o in held if o is not None))
    return _Site(state.id, geometry, firm, loose)
