"""Decisions and plans that take long.

Decisions that take long are made in parts, with other work in between. Each goes on in the looks at
one pod, its leader. Decisions take turns. After each part all of them rest for as long as it took,
while other work is due: together they always get half of the deciding thread's time, and no more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dra.allocator.ongoing import Ongoing
from dra.allocator.problem import Problem
from dra.common.resources import ObjectKey
from dra.pods.pods import PodNeeds

PART_STEPS = 5_000
"""Search steps of one part; they take some tens of milliseconds."""

MOST = 16
"""Upper bound on decisions whose progress is kept; further ones begin when one of them ends."""

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Made(Generic[R]):
    """A decision made in ``seconds``; ``is_outdated``: room was made meanwhile."""

    outcome: R
    seconds: float
    is_outdated: bool


@dataclass(slots=True)
class _Ongoing:
    work: Ongoing[Any]
    asked: Hashable
    seconds: float = 0.0
    is_outdated: bool = False


class Decisions:
    """Ongoing decisions by key; the key for a single pod is the pod's. Not thread-safe.

    ``now`` gives monotonic seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._ongoing: dict[Hashable, _Ongoing] = {}
        self._line: dict[Hashable, ObjectKey] = {}
        self._later: dict[Hashable, ObjectKey] = {}
        self._rests_until = 0.0

    @property
    def are_ongoing(self) -> bool:
        return bool(self._line or self._later)

    def decide(
        self,
        key: Hashable,
        leader: ObjectKey,
        *,
        asked: Hashable,
        begin: Callable[[], Ongoing[R]],
        renew: Callable[[Any], None] = lambda _: None,
    ) -> Made[R] | None:
        """Make a part of a decision; returns None while it is not made.

        ``leader``: the pod to look at for the next part, which ``next`` names.
        ``asked``: the question; the decision begins anew if it has changed, or after an exception.
        ``begin``: makes the search. ``renew``: has a search that is left go on with what is now.
        """
        known = self._ongoing.get(key)
        if known is not None and known.asked != asked:
            self.forget(key)
            known = None
        if self.is_ongoing(key):
            return None  # it waits for its turn
        began = self._now()
        try:
            if known is None:
                known = _Ongoing(begin(), asked)
            else:
                renew(known.work)
            outcome = known.work.go_on(steps=PART_STEPS)
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
            self._line[key] = leader
        else:
            self._later[key] = leader
        return None

    def is_ongoing(self, key: Hashable) -> bool:
        """True if a decision waits for its turn."""
        return key in self._line or key in self._later

    def is_begun(self, key: Hashable) -> bool:
        """True if the progress of a decision is kept."""
        return key in self._ongoing

    def next(self, *, idle: bool) -> tuple[Hashable, ObjectKey] | None:
        """The decision that is to go on now, and its leader; None if decisions rest or none waits.

        ``idle``: no other work is due. ``end_turn`` is to be called after the look at the leader.
        """
        if not self.are_ongoing or (not idle and self._now() < self._rests_until):
            return None
        line = self._line if len(self._ongoing) >= MOST or not self._later else self._later
        key = next(iter(line), None)
        return None if key is None else (key, line.pop(key))

    def end_turn(self, key: Hashable) -> None:
        """Drop a decision that the look at its leader neither ended nor continued."""
        if key not in self._line:
            self._ongoing.pop(key, None)

    def room_made(self) -> None:
        """Note that something became free: a refusal by an ongoing decision is outdated."""
        for known in self._ongoing.values():
            known.is_outdated = True

    def forget(self, key: Hashable) -> None:
        """Drop a decision."""
        self._ongoing.pop(key, None)
        self._line.pop(key, None)
        self._later.pop(key, None)


def alike(problem: Problem) -> Hashable | None:
    """A key that is equal for problems that fail alike; None if the pod has claims on a node."""
    if problem.pins:
        return None
    claims = tuple(
        (
            tuple(
                tuple(
                    (w.request, w.class_name, w.expressions, w.count, w.everything, w.admin, w.ask)
                    for w in alternatives
                )
                for alternatives in claim.choices
            ),
            tuple((c.attribute, c.requests, c.distinct) for c in claim.constraints),
            tuple(claim.sharing.items()),
        )
        for claim in problem.claims
    )
    # The namespace is part of the key, as an obstacle may name objects of the namespace.
    pod = problem.pod
    rules = () if problem.rules is None else problem.rules.key
    preempts = pod.priority if pod.needs.preempts else None
    needs = _needs(pod.needs), preempts, rules
    return claims, needs, frozenset(problem.excluded), pod.node, pod.key[0]


def _needs(needs: PodNeeds) -> str:
    parts = [needs.requests, needs.node_selector, needs.affinity_terms, needs.tolerations]
    return json.dumps(parts, sort_keys=True)
