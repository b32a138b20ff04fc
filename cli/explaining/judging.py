"""The allocator's judgement of what one reading of the cluster shows. Pure.

The fleet is built from MigNodes and allocations as the controller builds it, and asked the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cli.explaining.facts import ClusterFacts
from cli.explaining.model import Why
from dra.allocator.allocate import Allocator
from dra.allocator.explain.answers import (
    AnswerReason,
    Detail,
    Explanation,
    GpuAnswer,
    NodeAnswer,
)
from dra.allocator.explain.judge import explain
from dra.allocator.fleet.fleet import Fleet
from dra.allocator.problem import Problem
from dra.allocator.scoring.geometry_index import GeometryIndexes
from dra.allocator.scoring.moves import TooManyStatesError
from dra.cel.kinds import Kinds
from dra.claims.claims import Claim
from dra.gpu.inventory import AllocatorKind
from dra.pods.nodefit import MisfitReason
from dra.pods.pods import Pod, read_pod
from dra.pods.rules import find_victims

_BY_SCHEDULER = NodeAnswer(
    Why.BY_SCHEDULER, "its GPUs are allocated by kube-scheduler, not by the controller"
)
_ANYWHERE = {"tolerations": [{"operator": "Exists"}]}


@dataclass(frozen=True, slots=True)
class Preemption:
    """Pods that kube-scheduler would end on ``node`` to make room for one of higher priority."""

    node: str
    victims: tuple[Pod, ...]


def pod_of(claim: Claim) -> Pod:
    """The pod that could go to any node, for a claim that no pod refers to."""
    ref = claim.ref
    metadata = {"namespace": ref.namespace, "name": ref.name, "uid": ""}
    return read_pod({"metadata": metadata, "spec": _ANYWHERE})


class Judge:
    """Answers for the nodes of ``facts``; ``kinds`` evaluates selectors there and then."""

    def __init__(self, facts: ClusterFacts, kinds: Kinds) -> None:
        self._facts = facts
        self.fleet = Fleet(facts.driver, kinds, GeometryIndexes())
        for node in facts.site.nodes:
            try:
                self.fleet.set_inventory(node.inventory)
            except TooManyStatesError:
                self.fleet.drop_inventory(node.name)  # as the controller leaves it out
        for known in facts.claims.values():
            if known.claim.allocation is not None:
                self.fleet.hold(known.claim.ref, known.claim.allocation)
        self._allocator = Allocator(self.fleet, facts.hosts, facts.delegated)

    def explain(self, problem: Problem) -> Explanation:
        """The answers of all nodes to ``problem``, also of those that kube-scheduler allocates.

        Raises:
            SelectorError: a selector does not compile.
        """
        outcome = self._allocator.outcome(problem)
        found = explain(problem, self._allocator, given_up=outcome.given_up, detail=Detail.FULL)
        return replace(found, nodes=self._all_nodes(found.nodes))

    def preemption(self, problem: Problem) -> Preemption | None:
        """Pods that have to end for ``problem``, which fits nowhere; None if that is no help.

        Raises:
            SelectorError: a selector does not compile.
        """
        decision = self._allocator.outcome(problem, preempts=True).decision
        facts = self._facts.hosts.facts.get(decision.node) if decision is not None else None
        if facts is None:
            return None
        victims = find_victims(
            problem.pod, facts, self._facts.hosts, delegated=self._facts.delegated
        )
        return Preemption(facts.name, tuple(victims)) if victims else None

    def _all_nodes(self, answers: Mapping[str, NodeAnswer]) -> Mapping[str, NodeAnswer]:
        nodes: dict[str, NodeAnswer] = {}
        for node in self._facts.site.nodes:
            if node.inventory.allocator is not AllocatorKind.CONTROLLER:
                nodes[node.name] = _BY_SCHEDULER
            elif node.name in answers:
                nodes[node.name] = self._with_age(node.name, answers[node.name])
        return nodes

    def _with_age(self, name: str, answer: NodeAnswer) -> NodeAnswer:
        """The answer, and whether what the node shows may be old."""
        plugins = self._facts.plugins
        stale = (plugins or {}).get(name, "no pod of the plugin runs there")
        if plugins is None or not stale or answer.reason in set(MisfitReason):
            return answer
        message = f"{answer.message}; {stale}: what this node shows may be old"
        return replace(answer, message=message.removeprefix("; "))


def is_possible(answer: NodeAnswer) -> bool:
    """True if a GPU of the node has what is asked for, if not now."""
    return any(map(is_able, answer.gpus))


def is_able(answer: GpuAnswer) -> bool:
    """True if the GPU has what is asked for, if not now."""
    return answer.reason != AnswerReason.NO_SUCH_DEVICE
