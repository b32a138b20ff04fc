"""The allocator: which node, which GPUs, which placements serve all claims of a pod together.

A decision can be made in parts, and other decisions may come in between, so that GPUs are taken or
become free. A solution found in an earlier part is checked again before it is used. A node without
a solution is not searched again, so that the search ends however busy the cluster is: a caller that
refuses a pod for that reason tries again when room was made meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, dropwhile, groupby

from dra.allocator.admin_access import decide_view, looks_only, picks_on
from dra.allocator.fleet import Fleet
from dra.allocator.gpustate import GpuState
from dra.allocator.ongoing import Budget, Ongoing
from dra.allocator.places import Places, node_tiers
from dra.allocator.problem import Decision, GivenUp, OpenRequest, Outcome, Problem
from dra.allocator.score import Cost
from dra.allocator.search.rooms import Rooms
from dra.allocator.search.search import Search
from dra.allocator.search.single import (
    Candidate,
    best_slice,
    goes_anywhere,
    single_request,
    slices,
)
from dra.claims.reasons import Obstacle
from dra.claims.wants import Choices, ClaimWants
from dra.pods.pods import Pod, WantedPorts
from dra.pods.rules import find_rules, find_victims, may_preempt

_GROUPS = 8
"""Number of groups of nodes tried one after another; then all others are tried together."""

RoomCost = tuple[int, int, int]
"""Pods to end on a node: highest priority, sum of priorities, number; as in kube-scheduler."""


def with_room_made(problem: Problem, places: Places) -> Problem:
    """``problem`` as if kube-scheduler had ended pods of lower priority on all nodes.

    Returns ``problem`` itself where kube-scheduler would end none.
    """
    pod, hosts = problem.pod, places.hosts
    lowest = hosts.residents.lowest_priority
    if not pod.needs.preempts or pod.node or problem.pins or lowest >= pod.priority:
        return problem
    rules = find_rules(
        pod,
        hosts,
        thought_away=lambda other: may_preempt(pod, other),
        together=1 if problem.rules is None else problem.rules.together,
    )
    return replace(problem, rules=rules, makes_room=True)


def cost_of_room(problem: Problem, places: Places, node: str) -> RoomCost | None:
    """Cost of the pods that kube-scheduler would end on ``node`` for the pod of ``problem``.

    None where it would end none.
    """
    facts = places.hosts.facts.get(node)
    if facts is None or node in problem.excluded:
        return None
    ports = WantedPorts(problem.pod.needs.host_ports)
    victims = find_victims(
        problem.pod, facts, places.hosts, delegated=places.delegated, ports=ports
    )
    return _cost(victims) if victims else None


def in_order_of_cost(costs: Mapping[str, RoomCost], *, nominated: str) -> Iterator[Sequence[str]]:
    """Groups of nodes of equal cost, in the order in which kube-scheduler would choose them.

    The groups after the first ``_GROUPS`` come as one. If ``nominated`` has a cost, it comes alone.
    """
    if nominated in costs:  # victims are ending there already
        yield [nominated]
        return
    ranked = sorted(costs, key=lambda name: (costs[name], name))
    alike = [[*group] for _, group in groupby(ranked, key=costs.__getitem__)]
    yield from alike[:_GROUPS]
    if rest := [name for group in alike[_GROUPS:] for name in group]:
        yield rest


def _cost(victims: Sequence[Pod]) -> RoomCost:
    priorities = [victim.priority for victim in victims]
    return max(priorities), sum(p + 2**31 for p in priorities), len(victims)


def over_quota(claims: Iterable[ClaimWants], decision: Decision, fleet: Fleet) -> Obstacle | None:
    """Obstacle if ``decision`` puts ``claims`` over a quota of their namespace; else None."""
    if not fleet.quotas.limits:
        return None
    given = decision.allocations(claims, fleet.driver)
    return fleet.quotas.over_by(given, fleet.gpus_of(decision.node))


MANY = 64
"""Misfits after which the nodes where the pod fits are found first, and only they searched."""

_VICTIM_STEPS = 5
"""Steps that a node counts on which the pods that might end are looked for."""

_OTHERS_END = "others would have to end there"

Part = Generator[None, None, Decision | None]
"""Work on a decision that pauses now and then; returns None where no node would do."""

_Ranked = defaultdict[Cost, list[Sequence[str]]]
"""By the cost of their solution, groups of nodes that are alike, each in name order."""


class OngoingDecision(Ongoing[Outcome]):
    """Decision for a pod, made in parts. Not thread-safe.

    ``attempts``: the pod's problem on fewer nodes first, and last on all. Attempts and ``places``
    may be replaced between parts, by such as have the same claims. ``preempts``: nodes on which
    kube-scheduler would end other pods are tried last.
    """

    def __init__(
        self, attempts: Sequence[Problem], places: Places, *, preempts: bool = False
    ) -> None:
        self.attempts = attempts
        self.places = places
        self.posed = attempts[0]
        """``problem`` as it is being tried: possibly with room made, and on some nodes only."""
        self._preempts = preempts
        self._refused = 0
        """Number of attempts that found no place."""
        self._makes_room = False
        self._elsewhere: Mapping[str, str] = {}
        self._budget: Budget = Budget()
        self._search: Search | None = None
        self._rooms: Rooms | None = None
        self._claims: Sequence[ClaimWants] = ()
        super().__init__(self._decide(), self._budget)

    @property
    def problem(self) -> Problem:
        """The present attempt."""
        return self.attempts[min(self._refused, len(self.attempts) - 1)]

    def _take_up(self) -> None:
        self._pose()
        if self._search is not None:
            self._search.fleet = self.places.fleet

    def _pose(self) -> None:
        self.posed = self.problem
        if self._makes_room:
            excluded = {**self._elsewhere, **self.problem.excluded}
            self.posed = replace(with_room_made(self.problem, self.places), excluded=excluded)

    def _decide(self) -> Generator[None, None, Outcome]:
        outcome = yield from self._decide_posed()
        while outcome.decision is None and self._refused < len(self.attempts) - 1:
            self._refused += 1
            outcome = yield from self._decide_anew()
        if not self._preempts or outcome != Outcome(None):
            return outcome
        if with_room_made(self.problem, self.places) is self.problem:
            return outcome
        self._makes_room = True
        outcome = yield from self._decide_anew()  # as if all nodes had room
        if outcome.decision is None:
            return outcome
        costs = yield from self._costs_of_room()
        outcome = Outcome(None)
        for group in in_order_of_cost(costs, nominated=self.problem.pod.nominated):
            nodes = self.places.fleet.nodes.keys()
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
        for name in [*self.places.fleet.nodes]:
            cost = cost_of_room(self.problem, self.places, name)
            if cost is not None:
                costs[name] = cost
            self._budget.used += _VICTIM_STEPS
            if self._budget.left <= 0:
                yield
        return costs

    def _decide_posed(self) -> Generator[None, None, Outcome]:
        problem, budget = self.posed, self._budget
        if looks_only(problem):
            return Outcome(decide_view(problem, self.places))
        self._rooms = None
        over: list[Obstacle | None] = []
        alternatives = Choices(problem.claims, self.places.fleet.kinds.selected)
        for claims in alternatives:
            if budget.is_used_up:
                return Outcome(None, GivenUp(budget.used, budget.too_hard, untried=True))
            budget.used += 1
            over.append(self.places.fleet.quotas.over(claims))
            if over[-1] is not None:
                continue
            before = budget.used, budget.too_hard
            is_choice = claims is not problem.claims
            decision = yield from self._decide_chosen(claims, is_choice=is_choice)
            if decision is not None:
                over[-1] = over_quota(claims, decision, self.places.fleet)
                if over[-1] is None:
                    given_up = GivenUp(*before) if before[1] else None
                    return Outcome(decision._replace(given_up=given_up))
            yield
        untried = budget.is_used_up or alternatives.is_cut_off
        if untried or budget.too_hard:
            return Outcome(None, GivenUp(budget.used, budget.too_hard, untried=untried))
        return Outcome(None, None, over[0] if over and all(over) else None)

    def _decide_chosen(self, claims: Sequence[ClaimWants], *, is_choice: bool) -> Part:
        """Decide with one alternative for each request; ``is_choice``: there are others."""
        fleet = self.places.fleet
        self._claims = claims
        request = single_request(claims, fleet.kinds)
        decision, is_single = None, request is not None and goes_anywhere(request, fleet)
        if request is not None and is_single:
            decision = self._decide_single(request)
        if not is_single or (decision is None and fleet.whole):
            search = self._search = Search(self.posed, fleet, self._budget, claims=claims)
            if not is_single and is_choice:
                self._rooms = self._rooms or Rooms(fleet)
            decision = yield from self._decide_jointly(search, None if is_single else self._rooms)
        return decision

    def _fits(self, node: str) -> bool:
        self._budget.used += 1
        return self.places.find_misfit(self.posed, node, self._claims) is None

    def _decide_single(self, request: OpenRequest) -> Decision | None:
        """Decision for one slice: the cheapest, then preferred, on a node where the pod fits."""
        rules, fleet = self.posed.rules, self.places.fleet
        fits: dict[str, bool] = {}
        found: Candidate | None = None
        equals: dict[str, Candidate] = {}
        for candidate in slices(fleet, request):
            name = candidate.gpu.node
            if name not in fits:
                fits[name] = self._fits(name)
            if found is not None and candidate.cost != found.cost:
                break
            if fits[name]:
                found = found or candidate
                if rules is None or not rules.prefers:
                    break
                equals.setdefault(name, candidate)
            if found is None and len(fits) >= MANY:
                # As for a pod of a DaemonSet, which fits one node: all others have many slices.
                found = best_slice(fleet, request, self._where_it_fits(fits))
                break
        if rules is not None and equals:
            found = equals[rules.best([*equals])]
        if found is None:
            return None
        return request.at(fleet.state(found.gpu), found.offer, found.placement)

    def _where_it_fits(self, known: Mapping[str, bool]) -> Iterator[GpuState]:
        """The GPUs of the nodes where the pod fits; it fits on none that are ``known``."""
        for name, node in self.places.fleet.nodes.items():
            if name not in known and self._fits(name):
                yield from node.gpus

    def _decide_jointly(self, search: Search, rooms: Rooms | None = None) -> Part:
        budget, by_fingerprint = self._budget, search.by_fingerprint
        node_steps = search.node_steps
        for groups in self._tiers(search, rooms):
            ranked: _Ranked = defaultdict(list)
            nodes = self.places.fleet.nodes
            for group in groups:
                # Searching each node by itself is expensive: leading misfits are skipped.
                names = group if by_fingerprint else [*dropwhile(self._misses, group)]
                node = nodes.get(names[0]) if names else None
                if node is not None:
                    budget.used += node_steps * len(node.gpus)
                    found = search.solution(node.gpus, node.fingerprints)
                    if found is not None:
                        ranked[found.cost].append(names)
                budget.used += 1
                if budget.is_enough and (ranked or budget.is_used_up):
                    break
                if budget.left <= 0:
                    yield
                    nodes = self.places.fleet.nodes
            decision = self._first(search, ranked)
            if decision is not None or budget.is_used_up:
                return decision
        return None

    def _misses(self, node: str) -> bool:
        return not self._fits(node)

    def _first(self, search: Search, ranked: _Ranked) -> Decision | None:
        """The cheapest decision still possible; of equals that on the first node by name."""
        decision = self._liked_best(search, ranked)
        if decision is not None:
            return decision
        fleet = self.places.fleet
        for cost in sorted(ranked):
            for name in sorted(chain.from_iterable(ranked[cost])):
                node = fleet.nodes.get(name)
                if node is not None and self._fits(name):
                    # The solution of a node that has not changed is cached.
                    decision = search.decision(node)
                    if decision is not None:
                        return decision
        return None

    def _liked_best(self, search: Search, ranked: _Ranked) -> Decision | None:
        """Decision on the node, of the cheapest, that the pod prefers; None if it prefers none."""
        rules, fleet = self.posed.rules, self.places.fleet
        if rules is None or not rules.prefers or not ranked:
            return None
        every = sorted(chain.from_iterable(ranked[min(ranked)]))
        fitting = [name for name in every if name in fleet.nodes and self._fits(name)]
        return search.decision(fleet.nodes[rules.best(fitting)]) if fitting else None

    def _tiers(self, search: Search, rooms: Rooms | None) -> Iterator[Iterable[Sequence[str]]]:
        """The nodes by tier, the preferred first; each tier in groups of nodes that are alike."""
        fleet = self.places.fleet
        if search.nodes.policy == "none":
            fingerprints = rooms.where(search) if rooms is not None else None
            yield search.groups(fingerprints)
            return
        pod = search.problem.pod.key
        for names in node_tiers(search.nodes, fleet, self.places.hosts, pod=pod):
            yield [[name] for name in names]


ANSWER_STEPS = 5_000
"""Steps, tens of milliseconds, after which ``could_serve`` no longer tells."""

_CHOICE_STEPS = 40
"""Steps that each combination of alternatives counts."""


class Allocator(Places):
    """Decides on the state of its fleet and nodes at the time of the call; changes nothing."""

    def on(self, fleet: Fleet) -> Allocator:
        """The same allocator on another fleet, such as a supposed one."""
        return Allocator(fleet, self.hosts, self.delegated)

    def decide(self, problem: Problem) -> Decision | None:
        """The best allocation, or None when no node has one.

        An earlier alternative of a request wins over a later one, whatever the costs. Returns None
        also where the search was given up: ``outcome`` tells the difference.

        Raises:
            SelectorError: a selector does not compile.
            UnansweredError: a selector is still to be evaluated.
        """
        return self.outcome(problem).decision

    def could_serve(self, problem: Problem, nodes: Iterable[str]) -> bool:
        """True if one of ``nodes`` could serve ``problem`` now, or if that is too hard to tell.

        Raises as ``decide``.
        """
        known = {name: self.fleet.nodes[name] for name in nodes if name in self.fleet.nodes}
        fits = [n for name, n in known.items() if self.find_misfit(problem, name) is None]
        if not fits:
            return False
        if looks_only(problem):
            return any(picks_on(problem, node, self.fleet.kinds) is not None for node in fits)
        budget = Budget()
        alternatives = Choices(problem.claims, self.fleet.kinds.selected)
        for claims in alternatives:
            search = Search(problem, self.fleet, budget, claims=claims)
            budget.used += _CHOICE_STEPS
            for node in fits:
                budget.used += 1 + search.node_steps * len(node.gpus)
                if search.solution(node.gpus, node.fingerprints) is not None:
                    return True
                if budget.too_hard or budget.used > ANSWER_STEPS:
                    return True
        return alternatives.is_cut_off

    def outcome(self, problem: Problem, *, preempts: bool = False) -> Outcome:
        """The decision as of ``decide``; without one, also whether the search was given up.

        ``preempts``: at last, nodes are tried on which kube-scheduler would end other pods.
        """
        return OngoingDecision([problem], self, preempts=preempts).finish()
