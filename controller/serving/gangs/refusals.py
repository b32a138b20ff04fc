"""Refusals of gangs, and whether they still stand: a gang is not decided for each of its pods."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from controller.cluster.known_gangs import Gang
from controller.queue.overtaking.fairness import WaitingLine
from controller.queue.room import Room
from controller.serving.agenda import Agenda
from dra.allocator.allocate import with_room_made
from dra.allocator.problem import Problem
from dra.claims.reasons import Obstacle
from dra.common.resources import ObjectKey
from dra.gangs.membership import GangKey
from dra.pods.pods import Pod

REST = 10
"""Rest after a decision for which there was no room, as a multiple of the time that it took."""

DETAILS_SECONDS = 60.0
"""Time after which a gang is decided anew although nothing has happened that may help it."""


@dataclass(slots=True)
class Refusal:
    """An obstacle of a gang, and what it depends on.

    ``failed`` is the pod that found no room, up to the version ``room``; one look tells of all
    gangs of a ``group``. ``lacking`` are the pods of which ``need`` are to have room, in their
    order. ``hindered`` are pods that could not be served whatever is free and have not been looked
    at since; None where that was not why.
    """

    obstacle: Obstacle
    failed: Problem | None = None
    room: int = 0
    group: Hashable | None = None
    lacking: tuple[Problem, ...] = ()
    need: int = 0
    hindered: set[ObjectKey] | None = None


@dataclass(slots=True)
class _Kept:
    refusal: Refusal
    version: int
    at: float
    until: float
    is_called: bool = False


class Refusals:
    """The last refusal of each gang. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(
        self, agenda: Agenda, line: WaitingLine, room: Room, *, now: Callable[[], float]
    ) -> None:
        self._agenda = agenda
        self._line = line
        self._room = room
        self._now = now
        self._kept: dict[GangKey, _Kept] = {}

    def keep(self, gang: Gang, refusal: Refusal, pod: Pod, *, seconds: float) -> None:
        """Keep why ``gang`` was refused when ``pod`` was served; the decision took ``seconds``.

        The gang's other pods are told if the reason is new, and wait for room like ``pod``.
        """
        before, now = self._kept.get(gang.key), self._now()
        self._kept[gang.key] = _Kept(refusal, gang.version, now, now + REST * seconds)
        reason = refusal.obstacle.reason
        is_new = before is None or before.refusal.obstacle.reason is not reason
        for key in gang.members:
            if key != pod.key and (is_new or not self._agenda.pods.waits(key)):
                self._agenda.add_pod(key)

    def is_fresh(self, gang: Gang) -> bool:
        """True if ``gang`` was refused a short while ago, and rests or has not changed since.

        Nobody has to count its pods then to know that it lacks something.
        """
        kept = self._kept.get(gang.key)
        if kept is None:
            return False
        is_same = kept.version == gang.version
        return self._now() < (kept.at + DETAILS_SECONDS if is_same else kept.until)

    def find(self, pod: Pod, gang: Gang, minimum: int) -> Refusal | None:
        """The refusal that still stands when ``pod`` is looked at; None where there is none."""
        kept, now = self._kept.get(gang.key), self._now()
        if kept is None:
            return None
        refusal = kept.refusal
        if kept.version != gang.version:
            return self._rest(pod, kept) if now < kept.until else None
        if refusal.hindered is not None:
            refusal.hindered.discard(pod.key)
            if gang.present - len(refusal.hindered) >= minimum:
                return None
        if now < kept.until:
            return self._rest(pod, kept)
        if now >= kept.at + DETAILS_SECONDS or self._has_room(refusal):
            return None
        return refusal

    def _rest(self, pod: Pod, kept: _Kept) -> Refusal:
        """Have one pod looked at when its gang has rested: pods that join it do not end that."""
        if not kept.is_called:
            kept.is_called = True
            self._agenda.add_pod(pod.key, at=kept.until)
        return kept.refusal

    def forget(self, gang: GangKey) -> None:
        """The gang has what it needs, or is gone."""
        self._kept.pop(gang, None)

    def _has_room(self, refusal: Refusal) -> bool:
        """True if room was made that may be of use."""
        failed, room = refusal.failed, self._room
        if failed is None:
            return False
        nodes = room.since(refusal.room)
        allocator = self._line.allocator_for(failed.pod)
        easier = with_room_made(failed, allocator)
        if nodes is None or allocator.could_serve(easier, nodes):
            return True
        refusal.room = room.version
        return False
