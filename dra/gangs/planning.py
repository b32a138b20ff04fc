"""Places to wait for: for as many of a gang's pods as it needs at once, once others have ended.

A pod by itself is a gang of one. The search is made in parts; what changes between them may make
the places worse ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Hashable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial

from dra.allocator.allocate import Allocator
from dra.allocator.fleet import Fleet, NodeGpus
from dra.allocator.gpustate import GpuState
from dra.allocator.ongoing import Ongoing, Steps
from dra.allocator.problem import Decision, OpenRequest, Pick, Problem
from dra.allocator.search.search import Search
from dra.allocator.search.single import single_request
from dra.cel.offers import Offer
from dra.claims.wants import Choices
from dra.common.resources import ObjectKey
from dra.gangs.decision import Placed, Questions, Trial, shared_node
from dra.gpu.holdings import Holding

GPU_SLICES = 64
"""Memory slices that a whole GPU in use counts as: more than any GPU has."""


def memory_in_use(decision: Decision, fleet: Fleet) -> int:
    """Memory slices of the devices of ``decision`` that are in use; 0 if its node is unknown."""
    total = 0
    for pick, state in _picked(decision, fleet):
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
    return frozenset(
        holding.claim_uid
        for pick, state in _picked(decision, fleet)
        for holding in (state.holdings if state is not None else ())
        if holding.claim_uid and _overlaps(holding, pick)
    )


def _picked(decision: Decision, fleet: Fleet) -> Iterator[tuple[Pick, GpuState | None]]:
    node = fleet.nodes.get(decision.node)
    for pick in decision.picks if node is not None else ():
        yield pick, node.gpu(pick.gpu) if node is not None else None


def _overlaps(holding: Holding, pick: Pick) -> bool:
    if holding.occupant is None or pick.placement is None:
        return True
    return bool(holding.occupant.placement.mask & pick.placement.mask)


MOST_STEPS = 1_000_000
"""Steps after which the search is given up: some seconds, half of them left to other work."""

_NODE_STEPS = 50
_MISFIT_STEPS = 3
"""Steps that a node counts whose GPUs are looked at, and one that is asked whether the pod fits."""

_Ranked = tuple[Search, list[tuple[int, int, str]]]
"""Search for problems of a kind, and a heap of nodes, the fewest slices to free first.

