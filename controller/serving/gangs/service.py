"""Service of a gang: decided and written in one go, or it waits and says why.

A gang waits until so many of its pods are there as it needs, and then until there is room for all
of them beside each other. Until then it holds nothing: whoever else fits is served. Its decision is
made in parts, and gangs together get half of the deciding thread's time at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from controller.cluster.cluster import Cluster
from controller.cluster.known_gangs import Gang
from controller.queue.known_failures import alike
from controller.queue.overtaking.fairness import Need, WaitingLine
from controller.queue.overtaking.waiter import gang_uid, gang_waiter
from controller.serving.agenda import Agenda
from controller.serving.decisions import PART_STEPS
from controller.serving.gangs.counts import GangCounts
from controller.serving.gangs.halves import HalfGangs
from controller.serving.gangs.refusals import Refusal, Refusals
from controller.serving.gangs.writes import GangWrites
from controller.serving.placing import Placing, Refused
from dra.allocator.problem import Problem
from dra.cel.offers import UnansweredError
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import ObjectKey
from dra.gangs.decision import (
    Count,
    GangDecision,
    Questions,
    Trial,
    about_absent,
    about_hindered,
    about_room,
)
from dra.gangs.membership import GangKey, Unclear
from dra.pods.pods import Pod

STALLED_SECONDS = 5.0
"""Pause in a decision after which another pod of the gang has it go on."""


@dataclass(slots=True)
class _Ongoing:
    """A decision made in parts, each when the pod ``leader`` is looked at; the last was ``at``."""

    decision: GangDecision
    asked: tuple[object, ...]
    leader: ObjectKey
    at: float


class Gangs:
    """Serves gangs. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(  # noqa: PLR0913 - its collaborators
        self,
        cluster: Cluster,
        agenda: Agenda,
        counts: GangCounts,
        *,
        placing: Placing,
        line: WaitingLine,
        writes: GangWrites,
        halves: HalfGangs,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._agenda = agenda
        self._counts = counts
        self._placing = placing
        self._line = line
        self._writes = writes
        self._halves = halves
        self._now = now
        self._refusals = Refusals(agenda, line, placing.room, now=now)
        self._ongoing: dict[GangKey, _Ongoing] = {}
        self._not_before = float("-inf")

    def find(self, pod: Pod) -> Gang | None:
        """The gang that ``pod``, which lacks something, is served with; None where it is alone.

        A pod beyond those that its gang needs is served by itself.
        """
        gang = self._cluster.gangs.find(pod.key)
        if gang is None:
            return None
        minimum = self._cluster.gangs.minimum(gang)
        if isinstance(minimum, Unclear):
            return gang
        if minimum > 1 and self._refusals.is_fresh(gang):
            return gang
        if minimum <= 1 or self._counts.count(gang, minimum).need <= 0:
            self._forget(gang.key)
            return None
        return gang

    def place(self, pod: Pod, gang: Gang) -> Refused | None:
        """Begin to write what ``gang`` lacks; None where that is done, or is to be asked again.

        ``pod`` is one that lacks something. Raises as ``GangDecision.go_on``.
        """
        self._line.waits_with_gang(pod)
        minimum = self._cluster.gangs.minimum(gang)
        if isinstance(minimum, Unclear):
            return self._leave(gang, _wait(minimum.message))
        if gang.present < minimum:
            absent = about_absent(gang.key, Count(minimum, gang.present, 0))
            return self._leave(gang, Refused(absent, None))
        stands = self._refusals.find(pod, gang, minimum)
        if stands is not None:
            return self._refuse(gang, stands)
        resting = self._find_rest(pod, gang)
        if resting is None and self._now() >= self._due(gang):
            refusal = self._decide(pod, gang, minimum)
            return None if refusal is None else self._refuse(gang, refusal)
        if resting is None:
            self._agenda.add_pod(pod.key, at=self._due(gang))
        return resting

    def forget(self, keys: Iterable[GangKey]) -> None:
        """These gangs are gone."""
        for key in keys:
            self._forget(key)
            self._counts.forget(key)
            self._halves.forget(key)
            self._writes.forget(key)

    def _refuse(self, gang: Gang, refusal: Refusal) -> Refused:
        """Have ``gang`` wait; what it needs is held back if others were served too often."""
        if refusal.obstacle.reason is not Reason.WAITING:
            return self._leave(gang, Refused(refusal.obstacle, refusal.group))
        uid, lacking = gang_uid(gang.key), refusal.lacking
        kind = gang.key if refusal.group is None else refusal.group
        was_held = self._line.is_held_for(uid)
        waiter = gang_waiter(gang.key, lacking, refusal.need)
        self._line.wait(waiter, Need(lacking, refusal.need, kind))
        is_held = self._line.is_held_for(uid)
        for key in gang.members if is_held and not was_held else ():
            self._agenda.add_pod(key)  # a look at one of them tells of no other gang any more
        return Refused(refusal.obstacle, gang.key if is_held else refusal.group)

    def _leave(self, gang: Gang, refused: Refused) -> Refused:
        """Hold nothing back for ``gang``: what it waits for is not room."""
        self._line.leaves(gang_uid(gang.key))
        return refused

    def _due(self, gang: Gang) -> float:
        return max(self._not_before, self._writes.due(gang.key))

    def _find_rest(self, pod: Pod, gang: Gang) -> Refused | None:
        """Reason why ``pod`` does not have its gang decided now."""
        ongoing = self._ongoing.get(gang.key)
        if ongoing is not None and ongoing.leader != pod.key and ongoing.asked[0] == gang.version:
            if self._now() < ongoing.at + STALLED_SECONDS:
                return _wait(f"{gang.key} is being decided")
            ongoing.leader = pod.key
        until = self._halves.rests_until(gang.key)
        if self._now() >= until:
            return None
        self._agenda.add_pod(pod.key, at=until)
        rests = _wait(
            f"{gang.key} had slices for some of its pods only, for too long, and has given them "
            f"back: it is tried again {until - self._now():.0f} s later"
        )
        return self._leave(gang, rests)

    def _decide(self, pod: Pod, gang: Gang, minimum: int) -> Refusal | None:
        """Make a part of the decision; None unless it is made and there is no room."""
        began = self._now()
        try:
            refusal = self._part(pod, gang, minimum)
        except UnansweredError:
            self._ongoing.pop(gang.key, None)
            raise
        except Exception:
            self._forget(gang.key)
            raise
        took = self._now() - began
        self._not_before = self._now() + took
        if refusal is not None:
            self._refusals.keep(gang, refusal, pod, seconds=took)
            if refusal.failed is not None:
                self._halves.give_back(gang)
        elif (ongoing := self._ongoing.get(gang.key)) is not None:
            self._agenda.add_pod(ongoing.leader, at=self._not_before)
        return refusal

    def _part(self, pod: Pod, gang: Gang, minimum: int) -> Refusal | None:
        count = self._counts.count(gang, minimum)
        lacking = self._counts.lacking(gang)
        able = len(lacking.problems)
        if able < count.need:
            self._ongoing.pop(gang.key, None)
            obstacle = about_hindered(gang.key, count, able, lacking.others)
            return Refusal(obstacle, hindered={*lacking.others})
        claims = (w.claim.ref.uid for p in lacking.problems for w in p.claims)
        asked = (gang.version, count.need, *claims)
        ongoing = self._ongoing.get(gang.key)
        if ongoing is None or ongoing.asked != asked:
            decision = self._begin(gang, lacking.problems, count.need)
            ongoing = self._ongoing[gang.key] = _Ongoing(decision, asked, pod.key, 0.0)
        ongoing.at, room = self._now(), self._placing.room.version
        outcome = ongoing.decision.go_on(steps=PART_STEPS)
        if outcome is None:
            return None
        del self._ongoing[gang.key]
        if not outcome.fits:
            kind = alike(outcome.failed) if outcome.failed is not None else None
            group = gang.key if kind is None else (count.need, kind)
            return Refusal(
                about_room(gang.key, count, outcome),
                outcome.failed,
                room,
                group,
                lacking=lacking.problems,
                need=count.need,
            )
        self._refusals.forget(gang.key)
        self._halves.begins(gang.key, anew=not count.served)
        self._writes.begin(gang, outcome)
        if all(placed.problem.pod.key != pod.key for placed in outcome.placed):
            self._agenda.add_pod(pod.key)  # it is not needed, and served by itself
        return None

    def _begin(self, gang: Gang, problems: tuple[Problem, ...], need: int) -> GangDecision:
        cluster, placing = self._cluster, self._placing
        line = self._line
        own = line.own_allocator_for if line.is_held_for(gang_uid(gang.key)) else None
        questions = Questions(line.allocator_for, placing.attempts, alike, own, preempts=True)
        posed = [placing.without_excluded(p, placing.suited(p)) for p in problems]
        trial = Trial(cluster.fleet, cluster.hosts, pods=len(posed))
        return GangDecision(posed, need, trial, questions)

    def _forget(self, key: GangKey) -> None:
        self._refusals.forget(key)
        self._ongoing.pop(key, None)
        self._line.leaves(gang_uid(key))


def _wait(message: str) -> Refused:
    return Refused(Obstacle(Reason.WAITING_FOR_GANG, message), None)
