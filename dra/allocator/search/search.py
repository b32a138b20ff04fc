"""The search for the devices that serve a problem together on one node."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.fleet.view import FleetView, NodeGpus
from dra.allocator.node_order import preference
from dra.allocator.problem import Asked, Decision, Problem
from dra.allocator.scoring.score import POLICIES, Cost, Policy
from dra.allocator.search.budget import Effort, TooHardError
from dra.allocator.search.combine import (
    Option,
    Pricing,
    combine,
    nothing,
    segmented,
    slice_options,
    whole_options,
)
from dra.allocator.search.constraint_values import Rules, Vector
from dra.allocator.search.constraints import Allowed, Constrained, WantType
from dra.cel.kinds import Match, Offer
from dra.claims.allocation import MAX_RESULTS
from dra.gpu.devices import PARENT, PCIE_ROOT


class Solution(NamedTuple):
    """What serving a problem on a node costs, and one option per GPU that could give something."""

    cost: Cost
    options: list[Option]


class Search:
    """One problem on many nodes: what is worked out for a state of a GPU is kept for its equals."""

    def __init__(self, problem: Problem, fleet: FleetView, effort: Effort | None = None) -> None:
        self._problem = problem
        self._fleet = fleet
        self.constraints = [c for claim in problem.claims for c in claim.constraints]
        self.nodes = preference(problem.claims)
        self._options: dict[tuple[object, ...], list[Option]] = {}
        self._solutions: dict[tuple[object, ...], Solution | None] = {}
        self._gives: dict[object, bool] = {}
        self._effort = effort or Effort()

    @cached_property
    def wanted(self) -> dict[WantType, list[Asked]]:
        """What is wanted, by type, in the order in which it is asked for."""
        grouped: dict[WantType, list[Asked]] = {}
        selecting: dict[Hashable, tuple[str, ...]] = {}
        for claim in self._problem.claims:
            for want in claim.wants:
                bound = tuple(c for c in claim.constraints if c.covers(want))
                # Whatever they say: expressions that select the same make wants of one type.
                selected = self._fleet.kinds.selected(want.expressions)
                expressions = selecting.setdefault(selected, want.expressions)
                kind = WantType(expressions, bound, want.policy, want.everything)
                grouped.setdefault(kind, []).append(Asked(claim.claim.ref, want))
        return grouped

    @cached_property
    def types(self) -> list[WantType]:
        """The types of ``wanted``: below, an index is one of these."""
        return list(self.wanted)

    @cached_property
    def wants(self) -> list[list[Asked]]:
        """What is wanted, per type."""
        return list(self.wanted.values())

    @cached_property
    def target(self) -> Vector:
        """How many devices of each type are wanted."""
        return tuple(sum(asked.want.count for asked in group) for group in self.wants)

    @cached_property
    def _policies(self) -> list[Policy]:
        return segmented([POLICIES[kind.policy] for kind in self.types])

    @cached_property
    def by_shape(self) -> bool:
        """Whether nodes whose GPUs are in equal states serve it alike.

        They do, unless a selector looks at what tells one GPU from another, or a constraint at what
        some of them share: which do so is not the same on all nodes.
        """
        shared = any(c.attribute == PCIE_ROOT for c in self.constraints)
        tells_apart = self._fleet.kinds.tells_gpus_apart
        return not shared and not any(tells_apart(kind.expressions) for kind in self.types)

    @cached_property
    def _together(self) -> bool:
        """Whether one GPU is to give everything."""
        return any(
            not c.distinct
            and c.attribute.removeprefix(f"{self._fleet.driver}/") == PARENT
            and all(c in kind.constraints for kind in self.types)
            for c in self.constraints
        )

    @property
    def namespace(self) -> str:
        """Of the pod."""
        return self._problem.pod.key[0]

    @cached_property
    def indices(self) -> range:
        """The indices of ``types``."""
        return range(len(self.types))

    @property
    def single(self) -> Asked | None:
        """The one device that is wanted, if any GPU of a kind would serve it alike."""
        claim = self._problem.claims[0]
        if len(self._problem.claims) > 1 or len(claim.choices) != 1 or self.constraints:
            return None
        want = claim.choices[0][0]
        if want.count > 1 or want.everything:
            return None
        if self._fleet.kinds.tells_gpus_apart(want.expressions):
            return None
        return Asked(claim.claim.ref, want)

    def match(self, state: GpuState, index: int) -> Match:
        """What of a GPU would serve the wants of type ``index``. Raises SelectorError."""
        return self._fleet.kinds.match(self.types[index].expressions, state.kind, state.gpu)

    def ranked(self, groups: Iterable[Sequence[str]]) -> Iterator[str]:
        """The nodes that could serve the target: the cheapest first, then in name order.

        ``groups`` are of nodes whose GPUs are in equal states, by name. Lazy: a group costs what
        its first node costs.
        """
        heap: list[tuple[Cost, str, int, Sequence[str]]] = []
        for names in groups:
            found = self.solution(self._fleet.nodes[names[0]].gpus)
            if found is not None:
                heap.append((found.cost, names[0], 0, names))
        heapq.heapify(heap)
        while heap:
            cost, name, rank, names = heap[0]
            yield name
            if rank + 1 < len(names):
                heapq.heapreplace(heap, (cost, names[rank + 1], rank + 1, names))
            else:
                heapq.heappop(heap)

    def solution(self, gpus: Sequence[GpuState]) -> Solution | None:
        """The cheapest way to serve the target on the GPUs of one node."""
        useful = self._useful(gpus)
        if not useful:
            return None
        if not self.by_shape:
            return self._try(useful)
        forms = tuple(state.form for state in useful)
        if forms not in self._solutions:
            self._solutions[forms] = self._try(useful)
        return self._solutions[forms]

    def _useful(self, gpus: Sequence[GpuState]) -> Sequence[GpuState]:
        """Those that could give something, and of equals no more than there are devices to give."""
        if not self.by_shape or any(kind.everything for kind in self.types):
            return gpus
        most = sum(self.target)
        useful: list[GpuState] = []
        for state in gpus:
            form = state.form
            gives = self._gives.get(form)
            if gives is None:
                rooms = (self.has_room(state, i) for i in self.indices)
                gives = self._gives[form] = all(rooms) if self._together else any(rooms)
            if gives and sum(form == other.form for other in useful) < most:
                useful.append(state)
        return useful

    def has_room(self, state: GpuState, index: int) -> bool:
        """Whether a GPU could give a device of type ``index`` now. Raises SelectorError."""
        if state.blocked or state.whole_held:
            return False
        for offer in self.match(state, index).offers:
            if offer.profile is None:
                if not state.holdings:
                    return True
            elif state.market and state.market.table.moves(state.usage, offer.profile):
                return True
        return False

    def _try(self, gpus: Sequence[GpuState]) -> Solution | None:
        try:
            return self._solve(gpus)
        except TooHardError:
            return None  # the effort tells

    def _solve(self, gpus: Sequence[GpuState]) -> Solution | None:
        allowed = [[self.match(state, i).offers for i in self.indices] for state in gpus]
        target = self._target_of(allowed)
        if target is None:
            return None
        constrained = Constrained(self.types, gpus, allowed, driver=self._fleet.driver)
        options = [
            self._gpu_options(state, constrained.allowed[i], constrained.rules(i), target)
            for i, state in enumerate(gpus)
        ]
        found = combine(options, target, constrained.members, self._effort)
        return Solution(*found) if found is not None else None

    def _target_of(self, allowed: list[list[tuple[Offer, ...]]]) -> Vector | None:
        """How many devices of each type a node is to give, None where it cannot."""
        target = list(self.target)
        for index, kind in enumerate(self.types):
            if kind.everything:
                found = all_of([offers[index] for offers in allowed])
                if found is None or not found or found > MAX_RESULTS:
                    return None
                target[index] = found * len(self.wants[index])
        return tuple(target)

    def decision(self, node: NodeGpus, gpus: Sequence[GpuState] = ()) -> Decision:
        """The solution on ``node`` as devices, handed out to the requests.

        ``gpus`` are its GPUs in the states for which there is a solution, if not the present ones.
        """
        gpus = gpus or node.gpus
        solution = self.solution(gpus)
        if solution is None:
            raise LookupError(f"there is no solution on node {node.inventory.node}")
        waiting = [
            [a for a in group for _ in range(MAX_RESULTS if a.want.everything else a.want.count)]
            for group in self.wants
        ]
        picks = []
        for state, option in zip(self._useful(gpus), solution.options, strict=True):
            for grant in option.grants:
                asked = waiting[grant.type].pop(0)
                picks.append(asked.pick(state, grant.offer, grant.placement))
        return Decision(node.inventory.node, node.inventory.pool, tuple(picks))

    def _gpu_options(
        self, state: GpuState, allowed: Allowed, rules: Rules, target: Vector
    ) -> list[Option]:
        if state.blocked or state.whole_held or not any(allowed):
            return [nothing(len(target))]
        if state.market is None:
            return (
                [nothing(len(target))] if state.holdings else whole_options(target, allowed, rules)
            )
        market = state.market
        key = (
            id(market),
            state.usage,
            state.instances,
            tuple(allowed),
            target,
            rules.key,
        )
        known = self._options.get(key)
        if known is None:
            pricing = Pricing(market.table, self._policies, self._fleet.weights(market))
            known = self._options[key] = slice_options(
                state.usage,
                state.instances,
                pricing,
                target=target,
                allowed=allowed,
                rules=rules,
                effort=self._effort,
            )
        return known


def all_of(gpus: list[tuple[Offer, ...]]) -> int | None:
    """How many devices ``gpus`` offer together; None where slices overlap, so that "all" is void.

    Slices of one profile lie beside each other, those of different profiles do not.
    """
    if any(len(offers) > 1 for offers in gpus):
        return None
    return sum(
        len(offer.profile.placements) if offer.profile else 1 for offers in gpus for offer in offers
    )
