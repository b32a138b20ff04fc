"""Fewest slices to move or to end so that others have room: which, where to, in which order.

A slice is moved by ending its pod and serving the one that takes its place elsewhere, so a move
frees before it takes. Everything is supposed: nothing of the fleet changes. Pure.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from operator import add
from typing import NamedTuple

from dra.allocator.fleet import Fleet
from dra.allocator.gpustate import GpuId, GpuState
from dra.allocator.moves import move_table
from dra.gpu.geometry import Geometry, Occupant, Placement, Profile

STEPS = 50_000
"""Ways looked at before a search gives up: some tenths of a second."""


class Ending(NamedTuple):
    """Cost of ending a pod: of that ``priority``, and whether a budget is against it."""

    priority: int
    is_against_budget: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Mover:
    """A claim's only slice, which may be moved; ``since`` its pod is there, in seconds.

    With ``ending`` its pod is ended, and no other served in its place. One that ``is_leaving`` goes
    by itself, at no cost.
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
        """True if it needs a place wherever it is."""
        return self.ending is None and not self.is_leaving


@dataclass(frozen=True, slots=True)
class Step:
    """A slice to be made: for a mover, whose own goes before that, or for who asks (None)."""

    mover: Mover | None
    gpu: GpuId
    profile: str
    occupant: Occupant


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in an order in which each has room when its turn comes; those who ask are last.

    Before them ``ends`` are over: those who are ended, and those who leave by themselves.
    """

    steps: tuple[Step, ...]
    ends: tuple[Mover, ...] = ()

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

MoversOn = Callable[[GpuState], Iterable[Mover]]


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

    Fewest pods, then least memory, then youngest. Nobody is moved twice. Before all else comes who
    is ended, in the order of kube-scheduler's preemption: fewest against budgets, the least of
    their highest priorities, the least sum of these. ``most`` bounds the ways that are looked at.
    """
    by_gpu: dict[GpuId, list[Mover]] = {}
    for mover in movers:
        by_gpu.setdefault(mover.gpu, []).append(mover)
    on = Planning(fleet, asked, lambda s: by_gpu.get(s.id, ()), may_go=may_go, most=most)
    planned = on.go_on()
    if planned is None:
        raise AssertionError("without a bound on its steps a plan is made in one go")
    return planned


class Planning:
    """A plan as of ``find_plan``, made in parts, of the fleet as it is at the beginning.

    ``movers`` gives those on a GPU.
    """

    def __init__(
        self,
        fleet: Fleet,
        asked: Sequence[str],
        movers: MoversOn,
        *,
        may_go: MayGo = anywhere,
        most: int = STEPS,
    ) -> None:
        self._search = _Search(may_go)
        self._work = self._find(fleet, asked, movers, most)

    def go_on(self, *, steps: float = inf) -> Planned | None:
        """Search on; None when that took ``steps`` without an end. A thousand take some 10 ms."""
        end = self._search.steps + steps
        try:
            while self._search.steps < end:
                next(self._work)
        except StopIteration as ended:
            found: Planned = ended.value
            return found
        return None

    def _find(
        self, fleet: Fleet, asked: Sequence[str], movers: MoversOn, most: int
    ) -> Generator[None, None, Planned]:
        search = self._search
        yield from search.take(fleet, movers)
        found = yield from search.find(asked, most)
        if found.bounded and len(asked) > 1:
            found = yield from search.find(asked, most, estimates=True)
            return Planned(found.plan, bounded=True)
        return found


_Held = dict[GpuId, list[Occupant]]

Cost = tuple[int, float, int, int, int, float]
"""Pods ended against a budget, the highest priority that ends, the sum of these, as kube-scheduler
forms it; pods that end or move, their memory slices, and the sum of their ages."""

_LOWEST = 2**31
"""Added to each priority that is summed, so that none is below zero."""


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
        loose = tuple(m.occupant for m in self.loose)
        free, ways = _ways(self.geometry, self.firm, loose, profile)
        for occupant, blockers in ways:
            yield _Way(self.gpu, occupant, tuple([self.loose[i] for i in blockers]), free)


