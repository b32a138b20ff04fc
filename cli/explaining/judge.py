"""The allocator's judgement of what one reading of the cluster shows. Pure.

The fleet is built from MigNodes and allocations as the controller builds it, and decides alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from cli.facts import ClusterFacts
from dra.allocator.allocate import Allocator
from dra.allocator.explain.answers import Explanation, NodeAnswer
from dra.allocator.explain.judge import explain
from dra.allocator.fleet import Fleet
from dra.allocator.moves import TooManyStatesError
from dra.allocator.problem import Examined, Problem, examine
from dra.cel.kinds import Kinds
from dra.cel.questions import Evaluator
from dra.claims.claims import Claim
from dra.claims.nearmisses import find_near_miss
from dra.claims.reader import KnownClaim, ReadClaims, Reader, read_claims
from dra.claims.reasons import Obstacle, Reason
from dra.claims.wants import ClaimWants, Want
from dra.common.resources import ObjectKey
from dra.gangs.decision import (
    Count,
    GangDecision,
    Questions,
    Trial,
    about_absent,
    about_hindered,
    about_room,
    sort_out,
)
from dra.gangs.membership import GangKey, Unclear, find_minimum, read_membership
from dra.pods.nodefit import Misfit, MisfitReason, find_deselection
from dra.pods.pods import Pod, read_pod, urgency
from dra.pods.rules import find_rules, find_victims

_NOT_SELECTED = frozenset({MisfitReason.SELECTOR, MisfitReason.AFFINITY})
_ANYWHERE = {"tolerations": [{"operator": "Exists"}]}


@dataclass(frozen=True, slots=True)
class Preemption:
    """Pods that kube-scheduler would end on ``node`` to make room for one of higher priority."""

    node: str
    victims: tuple[Pod, ...]


def pod_of(claim: Claim) -> Pod:
    """A supposed pod that could go to any node, for a claim that no pod refers to."""
    ref = claim.ref
    metadata = {"namespace": ref.namespace, "name": ref.name, "uid": ""}
    return read_pod({"metadata": metadata, "spec": _ANYWHERE})


class Judge:
    """Answers for the nodes of ``facts``; ``evaluator`` evaluates selectors at once.

    Every method raises SelectorError where a selector does not compile.
    """

    def __init__(self, facts: ClusterFacts, evaluator: Evaluator) -> None:
        self._facts = facts
        kinds = Kinds(evaluator)
        self.reader = Reader(facts.driver, kinds, facts.classes)
        self._fleet = Fleet(facts.driver, kinds)
        for each in facts.classes.values():
            self._fleet.limit(each.name, each.quota)
        # Claims first: each that came later would have its GPU described anew.
        for known in facts.claims.values():
            if known.claim.allocation is not None:
                self._fleet.hold(known.claim.ref, known.claim.allocation)
        for node in facts.site.nodes:
            try:
                self._fleet.set_inventory(node.inventory)
            except TooManyStatesError:
                self._fleet.drop_inventory(node.name)  # as the controller leaves it out
        self.allocator = Allocator(self._fleet, facts.hosts, facts.delegated)

    def read(self, claims: Iterable[KnownClaim]) -> ReadClaims:
        """Requests of claims to this driver, and what is wrong with them."""
        return read_claims(claims, self.reader)

    def examine(self, pod: Pod) -> Examined:
        """The need of a pod, as the controller sees it, with the faults of all its claims."""
        return examine(pod, self._facts, self.reader, stops_early=False)

    def explain(self, problem: Problem) -> Explanation:
        """The answers of all nodes to ``problem``, also of those that kube-scheduler allocates."""
        outcome = self.allocator.outcome(problem)
        found = explain(problem, self.allocator, given_up=outcome.given_up, full=True)
        over = outcome.over or found.obstacle
        return replace(found, obstacle=over, nodes=self._all_nodes(found.nodes))

    def misfit(self, pod: Pod, node: str) -> Misfit | None:
        """Reason why ``pod`` does not fit on ``node``, whatever its GPUs have; None if it fits."""
        rules = find_rules(pod, self._facts.hosts)
        return self.allocator.find_misfit(Problem(pod, (), rules=rules), node)

    def unreported(self, pod: Pod, answers: Mapping[str, NodeAnswer]) -> list[str]:
        """Nodes without a MigNode that the pod selects, where it selects none that has one."""
        if any(answer.reason not in _NOT_SELECTED for answer in answers.values()):
            return []
        nodes = self._facts.hosts.facts.values()
        absent = (n for n in nodes if self._facts.site.node(n.name) is None)
        return [node.name for node in absent if find_deselection(pod.needs, node) is None]

    def wants(self, claims: Iterable[ObjectKey]) -> Iterator[Want]:
        """Wants of the claims that can be read, allocated ones too."""
        for found in (self.reader.read(self._facts.claims[key].claim) for key in claims):
            yield from found.wants if isinstance(found, ClaimWants) else ()

    def near_miss(self, wants: Iterable[Want]) -> str:
        """Profiles of this cluster's GPUs that wants miss by little, in words; empty if none."""
        geometries = (view.gpu.geometry for view in self._facts.site.gpus)
        return find_near_miss(wants, dict.fromkeys(filter(None, geometries)))

    def preemption(self, problem: Problem) -> Preemption | None:
        """Pods that have to end for ``problem``, which fits nowhere; None if that is no help."""
        decision = self.allocator.outcome(problem, preempts=True).decision
        facts = self._facts.hosts.facts.get(decision.node) if decision is not None else None
        if facts is None:
            return None
        victims = find_victims(
            problem.pod, facts, self._facts.hosts, delegated=self._facts.delegated
        )
        return Preemption(facts.name, tuple(victims)) if victims else None

    def gang_obstacle(self, pod: Pod) -> Obstacle | None:
        """Obstacle to the gang of the waiting ``pod``.

        None if the pod needs no others, or its gang will soon be served. As the controller judges
        it: all of a gang has room, or none. ``facts`` have no pods that have ended.
        """
        membership = read_membership(pod.obj)
        if membership is None:
            return None
        gang = membership.gang
        members = [*self._members(gang)]
        stated = {m.stated for p in members if (m := read_membership(p.obj)) is not None}
        minimum = find_minimum(membership, stated, self._facts.groups)
        if isinstance(minimum, Unclear):
            return Obstacle(Reason.WAITING_FOR_GANG, minimum.message)
        ours = self._facts.finalizer
        present = [p for p in members if not [gate for gate in p.gates if gate != ours]]
        if minimum > 1 and len(present) < minimum:
            return about_absent(gang, Count(minimum, len(present), 0))
        return self._about(gang, present, minimum) if minimum > 1 else None

    def _members(self, gang: GangKey) -> Iterator[Pod]:
        for pod in self._facts.pods.values():
            membership = read_membership(pod.obj) if pod.key[0] == gang.namespace else None
            if membership is not None and membership.gang == gang and not pod.deleting:
                yield pod

    def _about(self, gang: GangKey, present: list[Pod], minimum: int) -> Obstacle | None:
        present.sort(key=urgency)
        lacking = sort_out(present, self.examine)
        count = Count(minimum, len(present), min(lacking.served, minimum))
        posed = lacking.problems
        if len(posed) < count.need:
            return about_hindered(gang, count, len(posed), lacking.others)
        if count.need <= 0:
            return None
        trial = Trial(self._fleet, self._facts.hosts, pods=len(posed))
        questions = Questions(lambda _: self.allocator)
        outcome = GangDecision(posed, count.need, trial, questions).go_on()
        return None if outcome is None or outcome.fits else about_room(gang, count, outcome)

    def _all_nodes(self, answers: Mapping[str, NodeAnswer]) -> Mapping[str, NodeAnswer]:
        nodes: dict[str, NodeAnswer] = {}
        for node in self._facts.site.nodes:
            if node.name in answers:
                nodes[node.name] = self._with_age(node.name, answers[node.name])
        return nodes

    def _with_age(self, name: str, answer: NodeAnswer) -> NodeAnswer:
        """The answer, with a remark if what the node's MigNode shows may be old."""
        stale = self._facts.site.silence(name)
        if not stale or answer.reason in set(MisfitReason):
            return answer
        message = f"{answer.message}; {stale}: what this node shows may be old"
        return replace(answer, message=message.removeprefix("; "))
