"""Writes for a gang: all that it lacks together, and the gates of its pods last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from controller.cluster.cluster import Cluster
from controller.cluster.known_gangs import Gang
from controller.lifecycle.allocation_writes import AllocationWrites
from controller.queue.overtaking.fairness import WaitingLine
from controller.queue.overtaking.waiter import gang_uid
from controller.queue.worklist import FIRST_PAUSE, LONGEST_PAUSE
from controller.serving.agenda import Agenda
from controller.serving.answers import Answers
from controller.serving.gangs.counts import GangCounts
from dra.gangs.decision import GangOutcome
from dra.gangs.membership import GangKey
from dra.kube.timing import Backoff
from dra.pods.pods import Pod


@dataclass(slots=True)
class _Pause:
    backoff: Backoff
    until: float


class GangWrites:
    """Writes decisions for gangs. ``now`` gives monotonic seconds."""

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        cluster: Cluster,
        agenda: Agenda,
        counts: GangCounts,
        *,
        allocations: AllocationWrites,
        line: WaitingLine,
        answers: Answers,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._agenda = agenda
        self._counts = counts
        self._allocations = allocations
        self._line = line
        self._answers = answers
        self._now = now
        self._under_way: dict[GangKey, int] = {}
        self._pauses: dict[GangKey, _Pause] = {}

    def begin(self, gang: Gang, outcome: GangOutcome) -> None:
        """Write what ``outcome`` gives to pods of ``gang``; gates are lifted when it is whole."""
        for placed in outcome.placed:
            if placed.decision is None:
                continue  # it has the claims of others
            pod = placed.problem.pod
            self._under_way[gang.key] = self._under_way.get(gang.key, 0) + 1
            done = partial(self._written, gang.key, pod)
            self._allocations.make(pod, placed.decision, placed.rest.claims, done, lifts=False)

    def due(self, gang: GangKey) -> float:
        """The monotonic time before which nothing is written for a gang, as writes failed."""
        pause = self._pauses.get(gang)
        return pause.until if pause is not None else float("-inf")

    def holds_gate(self, pod: Pod) -> bool:
        """True if ``pod``, which has its slices, waits for others of its gang to have theirs."""
        gang = self._cluster.gangs.find(pod.key)
        return gang is not None and self._counts.is_half(gang)

    def forget(self, gang: GangKey) -> None:
        """The gang is gone."""
        self._pauses.pop(gang, None)

    def _written(self, key: GangKey, pod: Pod, error: Exception | None) -> None:
        if error is None:
            self._line.served(pod)
        else:
            self._fail(key)
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]
            self._all_written(pod)
        self._answers.to_pod(pod.key, error)

    def _all_written(self, pod: Pod) -> None:
        """Have those looked at that have their slices: their gates are lifted, or they wait."""
        gang = self._cluster.gangs.find(pod.key)
        if gang is None:
            return
        if not self._counts.is_half(gang):
            self._line.leaves(gang_uid(gang.key))
        for key in gang.members:
            if not self._counts.lacks(self._cluster.pods[key]):
                self._agenda.add_pod(key)

    def _fail(self, key: GangKey) -> None:
        """A write failed: the gang is tried again after pauses that grow, once for all pods."""
        pause = self._pauses.get(key)
        if pause is None:
            backoff = Backoff(first=FIRST_PAUSE, limit=LONGEST_PAUSE, jitter=0)
            pause = self._pauses[key] = _Pause(backoff, self._now())
        if pause.until <= self._now():
            pause.until = self._now() + pause.backoff.next_delay()
