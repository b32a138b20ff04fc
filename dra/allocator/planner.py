"""Plans of the fewest slices to move or to end so that others have room.

A slice is moved by ending its pod and placing the pod that its controller makes instead elsewhere,
so a move frees a place before it takes one. Nothing of the fleet changes. Pure.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Sequence,
)
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from operator import add, le, sub
from typing import NamedTuple

from dra.allocator.fleet import Fleet
from dra.allocator.gpustate import GpuId, GpuState
from dra.allocator.ongoing import Ongoing, Steps
from dra.allocator.sites import (
    NOTHING,
    Cost,
    Mover,
    Site,
    Way,
    add_costs,
    cost_of,
    least_of,
    need,
    openings,
    room,
    shape_of,
    site_of,
    ways,
)
from dra.gpu.geometry import Occupant

STEPS = 300
"""Places looked at before a search gives up: less than a tenth of a second."""

_PLACE_STEPS = 25
"""Steps of a search that a place counts which is looked at."""


@dataclass(frozen=True, slots=True)
class Step:
    """A slice to be made: for a mover, whose old slice goes before that, or for who asks (None)."""

    mover: Mover | None
    gpu: GpuId
    profile: str
    occupant: Occupant


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in an order in which each has room when its turn comes; those for who asks are last.

    ``ends``: gone before the first step: slices whose pods are ended, or that leave by themselves.
    """

    steps: tuple[Step, ...]
    ends: tuple[Mover, ...] = ()

    @property
    def moves(self) -> tuple[Step, ...]:
        """The steps that move somebody."""
        return tuple(step for step in self.steps if step.mover is not None)


@dataclass(frozen=True, slots=True)
class Planned:
    """Result of a search; ``plan`` is None where none was found.

    ``bounded``: not all was searched, so that there may be a plan, or one of fewer moves.
    """

    plan: Plan | None
    bounded: bool = False


