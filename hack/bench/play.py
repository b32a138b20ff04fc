"""Requests for slices, placed by the product's own allocator as a policy chooses, without a clock.

Whoever finds no room waits, and is tried again in the order of asking whenever room is made, or is
lost. Each keeps what it gets for as long as it lasts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

from dra.allocator.allocate import Allocator
from dra.allocator.fleet import Fleet
from dra.allocator.fragmentation import rooms
from dra.allocator.problem import Decision, Problem
from dra.cel.kinds import Kinds
from dra.cel.selectors import Selectors
from dra.claims.claims import Claim, Request
from dra.claims.classes import generated_classes
from dra.claims.wants import ClaimWants, Want
from dra.gpu.geometry import Geometry
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import DEFAULT_DRIVER, class_name
from dra.pods.nodefit import NodeFacts
from dra.pods.pods import PodNeeds, read_pod
from dra.pods.residents import Hosts
from hack.bench.objects import inventory

Choose = Callable[[Allocator, Problem], Decision | None]


@dataclass(frozen=True, slots=True)
class Ask:
    """Slices of a profile, asked for together; each ``lasts`` so many seconds, None: for ever."""

    at: float
    profile: str
    lasts: float | None
    count: int = 1


@dataclass(frozen=True, slots=True)
class Site:
    """The GPUs, ``per_node`` on each node; who finds no room ``queues``, else is lost."""

    shape: Geometry
    gpus: int
    per_node: int
    queues: bool


@dataclass(slots=True)
class Fate:
    """A request, and when it was ``placed``; None if that never happened."""

    ask: Ask
    placed: float | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """Fates in the order of asking.

    ``stranded``: stranded memory slices (``dra.allocator.fragmentation.ProductRoom``) while
    requests wait, as a mean over time. ``end``: the time of the last request.
    """

    fates: list[Fate]
    stranded: float
    end: float


def play(
    asks: Iterable[Ask], site: Site, *, policy: str = "", choose: Choose = Allocator.decide
) -> Played:
    """``asks``, in the order of their times, as they go on ``site``."""
    return _Play(site, policy, choose).run(asks)


class _Play:
    def __init__(self, site: Site, policy: str, choose: Choose) -> None:
        self._site, self._policy, self._choose = site, policy, choose
        self._fleet, hosts = Fleet(DEFAULT_DRIVER, _kinds()), Hosts()
        self._allocator = Allocator(self._fleet, hosts)
        for number in range(math.ceil(site.gpus / site.per_node)):
            found = inventory(f"node-{number:04}", site.shape)
            here = min(site.per_node, site.gpus - number * site.per_node)
            hosts.set_node(NodeFacts(found.node))
            self._fleet.set_inventory(replace(found, gpus=found.gpus[:here]))
        self._fates: list[Fate] = []
        self._waiting: dict[int, Fate] = {}
        self._ends: list[tuple[float, int]] = []
        """Times, with the numbers of the requests that end then."""
        self._now = self._area = self._stranded = 0.0

    def run(self, asks: Iterable[Ask]) -> Played:
        for number, ask in enumerate(asks):
            while self._ends and self._ends[0][0] <= ask.at:
                at, ended = heapq.heappop(self._ends)
                self._move_to(at)
                self._fleet.release(str(ended))
                self._try_again()
                self._count_stranded()
            self._move_to(ask.at)
            fate = Fate(ask)
            self._fates.append(fate)
            if not self._place(number, fate) and self._site.queues:
                self._waiting[number] = fate
            self._count_stranded()
        return Played(self._fates, self._area / max(1e-6, self._now), self._now)

    def _move_to(self, at: float) -> None:
        self._area += self._stranded * (at - self._now)
        self._now = at

    def _place(self, number: int, fate: Fate) -> bool:
        problem = _problem(number, fate.ask, self._policy)
        decision = self._choose(self._allocator, problem)
        if decision is None:
            return False
        for ref, allocation in decision.allocations(problem.claims, DEFAULT_DRIVER).items():
            self._fleet.hold(ref, allocation)
            for profile in self._fleet.profiles_in(allocation):
                self._fleet.demand.observe(profile)
        fate.placed = self._now
        if fate.ask.lasts is not None:
            heapq.heappush(self._ends, (self._now + fate.ask.lasts, number))
        return True

    def _try_again(self) -> None:
        in_vain = set[tuple[str, int]]()
        for number, fate in [*self._waiting.items()]:
            kind = fate.ask.profile, fate.ask.count
            if kind in in_vain:
                continue
            if self._place(number, fate):
                del self._waiting[number]
            else:
                in_vain.add(kind)

    def _count_stranded(self) -> None:
        every = rooms(self._fleet).values() if self._waiting else ()
        self._stranded = float(sum(room.stranded for room in every))


@cache
def _kinds() -> Kinds:
    return Kinds(Selectors())


@cache
def _expressions(profile: str) -> tuple[str, ...]:
    [found] = [
        c
        for c in generated_classes(DEFAULT_DRIVER, [profile])
        if c["metadata"]["name"] == class_name(profile)
    ]
    return tuple(s["cel"]["expression"] for s in found["spec"]["selectors"])


def _problem(number: int, ask: Ask, policy: str) -> Problem:
    name = class_name(ask.profile)
    want = Want("0", name, _expressions(ask.profile), ask.count)
    if policy:
        want = replace(want, policy=policy)
    ref = ClaimRef("t", str(number), str(number))
    claim = Claim(ref, "", (Request(want.request, name),))
    metadata = {"namespace": "t", "name": str(number), "uid": str(number)}
    pod = replace(read_pod({"metadata": metadata, "spec": {}}), needs=PodNeeds())
    return Problem(pod, (ClaimWants(claim, ((want,),), (), {}),))
