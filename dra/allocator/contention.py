"""Devices to wait for, and the claims that have the devices of a decision now."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Hashable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from dra.allocator.allocate import Allocator
from dra.allocator.fleet import Fleet, NodeGpus
from dra.allocator.gpustate import GpuState
from dra.allocator.problem import Decision, OpenRequest, Pick, Problem
from dra.allocator.search.search import Search
from dra.allocator.search.single import single_request
from dra.cel.offers import Offer
from dra.claims.wants import choices
from dra.gpu.holdings import Holding

GPU_SLICES = 64
"""Memory slices that a whole GPU in use counts as: more than any GPU has."""


def memory_in_use(decision: Decision, fleet: Fleet) -> int:
    """Memory slices of the devices of ``decision`` that are in use; 0 if its node is unknown."""
    node = fleet.nodes.get(decision.node)
    return memory_in_use_on(decision, node) if node is not None else 0


def memory_in_use_on(decision: Decision, node: NodeGpus) -> int:
    """As ``memory_in_use``, on a node that is known."""
    total = 0
    for pick in decision.picks:
        state = node.gpu(pick.gpu)
        if state is None or state.whole_held or pick.placement is None:
            total += GPU_SLICES if state is None or state.holdings else 0
        else:
            held = 0
            for holding in state.holdings:
                held |= holding.occupant.placement.mask if holding.occupant else 0
            total += (held & pick.placement.mask).bit_count()
    return total


def blockers(decision: Decision, fleet: Fleet) -> frozenset[str]:
    """UIDs of the claims that have some of the devices of ``decision`` now."""
    node = fleet.nodes.get(decision.node)
    return frozenset(
        holding.claim_uid
        for pick in decision.picks
        if node is not None and (state := node.gpu(pick.gpu)) is not None
        for holding in state.holdings
        if holding.claim_uid and _overlaps(holding, pick)
    )


def _overlaps(holding: Holding, pick: Pick) -> bool:
    if holding.occupant is None or pick.placement is None:
        return True
    return bool(holding.occupant.placement.mask & pick.placement.mask)


@dataclass(frozen=True, slots=True)
class Plan:
    """Devices to wait for. ``blocked``: number of their memory slices that others have now."""

    decision: Decision
    blocked: int


def least_blocked(search: Search, node: NodeGpus, stays: AbstractSet[str]) -> Plan | None:
    """The devices of ``node`` for ``search`` of which the fewest memory slices are in use.

    None where the node could not serve ``search`` even if it were empty of claims. Instances
    without a claim stay, and so do the claims whose UIDs are in ``stays``.
    """
    best: Plan | None = None
    for decision in _decisions(search, node, stays):
        found = Plan(decision, memory_in_use_on(decision, node))
        if best is None or found.blocked < best.blocked:
            best = found
    return best


def _decisions(search: Search, node: NodeGpus, stays: AbstractSet[str]) -> Iterator[Decision]:
    """Decisions on ``node`` with ever more of its GPUs emptied, the least used first."""
    order = sorted(range(len(node.gpus)), key=lambda n: (_held(node.gpus[n]), n))
    gpus = [*node.gpus]
    for index in order:
        gpus[index] = _emptied(node.gpus[index], stays)
        decision = search.decision(node, gpus)
        if decision is not None:
            yield decision
    request = single_request(search.claims, search.fleet.kinds)
    if request is not None:
        for state in node.gpus:
            yield from _single(search, request, _emptied(state, stays))


def _single(search: Search, request: OpenRequest, state: GpuState) -> Iterator[Decision]:
    """Decisions for every placement, on an emptied GPU, of the smallest profile that would do."""
    if state.blocked or state.table is None:
        return
    offers = [o for o in search.match(state, 0).offers if _may_be_made(o, search, state)]
    for offer in sorted(offers, key=lambda o: o.size)[:1]:
        if offer.profile is not None:
            for placement in (
                state.gpu.geometry.free_placements(state.usage, offer.profile)
                if (state.gpu.geometry)
                else ()
            ):
                yield request.at(state, offer, placement)


def _may_be_made(offer: Offer, search: Search, state: GpuState) -> bool:
    """True for a slice, and for a share that fits a slice without other shares."""
    if offer.profile is None or not offer.shared:
        return offer.profile is not None
    share = state.share(search.types[0].ask, search.namespace, offer.profile)
    return share is not None and not state.why_full(share, offer.profile)


def _emptied(state: GpuState, stays: AbstractSet[str]) -> GpuState:
    """The GPU as if no claims were on it but those in ``stays``."""
    kept = tuple(i for i in state.gpu.instances if i.claim is None or i.claim.uid in stays)
    claims = {key: held for key, held in state.claims.items() if key[0] in stays}
    emptied = replace(state, gpu=replace(state.gpu, instances=kept), claims=claims)
    emptied.fingerprint = emptied.traits
    return emptied


def _held(state: GpuState) -> int:
    return GPU_SLICES if state.whole_held else state.usage.mask.bit_count()


PLAN_STEPS = 20
"""Steps that a node counts whose GPUs are looked at; one where the pod may not go counts 1."""

_Entry = tuple[int, int, str]
"""Lower bound on memory slices to become free, rank of the node by preference, its name."""


@dataclass(slots=True)
class _Ranked:
    """Heap of nodes for problems like that of ``search``, the fewest slices to free first."""

    search: Search
    heap: list[_Entry] = field(default_factory=list)


class Outlook:
    """Plans for one pod after the other. Not thread-safe.

    ``allocator``: gives the allocator that decides for a problem now. ``kind``: gives a key that is
    equal for problems that fail alike, None for a problem like no other. ``stays``: UIDs of claims
    that are not waited for. ``steps``: number of steps taken so far.
    """

    def __init__(
        self,
        allocator: Callable[[Problem], Allocator],
        kind: Callable[[Problem], Hashable | None],
        stays: AbstractSet[str],
    ) -> None:
        self.steps = 0
        self._allocator = allocator
        self._kind = kind
        self._stays = stays
        self._ranked: dict[Hashable, _Ranked] = {}

    def find(
        self, problem: Problem, *, beside: AbstractSet[str] = frozenset()
    ) -> Generator[None, None, Plan | None]:
        """The devices for ``problem`` of which the fewest memory slices are in use.

        None where no node would serve it even if it were empty of claims, except those that stay
        and those whose UIDs are in ``beside``, which may grow from one problem to the next. An
        earlier alternative of a request wins over a later one. A preference of nodes only decides
        between equals: nobody knows how full nodes will be when the devices are free. The search
        pauses after each node; changes meanwhile may make the plan a worse one.

        Raises:
            SelectorError: a selector does not compile.
            UnansweredError: a selector is still to be evaluated.
        """
        kind = self._kind(problem)
        for number, claims in enumerate(choices(problem.claims)):
            chosen = replace(problem, claims=claims)
            stays = self._stays | beside
            known = None if kind is None else self._ranked.get((kind, number))
            if known is None:
                known = yield from self._rank(chosen, stays)
                if kind is not None:
                    self._ranked[kind, number] = known
            found = yield from self._first(chosen, known, stays)
            if found is not None:
                return found
        return None

    def _rank(self, problem: Problem, stays: AbstractSet[str]) -> Generator[None, None, _Ranked]:
        allocator = self._allocator(problem)
        ranked = _Ranked(Search(problem, allocator.fleet))
        for place, name in enumerate([*allocator.preferred(problem)]):
            yield
            allocator = self._allocator(problem)
            # If other pods decide where this pod may go, that may be elsewhere later.
            if problem.rules is None and self._is_misfit(problem, allocator, name):
                continue
            found = self._plan(ranked.search, allocator, name, stays=stays)
            if found is not None:
                ranked.heap.append((found.blocked, place, name))
        heapq.heapify(ranked.heap)
        return ranked

    def _first(
        self, problem: Problem, ranked: _Ranked, stays: AbstractSet[str]
    ) -> Generator[None, None, Plan | None]:
        """Plan on the least blocked node where the pod may go.

        Claims allocated since the nodes were ranked block more: such a node is ranked again.
        """
        heap, aside = ranked.heap, list[_Entry]()
        try:
            while heap:
                yield
                blocked, place, name = heap[0]
                allocator = self._allocator(problem)
                if self._is_misfit(problem, allocator, name):
                    aside.append(heapq.heappop(heap))
                    continue
                found = self._plan(ranked.search, allocator, name, stays=stays)
                if found is None:
                    heapq.heappop(heap)
                elif found.blocked > blocked:
                    heapq.heapreplace(heap, (found.blocked, place, name))
                else:
                    return Plan(_given_to(problem, ranked.search, found.decision), found.blocked)
            return None
        finally:
            for entry in aside:
                heapq.heappush(heap, entry)

    def _is_misfit(self, problem: Problem, allocator: Allocator, name: str) -> bool:
        self.steps += 1
        return allocator.find_misfit(problem, name) is not None

    def _plan(
        self, search: Search, allocator: Allocator, name: str, *, stays: AbstractSet[str]
    ) -> Plan | None:
        search.fleet = allocator.fleet
        node = allocator.fleet.nodes.get(name)
        if node is None:
            return None
        self.steps += PLAN_STEPS
        return least_blocked(search, node, stays)


def _given_to(problem: Problem, search: Search, decision: Decision) -> Decision:
    """``decision`` for the claims of ``search``, given to the like claims of ``problem``."""
    asked = (wants.claim.ref for wants in search.problem.claims)
    own = (wants.claim.ref for wants in problem.claims)
    refs = {theirs.uid: mine for theirs, mine in zip(asked, own, strict=True)}
    picks = tuple(p._replace(claim=refs[p.claim.uid]) for p in decision.picks)
    return decision._replace(picks=picks)
