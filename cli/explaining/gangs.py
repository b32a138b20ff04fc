"""The gang of a waiting pod, judged as the controller does: all of it has room, or none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from cli.explaining.facts import ClusterFacts
from dra.allocator.allocate import Allocator
from dra.allocator.fleet.fleet import Fleet
from dra.allocator.problem import Problem, pose_problem
from dra.claims.reader import Reader, read_claims
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import ObjectKey
from dra.gangs.decision import GangDecision
from dra.gangs.membership import GangKey, read_membership
from dra.gangs.minimum import MOST_PODS, Unclear, find_minimum
from dra.gangs.outcome import Count, Questions, about_absent, about_hindered, about_room
from dra.gangs.trial import Trial
from dra.gpu.names import finalizer
from dra.pods.pods import Pod


class GangJudge:
    """Judges gangs on one reading of the cluster. Pods that have ended are not among its pods."""

    def __init__(self, facts: ClusterFacts, reader: Reader, fleet: Fleet) -> None:
        self._facts = facts
        self._reader = reader
        self._fleet = fleet

    def find_obstacle(self, pod: Pod) -> Obstacle | None:
        """Obstacle to the gang of ``pod``, which waits; None if it is served by itself, or soon."""
        membership = read_membership(pod.obj)
        if membership is None:
            return None
        gang = membership.gang
        members = [*self._members(gang)]
        stated = {m.stated for p in members if (m := read_membership(p.obj)) is not None}
        minimum = find_minimum(membership, stated, self._facts.groups)
        if isinstance(minimum, Unclear):
            return Obstacle(Reason.WAITING_FOR_GANG, minimum.message)
        present = [p for p in members if not self._gates(p)]
        if minimum <= 1:
            return None
        if len(present) < minimum:
            return about_absent(gang, Count(minimum, len(present), 0))
        return self._about(gang, present, minimum)

    def _about(self, gang: GangKey, present: list[Pod], minimum: int) -> Obstacle | None:
        problems: list[Problem] = []
        others: dict[ObjectKey, Obstacle | None] = {}
        served = 0
        for pod in sorted(present, key=lambda p: (-p.priority, p.created, p.key)):
            need = self._need(pod)
            if isinstance(need, bool):
                served += 1
            elif isinstance(need, Problem):
                problems.append(need)
            else:
                others[pod.key] = need
        count = Count(minimum, len(present), min(served, minimum))
        if count.need <= 0:
            return None
        if len(problems) < count.need:
            return about_hindered(gang, count, len(problems), others)
        allocator = Allocator(self._fleet, self._facts.hosts, self._facts.delegated)
        posed = problems[:MOST_PODS]
        trial = Trial(self._fleet, self._facts.hosts, pods=len(posed))
        outcome = GangDecision(posed, count.need, trial, Questions(lambda _: allocator)).go_on()
        return None if outcome is None or outcome.fits else about_room(gang, count, outcome)

    def _members(self, gang: GangKey) -> Iterator[Pod]:
        for pod in self._facts.pods.values():
            membership = read_membership(pod.obj) if pod.key[0] == gang.namespace else None
            if membership is not None and membership.gang == gang and not pod.deleting:
                yield pod

    def _gates(self, pod: Pod) -> list[str]:
        return [gate for gate in pod.gates if gate != finalizer(self._facts.driver)]

    def _need(self, pod: Pod) -> Problem | Obstacle | Literal[True] | None:
        """The problem of a pod, True where it lacks nothing, or what is in the way."""
        known = [self._facts.claims.get(key) for key in pod.claim_keys]
        present = [claim for claim in known if claim is not None]
        if None in pod.claims.values() or len(present) < len(known):
            return None
        claims = read_claims(present, self._reader, driver=self._facts.driver)
        if claims.faults:
            return claims.faults[0].obstacle
        if not claims.wants:
            return True
        found = pose_problem(pod, claims, self._facts.hosts)
        return found if isinstance(found, Problem) else found.obstacle
