"""The decision: which node, which GPUs, which placements serve all claims of a pod together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.fleet.view import Candidate, FleetView
from dra.allocator.node_order import node_tiers, preference
from dra.allocator.problem import Asked, Decision, Problem
from dra.allocator.scoring.score import POLICIES
from dra.allocator.search.budget import Effort
from dra.allocator.search.search import Search
from dra.claims.alternatives import choices
from dra.pods.hosts import Hosts
from dra.pods.nodefit import Misfit, MisfitReason, find_misfit
from dra.pods.nodeselector import matches_selector

_BOUND = Misfit(MisfitReason.BOUND, "pod is bound to another node")
_REMEMBERED = 1000
MANY = 64
"""After this many misfits, only the nodes where the pod fits are searched."""


class Allocator:
    """Decides on the state of ``fleet`` and ``hosts`` at the time of the call; changes nothing."""

    def __init__(self, fleet: FleetView, hosts: Hosts) -> None:
        self._fleet = fleet
        self._hosts = hosts
        self._given_up: set[frozenset[str]] = set()
        self.gave_ups = 0
        """How many searches were given up so far."""

    def on(self, fleet: FleetView) -> Allocator:
        """The allocator that decides likewise on another fleet, such as one that is supposed."""
        return Allocator(fleet, self._hosts)

    def find_misfit(
        self, problem: Problem, node: str, delegated: AbstractSet[str]
    ) -> Misfit | None:
        """Why the pod cannot go to ``node`` whatever its GPUs; None when it can."""
        pod = problem.pod
        facts = self._hosts.facts.get(node)
        if facts is None:
            return Misfit(MisfitReason.NO_NODE, "no such Node")
        if pod.node:
            return None if pod.node == node else _BOUND
        if not all(matches_selector(p, facts.labels, node) for p in problem.pins):
            return Misfit(MisfitReason.ELSEWHERE, "claims of the pod are allocated elsewhere")
        if node in problem.excluded:
            return Misfit(MisfitReason.LEFT_OUT, problem.excluded[node])
        used = self._hosts.used(node, without=pod.key)
        misfit = find_misfit(pod.needs, facts, used, delegated=delegated)
        if misfit is None and problem.rules is not None:
            return problem.rules.find_misfit(facts)
        return misfit

    def preferred(self, problem: Problem) -> Iterator[str]:
        """The names of the nodes, those first that the claims prefer, then by name."""
        nodes = preference(problem.claims)
        for names in node_tiers(nodes, self._fleet, self._hosts, pod=problem.pod.key):
            yield from names

    def decide(
        self, problem: Problem, delegated: AbstractSet[str] = frozenset()
    ) -> Decision | None:
        """The best allocation, or None when no node has one.

        An earlier alternative of a request goes before anything that speaks for a later one. None
        also where the search was given up: ``gave_up`` tells.
        """
        effort = Effort()
        decision = self._decide_first(problem, delegated, effort)
        self._given_up.discard(_claim_uids(problem))
        if decision is None and effort.exceeded:
            self.gave_ups += 1
            if len(self._given_up) >= _REMEMBERED:
                self._given_up.clear()
            self._given_up.add(_claim_uids(problem))
        return decision

    def gave_up(self, problem: Problem) -> bool:
        """Whether the last search for the devices of these claims was given up."""
        return _claim_uids(problem) in self._given_up

    def _decide_first(
        self, problem: Problem, delegated: AbstractSet[str], effort: Effort
    ) -> Decision | None:
        for claims in choices(problem.claims):
            chosen = problem if claims is problem.claims else replace(problem, claims=claims)
            decision = self._decide_chosen(chosen, delegated, effort)
            if decision is not None:
                return decision
        return None

    def _decide_chosen(
        self, problem: Problem, delegated: AbstractSet[str], effort: Effort
    ) -> Decision | None:
        search = Search(problem, self._fleet, effort)
        asked = search.single
        if asked is not None and search.nodes.policy == "none":
            return self._decide_single(asked, search, problem, delegated)
        return self._decide_jointly(search, problem, delegated)

    def _decide_single(
        self, asked: Asked, search: Search, problem: Problem, delegated: AbstractSet[str]
    ) -> Decision | None:
        """One device, alike on GPUs of one kind: the first candidate on a node that fits."""
        want = asked.want
        stock, policy, weights = (
            self._fleet.stock,
            POLICIES[want.policy],
            self._fleet.weights,
        )
        misfits: dict[str, bool] = {}
        found: Candidate | None = None
        for candidate in stock.candidates(want.expressions, policy, weights):
            name = candidate.state.inventory.node
            if name not in misfits:
                misfits[name] = self.find_misfit(problem, name, delegated) is not None
            if not misfits[name]:
                found = candidate
                break
            if len(misfits) >= MANY:
                # Such as for a pod of a DaemonSet: the candidates on other nodes are too many.
                states = self._where_it_fits(problem, delegated, misfits)
                found = stock.best(want.expressions, policy, weights, states)
                break
        if found is not None:
            return asked.at(found.state, found.offer, found.placement)
        if stock.whole:
            return self._decide_jointly(search, problem, delegated)
        return None

    def _where_it_fits(
        self, problem: Problem, delegated: AbstractSet[str], misfits: Mapping[str, bool]
    ) -> Iterator[GpuState]:
        """The GPUs of all nodes where the pod fits, which is known for some."""
        for name, node in self._fleet.nodes.items():
            if name not in misfits and self.find_misfit(problem, name, delegated) is None:
                yield from node.gpus

    def _decide_jointly(
        self, search: Search, problem: Problem, delegated: AbstractSet[str]
    ) -> Decision | None:
        for alike in self._groups(search, problem):
            for name in search.ranked(alike):
                if self.find_misfit(problem, name, delegated) is None:
                    return search.decision(self._fleet.nodes[name])
        return None

    def _groups(self, search: Search, problem: Problem) -> Iterator[Iterable[Sequence[str]]]:
        """The nodes in the order of preference: groups of nodes that are alike, in name order."""
        if search.nodes.policy == "none" and search.by_shape:
            yield self._fleet.alike.values()
            return
        for names in node_tiers(search.nodes, self._fleet, self._hosts, pod=problem.pod.key):
            yield [[name] for name in names]


def _claim_uids(problem: Problem) -> frozenset[str]:
    return frozenset(claim.claim.ref.uid for claim in problem.claims)
