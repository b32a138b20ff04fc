"""A trial: pods placed one beside the other in the books, and all taken out again.

The books are those of whoever decides, who alone uses them meanwhile: after ``undo`` they are as
they were, and nobody has seen the difference.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Set as AbstractSet
from dataclasses import replace

from dra.allocator.fleet import Fleet
from dra.allocator.problem import Decision, Problem
from dra.claims.allocation import node_selector
from dra.pods.pods import Pod
from dra.pods.residents import Hosts
from dra.pods.rules import find_rules


class Trial:
    """Pods placed in ``fleet`` and ``hosts`` until ``undo``, of ``pods``. Not thread-safe."""

    def __init__(self, fleet: Fleet, hosts: Hosts, *, pods: int = 1) -> None:
        self._fleet = fleet
        self._hosts = hosts
        self._pods = pods
        self._held: dict[str, str] = {}
        self._placed: list[tuple[Pod, str]] = []

    @property
    def claims(self) -> AbstractSet[str]:
        """UIDs of the claims that are placed."""
        return self._held.keys()

    def traits(self, node: str) -> Hashable:
        """Equal while the GPUs of a node are in equal states."""
        known = self._fleet.nodes.get(node)
        return tuple(state.traits for state in known.gpus) if known is not None else None

    def place(self, problem: Problem, decision: Decision | None, node: str) -> None:
        """Count what ``decision`` gives to the pod of ``problem``, and the pod on ``node``."""
        if decision is not None:
            for wants in problem.claims:
                ref = wants.claim.ref
                self._fleet.hold(ref, decision.allocation(ref, self._fleet.driver))
                self._held[ref.uid] = decision.node
        before = self._hosts.residents.find(problem.pod.key)
        self._placed.append((problem.pod, before[0] if before is not None else ""))
        self._hosts.place(problem.pod, node)

    def rest(self, problem: Problem) -> Problem:
        """The part of ``problem`` that is not decided yet; other pods may have its claims too."""
        pod, held = problem.pod, self._held
        nodes = dict.fromkeys(
            held[w.claim.ref.uid] for w in problem.claims if w.claim.ref.uid in held
        )
        left = tuple(w for w in problem.claims if w.claim.ref.uid not in held)
        pins = (*problem.pins, *map(node_selector, nodes))
        rules = find_rules(pod, self._hosts, together=self._pods)
        return replace(problem, claims=left, pins=pins, rules=rules)

    def effort(self, problem: Problem) -> int:
        """The number of comparisons with nodes that show where a pod may go, at the most."""
        return problem.pod.needs.parts * len(self._hosts.facts)

    def undo(self) -> None:
        """Take everything out again."""
        for uid in self._held:
            self._fleet.release(uid)
        for pod, node in reversed(self._placed):
            self._hosts.place(pod, node)
        self._held.clear()
        self._placed.clear()