@lru_cache(maxsize=2**14)
def _ways(
    geometry: Geometry, firm: tuple[Occupant, ...], loose: tuple[Occupant, ...], name: str
) -> tuple[int, tuple[tuple[Occupant, tuple[int, ...]], ...]]:
    """As ``_Site.ways``, by the numbers of those who go; first the memory slices that are free."""
    free = geometry.memory_slices - geometry.usage((*firm, *loose)).mask.bit_count()
    profile = geometry.by_name(name)
    if profile is None:
        return free, ()
    found = tuple(
        (Occupant(placement, profile.id), blockers)
        for placement in profile.placements
        if not any(o.placement.overlaps(placement) for o in firm)
        for blockers in _blockers(geometry, firm, loose, profile, placement)
    )
    return free, found


def _blockers(
    geometry: Geometry,
    firm: tuple[Occupant, ...],
    loose: tuple[Occupant, ...],
    profile: Profile,
    placement: Placement,
) -> Iterator[tuple[int, ...]]:
    over = tuple(i for i, o in enumerate(loose) if o.placement.overlaps(placement))
    beside = tuple(i for i in range(len(loose)) if i not in over)
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


@dataclass(frozen=True, slots=True)
class _State:
    """``steps`` that are decided; ``waiting`` are movers that left, and who asks, by profile.

    ``ends`` have left for good.
    """

    steps: tuple[Step, ...]
    waiting: tuple[tuple[Mover | None, str], ...]
    ends: tuple[Mover, ...] = ()

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
        moved = (s.mover for s in self.steps if s.mover is not None)
        return frozenset((*waiting, *moved, *self.ends))

    def with_way(self, way: _Way) -> _State:
        """The first that waits is served; those in its way wait, the largest first."""
        who, profile = self.waiting[0]
        step = Step(who, way.gpu, profile, way.occupant)
        moved = ((m, m.profile) for m in way.blockers if m.stays)
        waiting = (*self.waiting[1:], *moved)
        asks = tuple(w for w in waiting if w[0] is None)
        movers = (w for w in waiting if w[0] is not None)
        ordered = sorted(movers, key=lambda w: -w[0].occupant.placement.size if w[0] else 0)
        ends = (*self.ends, *(m for m in way.blockers if not m.stays))
        return _State((*self.steps, step), (*asks, *ordered), ends)


