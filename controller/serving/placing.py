"""Placing of a pod: the decision on the present fleet, or the obstacle that it waits for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from controller.cluster.cluster import Cluster
from controller.lifecycle.partial_allocations import PartialAllocations
from controller.queue.exclusions import REASON, Exclusions
from controller.queue.known_failures import KnownFailures, alike
from controller.queue.overtaking.fairness import WaitingLine
from controller.queue.room import Room
from controller.queue.unproven import Unproven
from controller.reporting.observer import ControllerObserver
from controller.serving.decisions import Decisions
from dra.allocator.allocate import with_room_made
from dra.allocator.explain.answers import as_obstacle
from dra.allocator.explain.judge import explain
from dra.allocator.problem import Decision, Problem
from dra.claims.reasons import Obstacle, Reason
from dra.pods.pods import Pod

NOT_THERE = "another driver has no free device there for the pod's other claims"


class Refused(NamedTuple):
    """Reason why a pod is not placed; one look tells of all pods of a ``group``."""

    obstacle: Obstacle
    group: Hashable


class Placing:
    """Decides for one pod after the other. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        cluster: Cluster,
        decisions: Decisions,
        *,
        line: WaitingLine,
        partial_allocations: PartialAllocations,
        exclusions: Exclusions,
        unproven: Unproven,
        observer: ControllerObserver,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._line = line
        self._partial = partial_allocations
        self._exclusions = exclusions
        self._unproven = unproven
        self._observer = observer
        self._decisions = decisions
        self.room = Room()
        """Room that was made lately; not to be changed."""
        self._failures = KnownFailures(self.room, now)

    def make_room(self, nodes: AbstractSet[str], *, anywhere: bool) -> None:
        """Something may fit now on ``nodes``, or ``anywhere``."""
        self.room.make(nodes, anywhere=anywhere)
        self._decisions.room_made()

    def place(
        self, pod: Pod, problem: Problem, suited: Collection[str] | None
    ) -> Decision | Refused | None:
        """The decision for ``pod``, or why there is none; None when it is to be asked again.

        ``suited`` as of ``suited``.

        Raises:
            SelectorError: a selector does not compile.
            UnansweredError: a selector is still to be evaluated.
        """
        problem = self.without_excluded(problem, suited)
        found = self._decide(pod, problem)
        return Refused(found, self._group(pod, problem)) if isinstance(found, Obstacle) else found

    def without_excluded(self, problem: Problem, suited: Collection[str] | None) -> Problem:
        """``problem`` without the nodes that are left out for its pod for a while.

        Nor with those that are not ``suited``: another driver has not what the pod asks of it.
        """
        excluded = self._exclusions.excluded(self._cluster.template_of(problem.pod))
        if suited is not None:
            excluded |= dict.fromkeys(self._cluster.hosts.facts.keys() - suited, NOT_THERE)
        excluded.pop(problem.pod.nominated, None)  # kube-scheduler makes room there
        return replace(problem, excluded=excluded) if excluded else problem

    def suited(self, problem: Problem) -> Collection[str] | None:
        """Nodes where other drivers could serve the pod; None where that cannot be told.

        Raises:
            UnansweredError: a selector is still to be evaluated.
        """
        if not problem.others:
            return None
        cluster = self._cluster
        return cluster.others.nodes_for(
            problem.others,
            cluster.classes,
            cluster.fleet.kinds.selected_others,
            cluster.hosts.facts.keys(),
            awaited=((sent.node, sent.claims) for sent in self._unproven.sent()),
        )

    def _decide(self, pod: Pod, problem: Problem) -> Decision | Obstacle | None:
        yielding, allocator = self._line.yielding_to(pod), self._line.allocator_for(pod)
        obstacle = self._failures.resting(problem) or self._failures.find(
            problem, yielding, partial(allocator.could_serve, with_room_made(problem, allocator))
        )
        if obstacle is None:
            made = self._decisions.decide([*self.attempts(problem)], allocator)
            if made is None:
                return None
            outcome = made.outcome
            self._observer.decided(made.seconds, placed=outcome.decision is not None)
            if outcome.decision is not None:
                return outcome.decision
            if self._partial.give_up(pod, problem, allocator.fleet):
                return None
            obstacle = as_obstacle(explain(problem, allocator, given_up=outcome.given_up))
            if not made.is_outdated:
                self._failures.add(problem, yielding, obstacle)
            if outcome.given_up is not None:
                self._failures.rest(problem, obstacle, seconds=made.seconds)
        if obstacle.reason is Reason.WAITING:
            self._line.waits(pod, problem)
        else:
            self._line.leaves(pod.uid)
        return obstacle

    def attempts(self, problem: Problem) -> Iterator[Problem]:
        """``problem``, first without nodes that kube-scheduler is likely to refuse for its pod."""
        nodes = self._cluster.hosts.facts
        template = self._cluster.template_of(problem.pod)
        unproven = self._unproven.nodes(template)
        for last in self._exclusions.tried_last(template, nodes, unproven):
            yield replace(problem, excluded={**dict.fromkeys(last, REASON), **problem.excluded})
        yield problem

    def _group(self, pod: Pod, problem: Problem) -> Hashable:
        key = alike(problem)
        return pod.key if key is None or self._line.is_held_for(pod.uid) else key
