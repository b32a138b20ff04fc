"""Nodes by how much has to become free before they serve a pod, looked at in parts."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Hashable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from dra.allocator.allocate import Allocator
from dra.allocator.contention.emptied import Plan, least_blocked
from dra.allocator.problem import Decision, Problem
from dra.allocator.search.search import Search
from dra.claims.wants import choices

NODE_STEPS = 20
"""Steps that a node counts for whose GPUs are looked at; to find that a pod may not go there
counts one."""

_Entry = tuple[int, int, str]
"""Memory slices to become free at the least, place in the order of preference, and the node."""


@dataclass(slots=True)
class _Ranked:
    """Nodes for problems like that of ``search``; a node that has more to free comes later."""

    search: Search
    heap: list[_Entry] = field(default_factory=list)


class Outlook:
    """Plans for one pod after the other. Not thread-safe.

    ``allocator`` gives the one that decides for a problem now. ``kind`` is equal for problems that
    fail alike, None for one of its own. ``stays`` are UIDs of claims that are not waited for.
    ``steps`` counts what was done.
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
        """The devices that would serve ``problem`` once the fewest memory slices become free.

        None where no node would serve it even if it were empty of claims but those that stay and
        those whose UIDs are in ``beside``, which may grow from one problem to the next. An earlier
        alternative of a request goes before anything else. A preference of nodes only decides
        between equals: how full they are when it has become free, nobody knows. It pauses after
        each node; what changes meanwhile may make the plan a worse one.

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
            # Where others of a gang decide where a pod may go, it may go elsewhere later.
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
        """The least blocked node where the pod may go. What is placed meanwhile blocks more."""
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
        self.steps += NODE_STEPS
        return least_blocked(search, node, stays)


def _given_to(problem: Problem, search: Search, decision: Decision) -> Decision:
    """Decision for the claims of ``search``, given to those of ``problem``, which are alike."""
    asked = (wants.claim.ref for wants in search.problem.claims)
    own = (wants.claim.ref for wants in problem.claims)
    refs = {theirs.uid: mine for theirs, mine in zip(asked, own, strict=True)}
    picks = tuple(p._replace(claim=refs[p.claim.uid]) for p in decision.picks)
    return decision._replace(picks=picks)
