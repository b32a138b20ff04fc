"""Service of one pod: what it lacks is allocated, or it waits."""

from __future__ import annotations

from functools import partial

from controller.cluster.cluster import Cluster
from controller.lifecycle.allocation_writes import AllocationWrites
from controller.lifecycle.failures.failed_prepare import FailedPrepares
from controller.lifecycle.upkeep import Upkeep
from controller.queue.overtaking.fairness import WaitingLine
from controller.queue.unproven import Unproven
from controller.reporting.report import Reporter
from controller.serving.agenda import Agenda
from controller.serving.answers import Answers
from controller.serving.asking import Asking
from controller.serving.gangs.halves import HalfGangs
from controller.serving.gangs.service import Gangs
from controller.serving.gangs.writes import GangWrites
from controller.serving.placing import Placing, Refused
from controller.serving.waiting import Waiting
from controller.writing.in_flight import InFlight
from dra.allocator.problem import Examined, Problem, Satisfied, examine
from dra.cel.offers import UnansweredError
from dra.claims.reader import Fault, Reader
from dra.claims.reasons import Obstacle
from dra.common.resources import ObjectKey
from dra.gpu.inventory import ClaimRef
from dra.pods.pods import Pod


class PodService:
    """Serves one pod after the other."""

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        cluster: Cluster,
        reader: Reader,
        agenda: Agenda,
        *,
        in_flight: InFlight,
        allocations: AllocationWrites,
        failed_prepares: FailedPrepares,
        upkeep: Upkeep,
        halves: HalfGangs,
        line: WaitingLine,
        unproven: Unproven,
        gangs: Gangs,
        gang_writes: GangWrites,
        placing: Placing,
        waiting: Waiting,
        asking: Asking,
        answers: Answers,
        reporter: Reporter,
    ) -> None:
        self._cluster = cluster
        self._reader = reader
        self._agenda = agenda
        self._in_flight = in_flight
        self._allocations = allocations
        self._failed_prepares = failed_prepares
        self._upkeep = upkeep
        self._halves = halves
        self._line = line
        self._unproven = unproven
        self._gangs = gangs
        self._gang_writes = gang_writes
        self._placing = placing
        self._waiting = waiting
        self._asking = asking
        self._answers = answers
        self._reporter = reporter

    def serve(self, key: ObjectKey) -> bool:
        """Do what is to be done for a pod; True when a write is under way."""
        pod = self._agenda.waiting_pod(key)
        self._agenda.pods.leave(key)
        if pod is None:
            return False
        for again in (
            self._upkeep.prepare_retries.look_at(pod),
            self._upkeep.evictions.look_at(pod),
        ):
            if again is not None:
                self._agenda.add_pod(key, at=again)
        if self._in_flight.is_about(pod.claim_keys):
            self._agenda.hold_up_pod(key)
        elif not self._begins_write(pod):
            try:
                self._examine(pod)
            except UnansweredError as error:
                self._asking.ask(pod, error)
        return self._in_flight.is_about(pod.claim_keys)

    def _begins_write(self, pod: Pod) -> bool:
        """Bring in order what the pod has; True when a write is under way for that."""
        if self._allocations.repeat(pod, partial(self._answers.to_pod, pod.key)):
            return True
        if any(self._failed_prepares.look_at(key) for key in pod.claim_keys):
            return True
        if (again := self._upkeep.lost_nodes.look_at(pod)) is not None:
            self._agenda.add_pod(pod.key, at=again)
        if (again := self._halves.look_at(pod)) is not None:
            self._agenda.add_pod(pod.key, at=again)
        return self._in_flight.is_about(pod.claim_keys)

    def _examine(self, pod: Pod) -> None:
        """Find out what ``pod`` lacks, and give it that."""
        examined = examine(pod, self._cluster, self._reader)
        if (again := self._upkeep.hindered.look_at(pod, examined)) is not None:
            self._agenda.add_pod(pod.key, at=again)
        if self._in_flight.is_about(pod.claim_keys):
            return
        found = examined.found
        if isinstance(found, Problem):
            if not self._rests(pod, examined, found):
                self._allocate(pod, found, examined.foreign)
            return
        self._line.leaves(pod.uid)
        self._upkeep.cut_first.end(pod.uid)
        if isinstance(found, Fault):
            self._waiting.wait(pod, found.obstacle, [found.claim])
        elif isinstance(found, Satisfied):
            if found.ours and examined.foreign is not None and not pod.node:
                self._unproven.watch(pod)
            else:
                self._unproven.prove(pod.uid)
            if found.ours:
                self._hand_over(pod)
            self._reporter.served(pod)

    def _hand_over(self, pod: Pod) -> None:
        """Have kube-scheduler take ``pod``, which has what it needs of us."""
        if self._gang_writes.holds_gate(pod):
            return  # no pod is ended for one whose gang is not complete
        if self._allocations.is_gated(pod):
            self._allocations.lift_gate(pod, partial(self._answers.to_pod, pod.key))
        elif (again := self._upkeep.nominations.look_at(pod)) is not None:
            self._agenda.add_pod(pod.key, at=again)

    def _rests(self, pod: Pod, examined: Examined, problem: Problem) -> bool:
        """Have ``pod`` wait if slices were taken back that it could not use; True when it waits."""
        rest = self._upkeep.hindered.resting(pod.uid, examined.foreign)
        if rest is None:
            return False
        self._line.leaves(pod.uid)
        self._waiting.wait(pod, rest[1], _refs(problem))
        self._agenda.add_pod(pod.key, at=rest[0])
        return True

    def _allocate(self, pod: Pod, problem: Problem, foreign: Obstacle | None) -> None:
        gang = self._gangs.find(pod)
        if gang is not None:
            refused = self._gangs.place(pod, gang)
            if refused is not None:
                self._waiting.wait(pod, refused.obstacle, _refs(problem), group=refused.group)
            return
        reserved = self._upkeep.cut_first.go_on(pod, problem)
        if isinstance(reserved, float):
            self._agenda.add_pod(pod.key, at=reserved)
            return
        held_for = reserved or self._line.is_held_for(pod.uid)
        suited = None if reserved else self._placing.suited(problem)
        is_unproven = foreign is not None and not held_for
        if is_unproven and self._unproven.hold(pod, is_known=suited is not None):
            return
        found = reserved or self._placing.place(pod, problem, suited)
        if isinstance(found, Refused):
            self._waiting.wait(pod, found.obstacle, _refs(problem), group=found.group)
        elif found is not None:
            if foreign is not None:
                self._unproven.begin(pod, found.node, problem.others)
            begun = None if reserved else self._upkeep.cut_first.begin(pod, found, problem.claims)
            if begun is None:
                self._allocations.make(pod, found, problem.claims, partial(self._allocated, pod))
            else:
                self._agenda.add_pod(pod.key, at=begun)

    def _allocated(self, pod: Pod, error: Exception | None) -> None:
        if error is None:
            self._line.served(pod)
        else:
            self._unproven.forget(pod.uid)
        self._answers.to_pod(pod.key, error)


def _refs(problem: Problem) -> list[ClaimRef]:
    return [wants.claim.ref for wants in problem.claims]