MayGo = Callable[[Mover | None, GpuId], bool]
"""True if a mover, or the pod that asks (None), could run on the node of a GPU."""

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

    Pods that are ended are compared first, as in kube-scheduler's preemption: fewest against
    budgets, the least highest priority, the least sum of priorities. Then the fewest pods, the
    least memory, the youngest pods. Nobody is moved twice. ``most`` bounds the places that are
    looked at.
    """
    by_gpu: dict[GpuId, list[Mover]] = {}
    for mover in movers:
        by_gpu.setdefault(mover.gpu, []).append(mover)
    budget = Steps()
    work = plan(fleet, asked, lambda s: by_gpu.get(s.id, ()), budget, may_go=may_go, most=most)
    return Ongoing(work, budget).finish()


def plan(  # noqa: PLR0913 - what it looks at, and bounds
    fleet: Fleet,
    asked: Sequence[str],
    movers: MoversOn,
    budget: Steps,
    *,
    may_go: MayGo = anywhere,
    most: int = STEPS,
) -> Generator[None, None, Planned]:
    """As ``find_plan``, for the fleet as it is at the beginning; work for an ``Ongoing``.

    ``movers``: gives the movers on a GPU.
    """
    search = _Search(may_go, budget)
    yield from search.take(fleet, movers)
    return (yield from search.find(asked, most))


_Held = dict[GpuId, list[Occupant]]


class _State(NamedTuple):
    """A plan in the making: ``steps`` decided, ``waiting`` movers and askers (None), by profile.

    ``gone``: movers that left, ``ends``: those of them that get no other place; ``made``: new
    slices. States with equal ``gone`` and ``made`` are alike, whoever has which slice of a profile.
    """

    steps: tuple[Step, ...]
    waiting: tuple[tuple[Mover | None, str], ...]
    ends: tuple[Mover, ...] = ()
    gone: frozenset[Mover] = frozenset()
    made: frozenset[tuple[GpuId, Occupant]] = frozenset()

    @property
    def touched(self) -> set[GpuId]:
        """GPUs that a mover left, or on which a slice was made."""
        return {m.gpu for m in self.gone} | {gpu for gpu, _ in self.made}

    def with_way(self, way: Way) -> _State:
        """The state once the first that waits has ``way``; those in its way wait, largest first."""
        who, profile = self.waiting[0]
        steps = (*self.steps, Step(who, way.gpu, profile, way.occupant))
        made = self.made | {(way.gpu, way.occupant)}
        if not way.blockers:
            return self._replace(steps=steps, waiting=self.waiting[1:], made=made)
        moved = ((m, m.profile) for m in way.blockers if m.stays)
        waiting = (*self.waiting[1:], *moved)
        asks = tuple(w for w in waiting if w[0] is None)
        movers = (w for w in waiting if w[0] is not None)
        ordered = sorted(movers, key=lambda w: -w[0].occupant.placement.size if w[0] else 0)
        ends = (*self.ends, *(m for m in way.blockers if not m.stays))
        gone = self.gone.union(way.blockers)
        return _State(steps, (*asks, *ordered), ends, gone, made)


class _Branch(NamedTuple):
    """A state to go on from; ``cost``: of those that left, ``to_come``: estimate for who waits."""

    state: _State
    cost: Cost
    to_come: Cost
    touched: AbstractSet[GpuId]


class _Search:
    """Search by ever higher cost: what is found first is the cheapest.

    The first that waits is given a place, free or not, and the movers in its way leave theirs. The
    places for a profile are looked at one by one, the cheapest first: of most states few are looked
    at.
    """

    def __init__(self, may_go: MayGo, budget: Steps) -> None:
        self._budget = budget
        self._may_go = may_go
        self._sites: dict[GpuId, Site] = {}
        """The GPUs, the fullest first."""
        self._unlike: Collection[Site] = ()
        """One of the GPUs that are alike but for who has what."""
        self._leaving: Sequence[Site] = ()
        """The GPUs from which somebody leaves."""
        self._costs: dict[Mover, Cost] = {}
        self._least = NOTHING
        """Lower bound, entry by entry, on the cost of a mover that does not leave by itself."""
        self._ending = NOTHING
        """Lower bound on the cost of one that is ended, where moves alone cannot do."""
        self._names: tuple[str, ...] = ()
        """Names of all profiles."""
        self._needs: dict[str, tuple[int, ...]] = {}
        """By profile, as of ``need``."""
        self._room: tuple[int, ...] = ()
        """Sum of ``room`` over all GPUs, if those who may leave were away."""
        self._needed: tuple[int, ...] = ()
        """Sum of ``need`` over those who ask and those who may move."""
        self._free: dict[str, list[Way]] = {}
        self._taken: dict[str, list[list[Way]]] = {}
        self._changed: dict[tuple[Site, str], list[Way]] = {}
        self._states: dict[Hashable, Site] = {}
        self._heap: list[tuple[tuple[Cost, int, int, int], Callable[[], _State | None]]] = []
        self._seen: set[Hashable] = set()
        self._serial = itertools.count()
        self._estimates = False

    def take(self, fleet: Fleet, movers: MoversOn) -> Generator[None, None, None]:
        """Take the GPUs of a fleet, and the movers on them."""
        sites, every = list[Site](), list[Mover]()
        for state in [state for node in fleet.nodes.values() for state in node.gpus]:
            self._budget.used += _PLACE_STEPS
            if self._budget.left <= 0:
                yield
            if not state.takes_slices or state.table is None or state.passed is not None:
                continue
            sites.append(site_of(state, state.table, {m.uid: m for m in movers(state)}))
            every += sites[-1].loose
        self._sites = {site.gpu: site for site in sorted(sites, key=lambda s: s.shape.free)}
        self._leaving = [s for s in sites if any(m.is_leaving for m in s.loose)]
        self._unlike = {(s.shape, tuple([m.stays for m in s.loose])): s for s in sites}.values()
        rooms = Counter((site.shape.table, site.shape.firm) for site in sites)
        geometries = {table.geometry: None for table, _ in rooms}
        self._names = tuple(dict.fromkeys(p.name for g in geometries for p in g.profiles))
        self._needs = {name: need(name, self._names, geometries) for name in self._names}
        each = ([number * n for n in room(*key, self._names)] for key, number in rooms.items())
        self._room = tuple(map(sum, zip(*each, strict=True)))
        latest = max((m.since for m in every), default=0.0)
        self._costs = {m: cost_of(m, latest) for m in every}
        self._least = least_of(c for m, c in self._costs.items() if not m.is_leaving)

    def find(self, asked: Sequence[str], most: int) -> Generator[None, None, Planned]:
        """The cheapest plan, or one by estimates where looking at ``most`` places finds none."""
        if not asked:
            return Planned(Plan(()))
        if not self._needs.keys() >= {*asked} or not self._could_serve(asked, with_ends=True):
            return Planned(None)
        if not self._could_serve(asked, with_ends=False):
            self._ending = least_of(c for m, c in self._costs.items() if m.ending is not None)
        stay = Counter(m.profile for m in self._costs if m.stays)
        stay.update(asked)
        each = ([number * n for n in self._needs[name]] for name, number in stay.items())
        self._needed = tuple(map(sum, zip(*each, strict=True)))
        found = yield from self._find(asked, most)
        if found.bounded:
            self._estimates = True
            found = yield from self._find(asked, most)
            return Planned(found.plan, bounded=True)
        return found

    def _find(self, asked: Sequence[str], most: int) -> Generator[None, None, Planned]:
        last = self._budget.used + most * _PLACE_STEPS
        self._heap.clear()
        self._seen.clear()
        self._open(_State((), tuple((None, profile) for profile in asked)), NOTHING)
        while self._heap:
            if self._budget.used > last:
                return Planned(None, bounded=True)
            _, look = heapq.heappop(self._heap)
            served = look()
            self._budget.used += _PLACE_STEPS
            if self._budget.left <= 0:
                yield
            if served is not None and (ordered := self._in_order(served)) is not None:
                return Planned(Plan(ordered, served.ends))
        return Planned(None)

    def _open(self, state: _State, cost: Cost) -> None:
        """Queue the places for the first that waits."""
        if not self._could_hold(state):
            return
        to_come = self._alone(state.waiting[1:]) if self._estimates else NOTHING
        branch, profile = _Branch(state, cost, to_come, state.touched), state.waiting[0][1]
        self._follow(branch, self._free_ways(profile), 0)
        for gpu in sorted(branch.touched):
            for way in self._ways_now(state, gpu, profile):
                self._push(branch, way, partial(self._go, branch, way))
        self._later(add_costs(cost, to_come), partial(self._displace, branch, profile))

    def _push(self, branch: _Branch, way: Way, look: Callable[[], _State | None]) -> None:
        waiting = len(branch.state.waiting) + len(way.blockers)
        cost = self._bound(add_costs(add_costs(branch.cost, way.cost), branch.to_come))
        heapq.heappush(self._heap, ((cost, waiting, way.free, next(self._serial)), look))

    def _later(self, cost: Cost, look: Callable[[], _State | None]) -> None:
        """Queue ``look`` behind all that costs no more than ``cost`` with one more that leaves."""
        bound = max(self._bound(cost), add_costs(cost, self._least))
        heapq.heappush(self._heap, ((bound, 0, 0, next(self._serial)), look))

    def _bound(self, cost: Cost) -> Cost:
        """Lower bound on the cost of a plan in which those leave who are counted in ``cost``."""
        return add_costs(cost, self._ending) if cost[1] == -inf else cost

    def _displace(self, branch: _Branch, profile: str) -> None:
        for in_order in self._taken_ways(profile):
            self._follow(branch, in_order, 0)

    def _follow(self, branch: _Branch, ways: Sequence[Way], at: int) -> None:
        """Queue ``ways[at]``, and when its turn comes those behind it; touched GPUs are skipped."""
        while at < len(ways) and ways[at].gpu in branch.touched:
            at += 1
        if at < len(ways):
            self._push(branch, ways[at], partial(self._go_on, branch, ways, at))

    def _go_on(self, branch: _Branch, ways: Sequence[Way], at: int) -> _State | None:
        self._follow(branch, ways, at + 1)
        return self._go(branch, ways[at])

    def _go(self, branch: _Branch, way: Way) -> _State | None:
        """Give the place to the first that waits; returns the state if nobody waits any more."""
        if not self._may_go(branch.state.waiting[0][0], way.gpu):
            return None
        state, cost = branch.state.with_way(way), add_costs(branch.cost, way.cost)
        if not state.waiting:
            return state
        key = state.gone, state.made
        if key not in self._seen:
            self._seen.add(key)
            touched, waiting = state.touched, {profile for _, profile in state.waiting}
            if all(self._has_free_way(state, touched, profile) for profile in waiting):
                self._open(state, cost)
            else:
                self._later(cost, partial(self._open, state, cost))
        return None

    def _has_free_way(self, state: _State, touched: AbstractSet[GpuId], profile: str) -> bool:
        """True if there may be a place for the profile at which nobody has to leave."""
        return any(way.gpu not in touched for way in self._free_ways(profile)) or any(
            way.cost == NOTHING for gpu in touched for way in self._ways_now(state, gpu, profile)
        )

    def _could_serve(self, asked: Sequence[str], *, with_ends: bool) -> bool:
        """False if no order of moves (``with_ends``: or ends) gives each of ``asked`` a place."""
        served, before = set[str](), -1
        while len(served) > before:
            before = len(served)
            for site in self._unlike:
                served |= openings(site, served, with_ends=with_ends)
                if served.issuperset(asked):
                    return True
        return False

    def _could_hold(self, state: _State) -> bool:
        """False where those who ask or move lack room even if all who may move were away.

        By each resource of all GPUs together: most of what is impossible lacks one of these.
        """
        left, needed = self._room, self._needed
        for step in state.steps:
            needed = tuple(map(sub, needed, self._needs[step.profile]))
        for gpu in {gpu for gpu, _ in state.made}:
            shape, made = self._sites[gpu].shape, tuple(o for at, o in state.made if at == gpu)
            with_made = room(shape.table, (*shape.firm, *made), self._names)
            without = room(shape.table, shape.firm, self._names)
            left = tuple(map(add, left, map(sub, with_made, without)))
        return all(map(le, needed, left))

    def _alone(self, waiting: Iterable[tuple[Mover | None, str]]) -> Cost:
        """Sum of what each of those who wait would cost if it were alone."""
        total = NOTHING
        for _, profile in waiting:
            if not self._free_ways(profile):
                firsts = [ways[0].cost for ways in self._taken_ways(profile)]
                total = add_costs(total, min(firsts, default=NOTHING))
        return total

    def _free_ways(self, profile: str) -> Sequence[Way]:
        """Places that cost nothing, those on the fullest GPUs first."""
        if profile not in self._free:
            found = list[Way]()
            for site in self._sites.values():
                shape = site.shape
                known = shape.table.geometry.by_name(profile)
                for move in shape.table.moves(shape.usage, known) if known is not None else ():
                    occupant = Occupant(move.placement, move.profile_id)
                    found.append(Way(site.gpu, occupant, (), NOTHING, shape.free))
            awaited = (w for s in self._leaving for w in self._ways_of(s, profile) if w.blockers)
            found += sorted(
                (w for w in awaited if w.cost == NOTHING), key=lambda w: (len(w.blockers), w.free)
            )
            self._free[profile] = found
        return self._free[profile]

    def _taken_ways(self, profile: str) -> Sequence[Sequence[Way]]:
        """Places that cost something, by the first two entries of the cost, cheapest first."""
        if profile not in self._taken:
            found: dict[tuple[int, float], list[Way]] = {}
            for site in self._sites.values():
                for way in self._ways_of(site, profile):
                    if way.cost != NOTHING:
                        found.setdefault(way.cost[:2], []).append(way)
            for ways in found.values():
                ways.sort(key=lambda way: (way.cost, len(way.blockers)))
            self._taken[profile] = [*found.values()]
        return self._taken[profile]

    def _ways_now(self, state: _State, gpu: GpuId, profile: str) -> Sequence[Way]:
        """Places on a GPU as the state has left it."""
        site, gone = self._sites[gpu], state.gone
        made = tuple([occupant for at, occupant in state.made if at == gpu])
        loose = tuple([m for m in site.loose if m not in gone])
        if (key := (gpu, made, loose)) not in self._states:
            occupants = tuple([m.occupant for m in loose])
            shape = shape_of(site.shape.table, (*site.shape.firm, *made), occupants)
            self._states[key] = Site(gpu, shape, loose)
        left = self._states[key]
        if (left, profile) not in self._changed:
            self._changed[left, profile] = [*self._ways_of(left, profile)]
        return self._changed[left, profile]

    def _ways_of(self, site: Site, profile: str) -> Iterator[Way]:
        gpu, loose, free = site.gpu, site.loose, site.shape.free
        for occupant, numbers in ways(site.shape, profile):
            blockers, cost = tuple([loose[n] for n in numbers]), NOTHING
            for mover in blockers:
                cost = add_costs(cost, self._costs[mover])
            yield Way(gpu, occupant, blockers, cost, free)

    def _in_order(self, state: _State) -> tuple[Step, ...] | None:
        """Steps to the same places in an order in which each has room; None if there is none.

        Slices of one profile may change their places with each other.
        """
        steps, ends = state.steps, state.ends
        touched = {s.gpu for s in steps} | {s.mover.gpu for s in steps if s.mover is not None}
        held: _Held = {}
        for gpu in touched:
            site = self._sites[gpu]
            stay = (m.occupant for m in site.loose if m not in ends)
            held[gpu] = [*site.shape.firm, *stay]
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
        geometry = self._sites[place.gpu].shape.table.geometry
        profile = geometry.by_name(place.profile)
        usage = geometry.usage(held[place.gpu])
        return profile is not None and geometry.fits(usage, profile, place.occupant.placement)
