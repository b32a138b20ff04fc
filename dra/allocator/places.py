"""The places where a pod could be served: GPUs and nodes as they are at the time of a call."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from dra.allocator.fleet.view import FleetView
from dra.allocator.node_order import node_tiers, preference
from dra.allocator.problem import Problem
from dra.pods.hosts import Hosts
from dra.pods.nodefit import Misfit, MisfitReason, find_misfit
from dra.pods.nodeselector import matches_selector

_BOUND = Misfit(MisfitReason.BOUND, "pod is bound to another node")


class Places:
    """The nodes of ``fleet`` and ``hosts``; nothing of them is changed.

    ``delegated`` are the extended resources that a class of ours serves, so that nodes need not
    count them.
    """

    def __init__(
        self, fleet: FleetView, hosts: Hosts, delegated: AbstractSet[str] = frozenset()
    ) -> None:
        self.fleet = fleet
        self.hosts = hosts
        self.delegated = delegated

    def find_misfit(self, problem: Problem, node: str) -> Misfit | None:
        """Misfit of the pod and ``node`` whatever its GPUs; None when it can go there."""
        pod = problem.pod
        facts = self.hosts.facts.get(node)
        if facts is None:
            return Misfit(MisfitReason.NO_NODE, "no such Node")
        if pod.node:
            return None if pod.node == node else _BOUND
        if problem.pins and not all(matches_selector(p, facts.labels, node) for p in problem.pins):
            return Misfit(MisfitReason.ELSEWHERE, "claims of the pod are allocated elsewhere")
        if node in problem.excluded:
            return Misfit(MisfitReason.LEFT_OUT, problem.excluded[node])
        used = {} if problem.makes_room else self.hosts.used(node, without=pod.key)
        misfit = find_misfit(pod.needs, facts, used, delegated=self.delegated)
        if misfit is None and problem.rules is not None:
            return problem.rules.find_misfit(facts)
        return misfit

    def preferred(self, problem: Problem) -> Iterator[str]:
        """The names of the nodes, those first that the claims prefer, then by name."""
        nodes = preference(problem.claims)
        for names in node_tiers(nodes, self.fleet, self.hosts, pod=problem.pod.key):
            yield from names