Of a node: lower bound on memory slices to become free, its rank by preference, its name.
"""


class _GivenUpError(Exception):
    """The steps are used up."""


class Planning(Ongoing[tuple[Placed, ...]]):
    """Search for places for ``need`` of ``candidates``, which are at least one. Not thread-safe.

    It ends with no pods where there would be no place for ``need`` pods even if all nodes were
    empty of claims that do not stay, or where the search is given up. The caller's books count no
    claim of the candidates while ``go_on`` runs, and are restored afterwards. ``stays``: UIDs of
    claims that are not waited for. ``questions.attempts`` is not used.
    """

    def __init__(
        self,
        candidates: Sequence[Problem],
        need: int,
        trial: Trial,
        questions: Questions,
        *,
        stays: AbstractSet[str],
    ) -> None:
        self._candidates = candidates
        self._need = need
        self._trial = trial
        self._questions = questions
        self._stays = stays
        self._placed: list[Placed] = []
        self._allocators: dict[ObjectKey, Allocator] = {}
        self._ranked: dict[Hashable, _Ranked] = {}
        super().__init__(self._plan(), Steps())

    def _take_up(self) -> None:
        for each in self._placed:
            self._trial.place(each.rest, each.decision, each.node)

    def _leave(self) -> None:
        self._trial.undo()
        self._allocators.clear()

    def _plan(self) -> Generator[None, None, tuple[Placed, ...]]:
        try:
            return (yield from self._plan_all())
        except _GivenUpError:
            return ()

    def _plan_all(self) -> Generator[None, None, tuple[Placed, ...]]:
        order = [*self._candidates]
        for _ in range(len(order)):  # pods without a place go first the next time
            failures = yield from self._try(order)
            if len(self._placed) >= self._need:
                return tuple(self._placed)
            again = sorted(order, key=lambda problem: problem not in failures)
            if not self._placed or again == order:
                break
            order = again
            self._trial.undo()
            self._placed.clear()
            self._allocators.clear()
            self._ranked.clear()
        return ()

    def _try(self, order: Sequence[Problem]) -> Generator[None, None, list[Problem]]:
        """Find places for as many pods as are needed; returns the pods that have none."""
        failures: list[Problem] = []
        kinds: set[Hashable] = set()
        for problem in order:
            if len(self._placed) >= self._need:
                break
            kind = self._kind(problem)
            if kind not in kinds and (yield from self._place(problem)):
                continue
            failures.append(problem)
            # A pod with rules about other pods may have a place later.
            if kind is not None and problem.rules is None:
                kinds.add(kind)
        return failures

    def _place(self, problem: Problem) -> Generator[None, None, bool]:
        rest = self._trial.rest(problem)
        if rest.claims:
            decision = yield from self._find(rest)
            node = decision.node if decision is not None else ""
        else:
            decision, node = None, shared_node(rest, self._allocator(rest))
        if not node:
            return False
        self._placed.append(Placed(problem, rest, decision, node))
        if len(self._placed) < self._need:
            self._trial.place(rest, decision, node)
            self._allocators.clear()
        return True

    def _find(self, problem: Problem) -> Generator[None, None, Decision | None]:
        """The devices for ``problem`` of which the fewest memory slices are in use.

        None where no node would serve it even if it were empty of claims, except those that stay
        and those that are placed. An earlier alternative of a request wins over a later one. A
        preference of nodes only decides between equals: nobody knows how full nodes will be when
        the devices are free. The search pauses after each node.
        """
        kind = self._kind(problem)
        for number, claims in enumerate(Choices(problem.claims)):
            chosen = replace(problem, claims=claims)
            ranked = None if kind is None else self._ranked.get((kind, number))
            if ranked is None:
                ranked = yield from self._rank(chosen)
                if kind is not None:
                    self._ranked[kind, number] = ranked
            found = yield from self._first(chosen, ranked)
            if found is not None:
                return found
        return None

    def _rank(self, problem: Problem) -> Generator[None, None, _Ranked]:
        allocator, heap = self._allocator(problem), list[tuple[int, int, str]]()
        search = Search(problem, allocator.fleet)
        for place, name in enumerate([*allocator.preferred(problem)]):
            yield
            # If other pods decide where this pod may go, that may be elsewhere later.
            if problem.rules is None and self._is_misfit(problem, name):
                continue
            if found := self._least_blocked(problem, search, name):
                heap.append((found[0], place, name))
        heapq.heapify(heap)
        return search, heap

    def _first(self, problem: Problem, ranked: _Ranked) -> Generator[None, None, Decision | None]:
        """Devices on the least blocked node where the pod may go.

        Claims allocated since the nodes were ranked block more: such a node is ranked again.
        """
        (search, heap), aside = ranked, list[tuple[int, int, str]]()
        try:
            while heap:
                yield
                blocked, place, name = heap[0]
                if self._is_misfit(problem, name):
                    aside.append(heapq.heappop(heap))
                    continue
                found = self._least_blocked(problem, search, name)
                if found is None:
                    heapq.heappop(heap)
                elif found[0] > blocked:
                    heapq.heapreplace(heap, (found[0], place, name))
                else:
                    return _given_to(problem, search, found[1])
            return None
        finally:
            for entry in aside:
                heapq.heappush(heap, entry)

    def _spend(self, steps: int) -> None:
        self._budget.used += steps
        if self._budget.used > MOST_STEPS:
            raise _GivenUpError

    def _is_misfit(self, problem: Problem, name: str) -> bool:
        self._spend(_MISFIT_STEPS)
        return self._allocator(problem).find_misfit(problem, name) is not None

    def _least_blocked(
        self, problem: Problem, search: Search, name: str
    ) -> tuple[int, Decision] | None:
        """Devices of a node of which the fewest memory slices are in use, and how many are.

        None where the node could not serve ``search`` even if it were empty of claims. Instances
        without a claim stay.
        """
        fleet = search.fleet = self._allocator(problem).fleet
        node = fleet.nodes.get(name)
        if node is None:
            return None
        self._spend(_NODE_STEPS)
        decisions = _decisions(search, node, self._stays | self._trial.claims)
        each = ((memory_in_use(decision, fleet), decision) for decision in decisions)
        return min(each, key=lambda found: found[0], default=None)

    def _allocator(self, problem: Problem) -> Allocator:
        """The allocator for a problem now, kept until a pod is placed or the part ends."""
        key = problem.pod.key
        if key not in self._allocators:
            self._allocators[key] = self._questions.allocator(problem.pod)
        return self._allocators[key]

    def _kind(self, problem: Problem) -> Hashable | None:
        """Equal for pods that the same nodes would serve, but for rules about others."""
        return self._questions.kind(replace(problem, rules=None))


def _decisions(search: Search, node: NodeGpus, stays: AbstractSet[str]) -> Iterator[Decision]:
    """Decisions on ``node`` with ever more of its GPUs emptied, the least used first."""
    gpus = [*node.gpus]
    for index in sorted(range(len(gpus)), key=lambda n: (_held(node.gpus[n]), n)):
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
    may_be_made = partial(_may_be_made, search, state)
    offers = filter(may_be_made, search.match(state, 0).offers)
    offer = min(offers, key=lambda o: o.size, default=None)
    if offer is not None and offer.profile is not None:
        for placement in state.table.geometry.free_placements(state.usage, offer.profile):
            yield request.at(state, offer, placement)


def _may_be_made(search: Search, state: GpuState, offer: Offer) -> bool:
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


def _given_to(problem: Problem, search: Search, decision: Decision) -> Decision:
    """``decision`` for the claims of ``search``, given to the like claims of ``problem``."""
    asked = (wants.claim.ref for wants in search.problem.claims)
    own = (wants.claim.ref for wants in problem.claims)
    refs = {theirs.uid: mine for theirs, mine in zip(asked, own, strict=True)}
    picks = tuple(p._replace(claim=refs[p.claim.uid]) for p in decision.picks)
    return decision._replace(picks=picks)
