"""Decisions that take long, made in parts with other work in between.

Parts take turns, and rest together as long as the last one took while other work is due: whoever
asks for what is hard to find gets half of the deciding thread's time at most, and gets it always.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from dra.allocator.allocate import Allocator, OngoingDecision
from dra.allocator.problem import Outcome, Problem
from dra.common.resources import ObjectKey

PART_STEPS = 5_000
"""Steps of one part: some tens of milliseconds."""

MOST = 16
"""Upper bound on decisions whose progress is kept; further ones begin when one of them ends."""


@dataclass(frozen=True, slots=True)
class Made:
    """A decision that was made, in ``seconds``; ``is_outdated`` if room was made meanwhile."""

    outcome: Outcome
    seconds: float
    is_outdated: bool


@dataclass(slots=True)
class _Ongoing:
    decision: OngoingDecision
    asked: Hashable
    refused: int = 0
    seconds: float = 0.0
    is_outdated: bool = False


class Decisions:
    """The decisions of pods. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ongoing: dict[ObjectKey, _Ongoing] = {}
        self._line: dict[ObjectKey, None] = {}
        self._later: dict[ObjectKey, None] = {}
        self._rests_until = 0.0

    @property
    def are_ongoing(self) -> bool:
        return bool(self._line or self._later)

    def decide(self, attempts: Sequence[Problem], allocator: Allocator) -> Made | None:
        """Begin or go on with a decision; None while it is not made, and ``next_pod`` names it.

        ``attempts`` are the same problem on fewer nodes, and last on all, at the end also where
        kube-scheduler would make room: what the first of them comes to that is not refused.
        """
        key, asked = attempts[-1].pod.key, _asked(attempts[-1])
        known = self._ongoing.get(key)
        if known is not None and known.asked != asked:
            self.forget(key)
            known = None
        if self.is_ongoing(key):
            return None  # its turn comes
        known = known or _Ongoing(OngoingDecision(attempts[0]), asked)
        began = self._now()
        try:
            outcome = _part(known, attempts, allocator)
        except Exception:
            self.forget(key)
            raise
        took = self._now() - began
        known.seconds += took
        if outcome is not None:
            self.forget(key)
            return Made(outcome, known.seconds, known.is_outdated)
        self._rests_until = self._now() + took
        if key in self._ongoing or len(self._ongoing) < MOST:
            self._ongoing[key] = known
            self._line[key] = None
        else:
            self._later[key] = None
        return None

    def is_ongoing(self, key: ObjectKey) -> bool:
        return key in self._line or key in self._later

    def next_pod(self, *, idle: bool) -> ObjectKey | None:
        """The pod whose decision is to go on now, None when it is others' turn.

        ``idle``: nothing else is due. After it was served, ``end_turn`` is to be called.
        """
        if not self._line and not self._later:
            return None
        if not idle and self._now() < self._rests_until:
            return None
        line = self._line if len(self._ongoing) >= MOST or not self._later else self._later
        key = next(iter(line), None)
        if key is not None:
            del line[key]
        return key

    def end_turn(self, key: ObjectKey) -> None:
        """A pod of ``next_pod`` was served: its decision goes on, or nobody asks for it."""
        if key not in self._line:
            self._ongoing.pop(key, None)

    def room_made(self) -> None:
        """Something became free: whoever is refused what it asked for before looks again."""
        for known in self._ongoing.values():
            known.is_outdated = True

    def forget(self, key: ObjectKey) -> None:
        """The pod asks for something else, or for nothing."""
        self._ongoing.pop(key, None)
        self._line.pop(key, None)
        self._later.pop(key, None)


def _part(known: _Ongoing, attempts: Sequence[Problem], allocator: Allocator) -> Outcome | None:
    """A part of each attempt, until one is not refused."""
    while True:
        last = known.refused >= len(attempts) - 1
        known.decision.problem = attempts[min(known.refused, len(attempts) - 1)]
        known.decision.preempts = last
        outcome = known.decision.go_on(allocator, steps=PART_STEPS)
        if outcome is None or outcome.decision is not None or last:
            return outcome
        known.refused += 1
        known.decision = OngoingDecision(attempts[known.refused])


def _asked(problem: Problem) -> Hashable:
    """Key of what a decision is about; where the pod may go is looked at each time."""
    claims = tuple((c.claim.ref.uid, c.choices, c.constraints) for c in problem.claims)
    return problem.pod.uid, claims