class _Search:
    """Search by ever higher cost: what is found first is the cheapest.

    A state's cost is that of who has left its place. Whoever waits is given a place, free or not,
    and whoever is in the way there leaves its own. ``steps`` counts what was looked at.
    """

    def __init__(self, may_go: MayGo) -> None:
        self.steps = 0
        self._may_go = may_go
        self._latest = 0.0
        self._sites: dict[GpuId, _Site] = {}
        self._stay: Counter[str] = Counter()
        """Those who need a place, by profile."""
        self._most: Counter[str] = Counter()
        """As of ``_rooms``, of all GPUs."""
        self._sizes: dict[str, int] = {}
        self._ways: dict[str, list[_Way]] = {}
        self._least: dict[str, Cost] = {}
        self._changed: dict[Hashable, list[_Way]] = {}

    def take(self, fleet: Fleet, movers: MoversOn) -> Generator[None, None, None]:
        """Take the GPUs of a fleet, and who is on them."""
        for state in [state for node in fleet.nodes.values() for state in node.gpus]:
            self.steps += 1
            yield
            if not state.takes_slices or state.table is None:
                continue
            site = _site(state, state.table.geometry, {m.uid: m for m in movers(state)})
            self._latest = max(self._latest, *(m.since for m in site.loose), 0.0)
            self._sites[site.gpu] = site
            self._stay.update(m.profile for m in site.loose if m.stays)
            self._most.update(_rooms(site.geometry, site.firm))
            for profile in site.geometry.profiles:
                if profile.name not in self._sizes:
                    self._sizes[profile.name] = profile.memory_slices

    def find(
        self, asked: Sequence[str], most: int, *, estimates: bool = False
    ) -> Generator[None, None, Planned]:
        """The cheapest plan. ``estimates``: who asks counts as what it would cost by itself.

        That leads to a plan soon, and to a dearer one where two who ask make room for each other.
        """
        state = _State((), tuple((None, profile) for profile in asked))
        cost, seen, last = _NOTHING, set[Hashable](), self.steps + most
        heap = list[tuple[tuple[Cost, int, int, int], Cost, _State, _Way]]()
        while True:
            if not state.waiting:
                if (ordered := self._in_order(state)) is not None:
                    return Planned(Plan(ordered, state.ends))
            elif state.key not in seen and self._could_hold(state):
                seen.add(state.key)
                who, profile = state.waiting[0]
                to_come = self._alone(state.waiting[1:]) if estimates else _NOTHING
                for way in self._ways_now(state, profile):
                    self.steps += 1
                    if self.steps % _PAUSE == 0:
                        yield
                    if self._may_go(who, way.gpu):
                        waiting = len(state.waiting) + len(way.blockers)
                        then = self._cost(cost, way.blockers)
                        order = (_sum(then, to_come), waiting, way.free, self.steps)
                        heapq.heappush(heap, (order, then, state, way))
            yield
            if not heap or self.steps > last:
                return Planned(None, bounded=bool(heap))
            _, cost, state, way = heapq.heappop(heap)
            state = state.with_way(way)

    def _could_hold(self, state: _State) -> bool:
        """False where those who wait have no room even if all others who may move were away.

        By profile, and by the memory of all: most of what is impossible is so by one of these.
        """
        wanted = Counter(self._stay)
        wanted.update(profile for mover, profile in state.waiting if mover is None)
        wanted.subtract(s.profile for s in state.steps if s.mover is not None)
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
            if not mover.is_leaving:
                cost = _sum(cost, self._cost_of(mover))
        return cost

    def _cost_of(self, mover: Mover) -> Cost:
        size, age = mover.occupant.placement.size, self._latest - mover.since
        if mover.ending is None:
            return 0, -inf, 0, 1, size, age
        priority, is_against = mover.ending
        return int(is_against), priority, priority + _LOWEST, 1, size, age

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
            self.steps += len(self._sites)
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

    def _in_order(self, state: _State) -> tuple[Step, ...] | None:
        """Steps to the same places in an order in which each has room; None if there is none.

        Slices of one profile may change their places with each other.
        """
        steps, ends = state.steps, state.ends
        touched = {s.gpu for s in steps} | {s.mover.gpu for s in steps if s.mover is not None}
        held: _Held = {}
        for gpu in touched:
            site = self._sites[gpu]
            held[gpu] = [*site.firm, *(m.occupant for m in site.loose if m not in ends)]
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


_PAUSE = 500
"""Ways after which a search can be interrupted."""

_NOTHING: Cost = (0, -inf, 0, 0, 0, 0.0)


def _sum(left: Cost, right: Cost) -> Cost:
    (a, highest, *sums), (b, other, *more) = left, right
    total, pods, memory, ages = map(add, sums, more)
    return a + b, max(highest, other), total, pods, memory, ages


@lru_cache(maxsize=4096)
def _rooms(geometry: Geometry, held: tuple[Occupant, ...]) -> Mapping[str, int]:
    """The most slices beside what is held, by profile; under "" their memory, of any profiles."""
    table, usage = move_table(geometry), geometry.usage(held)
    most = {p.name: table.most(usage, p) for p in geometry.profiles}
    return {**most, "": table.usable(usage, table.every)}


def _site(state: GpuState, geometry: Geometry, movers: dict[str, Mover]) -> _Site:
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
    return _Site(state.id, geometry, tuple(firm), loose)


def _start(occupant: Occupant) -> int:
    return occupant.placement.start
