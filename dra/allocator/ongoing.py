"""A decision that can be made in parts, with others in between.

Between two parts GPUs may be taken and become free. A solution found before is looked at again
before it is taken; that a node has none is not, so that each node is searched once and the search
comes to an end however busy the cluster is. Whoever refuses because of it looks again when room
was made meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, dropwhile
from math import inf

from dra.allocator.admin_access import decide_view, looks_only
from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.fleet.view import Candidate
from dra.allocator.making_room import (
    RoomCost,
    cost_of_room,
    in_order_of_cost,
    with_room_made,
)
from dra.allocator.node_order import node_tiers
from dra.allocator.places import Places
from dra.allocator.problem import Decision, GivenUp, OpenRequest, Outcome, Problem
from dra.allocator.scoring.idle import find_policy
from dra.allocator.scoring.score import Cost
from dra.allocator.search.budget import Budget
from dra.allocator.search.rooms import Rooms
from dra.allocator.search.search import Search, selects_shares, single_request
from dra.claims.wants import ClaimWants, Want, choices

MANY = 64
"""After this many misfits, only the nodes where the pod fits are searched."""

_VICTIM_STEPS = 5
"""Steps for each node on which it is looked who might end for a pod."""

_OTHERS_END = "others would have to end there"

Part = Generator[None, None, Decision | None]
"""Work that stops now and then; what it comes to is None where no node would do."""

_Ranked = defaultdict[Cost, list[Sequence[str]]]
"""Groups of nodes that are alike, in name order, by the cost of what they were found to give."""


class OngoingDecision:
    """Decision for ``problem``, made in parts. Not thread-safe.

    ``problem`` may be replaced by one whose claims are the same. With ``preempts`` nodes on which
    kube-scheduler would make room are tried last.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.preempts = False
        self.posed = problem
        """``problem`` as it is tried at the time: maybe as if room were made, on some nodes."""
        self._makes_room = False
        self._elsewhere: Mapping[str, str] = {}
        self._budget = Budget()
        self._work = self._decide()
        self._places: Places
        self._search: Search | None = None
        self._claims: Sequence[ClaimWants] = ()
        self._end = inf
        """Number of steps of the budget after which a part ends."""

    @property
    def steps(self) -> int:
        """Steps that were taken."""
        return self._budget.used

    def go_on(self, places: Places, *, steps: int | None = None) -> Outcome | None:
        """Search on, on ``places`` as they are now; None when that took ``steps`` without an end.

        A part takes at most the steps of one node more. After an exception it begins anew.
        """
        self._places = places
        self._pose()
        if self._search is not None:
            self._search.fleet = places.fleet
        self._end = inf if steps is None else self._budget.used + steps
        try:
            while self._budget.used < self._end:
                next(self._work)
        except StopIteration as found:
            outcome: Outcome = found.value
            return outcome
        except Exception:
            self._makes_room, self._elsewhere = False, {}
            self._work = self._decide()
            raise
        return None

    def _pose(self) -> None:
        self.posed = self.problem
        if self._makes_room:
            excluded = {**self._elsewhere, **self.problem.excluded}
            self.posed = replace(with_room_made(self.problem, self._places), excluded=excluded)

    def _decide(self) -> Generator[None, None, Outcome]:
        outcome = yield from self._decide_posed()
        if not self.preempts or outcome != Outcome(None):
            return outcome
        if with_room_made(self.problem, self._places) is self.problem:
            return outcome
        self._makes_room = True
        outcome = yield from self._decide_anew()  # for the resources alone
        if outcome.decision is None:
            return outcome
        costs = yield from self._costs_of_room()
        outcome = Outcome(None)
        for group in in_order_of_cost(costs, nominated=self.problem.pod.nominated):
            nodes = self._places.fleet.nodes.keys()
            self._elsewhere = dict.fromkeys(nodes - {*group}, _OTHERS_END)
            self._budget.used += len(nodes)
            outcome = yield from self._decide_anew()
            if outcome.decision is not None:
                break
        return outcome

    def _decide_anew(self) -> Generator[None, None, Outcome]:
        yield
        self._pose()
        self._budget.open_decision()
        return (yield from self._decide_posed())

    def _costs_of_room(self) -> Generator[None, None, Mapping[str, RoomCost]]:
        costs: dict[str, RoomCost] = {}
        for name in [*self._places.fleet.nodes]:
            cost = cost_of_room(self.problem, self._places, name)
            if cost is not None:
                costs[name] = cost
            self._budget.used += _VICTIM_STEPS
            if self._budget.used >= self._end:
                yield
        return costs

    def _decide_posed(self) -> Generator[None, None, Outcome]:
        problem, budget = self.posed, self._budget
        if looks_only(problem):
            return Outcome(decide_view(problem, self._places))
        rooms: Rooms | None = None
        for claims in choices(problem.claims, self._places.fleet.kinds.selected):
            if budget.is_used_up:
                return Outcome(None, GivenUp(budget.used, budget.too_hard, untried=True))
            budget.used += 1
            given_up = GivenUp(budget.used, budget.too_hard) if budget.too_hard else None
            self._claims = claims
            request = single_request(claims, self._places.fleet.kinds)
            if request is not None and self._goes_by_candidates(request.want):
                decision = yield from self._decide_single(request, claims)
            elif claims is problem.claims:
                decision = yield from self._decide_jointly(self._search_for(claims))
            else:
                rooms = rooms or Rooms(self._places.fleet)
                decision = yield from self._decide_jointly(self._search_for(claims), rooms)
            if decision is not None:
                return Outcome(decision._replace(given_up=given_up))
            yield
        if budget.too_hard or budget.is_used_up:
            untried = budget.is_used_up
            return Outcome(None, GivenUp(budget.used, budget.too_hard, untried=untried))
        return Outcome(None)

    def _goes_by_candidates(self, want: Want) -> bool:
        """True if the first candidate is the best: on any node, and not shared."""
        if want.nodes.policy != "none":
            return False
        fleet = self._places.fleet
        return not fleet.candidates.shared or not selects_shares(want.expressions, fleet.kinds)

    def _search_for(self, claims: Sequence[ClaimWants]) -> Search:
        fleet = self._places.fleet
        self._search = Search(self.posed, fleet, self._budget, claims=claims)
        return self._search

    def _fits(self, node: str) -> bool:
        self._budget.used += 1
        return self._places.find_misfit(self.posed, node, self._claims) is None

    def _decide_single(self, request: OpenRequest, claims: Sequence[ClaimWants]) -> Part:
        """One device, alike on GPUs of one kind: the first candidate on a node that fits."""
        want, fleet = request.want, self._places.fleet
        candidates = fleet.candidates
        namespace = request.claim.namespace
        policy = find_policy(want.policy, namespace=namespace, idle=candidates.has_idle)
        fits: dict[str, bool] = {}
        found: Candidate | None = None
        equals: dict[str, Candidate] = {}
        rules = self.posed.rules
        for candidate in candidates.in_order(want.expressions, policy, fleet.weights):
            name = candidate.state.inventory.node
            if name not in fits:
                fits[name] = self._fits(name)
            if found is not None and candidate.cost != found.cost:
                break
            if fits[name]:
                if rules is None or not rules.prefers:
                    found = candidate
                    break
                equals.setdefault(name, candidate)
                found = found or candidate
            if found is None and len(fits) >= MANY:
                # Such as for a pod of a DaemonSet: the candidates on other nodes are too many.
                states = self._where_it_fits(fits)
                found = candidates.best(want.expressions, policy, fleet.weights, states)
                break
        if rules is not None and equals:
            found = equals[rules.best([*equals])]
        if found is not None:
            return request.at(found.state, found.offer, found.placement)
        if candidates.whole:
            return (yield from self._decide_jointly(self._search_for(claims)))
        return None

    def _where_it_fits(self, known: Mapping[str, bool]) -> Iterator[GpuState]:
        """The GPUs of all nodes where the pod fits, which is known for some."""
        for name, node in self._places.fleet.nodes.items():
            if name not in known and self._fits(name):
                yield from node.gpus

    def _decide_jointly(self, search: Search, rooms: Rooms | None = None) -> Part:
        budget, by_fingerprint = self._budget, search.by_fingerprint
        for groups in self._tiers(search, rooms):
            ranked: _Ranked = defaultdict(list)
            nodes = self._places.fleet.nodes
            for group in groups:
                # To search a node by itself is dear.
                names = group if by_fingerprint else [*dropwhile(self._misses, group)]
                node = nodes.get(names[0]) if names else None
                if node is not None:
                    budget.used += search.node_steps * len(node.gpus)
                    found = search.solution(node.gpus, node.gpu_fingerprints)
                    if found is not None:
                        ranked[found.cost].append(names)
                budget.used += 1
                if budget.is_enough and (ranked or budget.is_used_up):
                    break
                if budget.used >= self._end:
                    yield
                    nodes = self._places.fleet.nodes
            decision = self._first(search, ranked)
            if decision is not None or budget.is_used_up:
                return decision
        return None

    def _misses(self, node: str) -> bool:
        return not self._fits(node)

    def _first(self, search: Search, ranked: _Ranked) -> Decision | None:
        """The cheapest, then the first by name, that is still to be had."""
        decision = self._liked_best(search, ranked)
        if decision is not None:
            return decision
        fleet = self._places.fleet
        for cost in sorted(ranked):
            for name in sorted(chain.from_iterable(ranked[cost])):
                node = fleet.nodes.get(name)
                if node is not None and self._fits(name):
                    # For a node that did not change it is the same, and known.
                    decision = search.decision(node)
                    if decision is not None:
                        return decision
        return None

    def _liked_best(self, search: Search, ranked: _Ranked) -> Decision | None:
        """The one of the cheapest that the pod prefers; None where it prefers nothing."""
        rules, fleet = self.posed.rules, self._places.fleet
        if rules is None or not rules.prefers or not ranked:
            return None
        every = sorted(chain.from_iterable(ranked[min(ranked)]))
        fitting = [name for name in every if name in fleet.nodes and self._fits(name)]
        return search.decision(fleet.nodes[rules.best(fitting)]) if fitting else None

    def _tiers(self, search: Search, rooms: Rooms | None) -> Iterator[Iterable[Sequence[str]]]:
        """The nodes in the order of preference: groups of nodes that are alike, in name order."""
        fleet = self._places.fleet
        if search.nodes.policy == "none":
            fingerprints = rooms.where(search) if rooms is not None else None
            yield search.groups(fingerprints)
            return
        pod = search.problem.pod.key
        for names in node_tiers(search.nodes, fleet, self._places.hosts, pod=pod):
            yield [[name] for name in names]
