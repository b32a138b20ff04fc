"""Decisions and plans that take long, and searches that failed.

Decisions that take long are made in parts, with other work in between. Each goes on in the looks at
one pod, its leader. Decisions take turns. After each part all of them rest for as long as it took,
while other work is due: together they always get half of the deciding thread's time, and no more.

After a search has failed, none is made for pods alike until a node could serve them. A search that
was given up took long while other pods waited: it is not made again for many times as long,
whatever becomes free.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from controller import times
from dra.allocator.problem import Problem
from dra.claims.reasons import Obstacle
from dra.common.cache import BoundedCache
from dra.common.resources import ObjectKey
from dra.pods.pods import PodNeeds

PART_STEPS = 5_000
"""Search steps of one part; they take some tens of milliseconds."""

MOST = 16
"""Upper bound on decisions whose progress is kept; further ones begin when one of them ends."""

W = TypeVar("W")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Made(Generic[R]):
    """A decision made in ``seconds``; ``is_outdated``: room was made meanwhile."""

    outcome: R
    seconds: float
    is_outdated: bool


@dataclass(slots=True)
class _Ongoing:
    work: Any
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
        begin: Callable[[], W],
        go_on: Callable[[W], R | None],
    ) -> Made[R] | None:
        """Make a part of a decision; returns None while it is not made.

        ``leader``: the pod to look at for the next part, which ``next`` names.
        ``asked``: the question; the decision begins anew if it has changed, or after an exception.
        ``begin``: makes its first state. ``go_on``: makes one part; returns None until the end.
        """
        known = self._ongoing.get(key)
        if known is not None and known.asked != asked:
            self.forget(key)
            known = None
        if self.is_ongoing(key):
            return None  # it waits for its turn
        began = self._now()
        try:
            known = known or _Ongoing(begin(), asked)
            outcome = go_on(known.work)
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


REST = 50
"""Rest after a search that was given up, as a multiple of the time that it took."""

_BYTES = 16 * 2**20


class Room:
    """Nodes where room was made, by the version of that. Not thread-safe."""

    def __init__(self) -> None:
        self.version = 0
        """Grows whenever room is made."""
        self._nodes: dict[str, int] = {}
        self._anywhere = 0

    def make(self, nodes: Iterable[str], *, anywhere: bool = False) -> None:
        """Note that room was made on ``nodes``; ``anywhere``: it may be on any node."""
        self.version += 1
        if anywhere:
            self._anywhere = self.version
            self._nodes.clear()
            return
        for node in nodes:
            self._nodes.pop(node, None)
            self._nodes[node] = self.version

    def since(self, version: int) -> list[str] | None:
        """The nodes where room was made after ``version``; None if it may be any node."""
        if version < self._anywhere:
            return None
        found: list[str] = []
        for node, made in reversed(self._nodes.items()):
            if made <= version:
                break
            found.append(node)
        return found


class _Failure(NamedTuple):
    """An obstacle found at the monotonic time ``at``, which stood at ``version`` of ``Room``.

    ``changed``: room was made since, which did not help.
    """

    obstacle: Obstacle
    at: float
    version: int
    changed: bool = False


class FailedSearches:
    """Obstacles of failed searches, by problem and ``scope``. Not thread-safe.

    ``scope``: UIDs of the held-back devices that the pod may take. ``now`` gives monotonic seconds.
    """

    def __init__(self, room: Room, now: Callable[[], float]) -> None:
        self._room = room
        self._now = now
        self._known: BoundedCache[Hashable, _Failure] = BoundedCache(_BYTES, weigh=_weight)
        self._resting: dict[Hashable, tuple[Obstacle, float]] = {}

    def find(
        self, problem: Problem, scope: frozenset[str], could_serve: Callable[[Iterable[str]], bool]
    ) -> Obstacle | None:
        """The obstacle by which an equal problem would fail again; None if a search is to be made.

        ``could_serve``: returns True if one of some nodes has what the problem asks for now. It is
        called with the nodes where room was made since the problem failed. The details of an
        obstacle go out of date by such changes, so that a search is made after a while anyway.
        """
        if self._resting:
            obstacle, until = self._resting.get(_searched(problem), (None, 0.0))
            if obstacle is not None and until > self._now():
                return obstacle
        key = alike(problem)
        known = None if key is None else self._known.find((key, scope))
        if known is None:
            return None
        nodes = self._room.since(known.version)
        if nodes is None or (nodes and could_serve(nodes)):
            return None
        if nodes:
            known = known._replace(version=self._room.version, changed=True)
            self._known.put((key, scope), known)
        out_of_date = known.changed and self._now() >= known.at + times.REFUSAL_DETAILS
        return None if out_of_date else known.obstacle

    def add(self, problem: Problem, scope: frozenset[str], obstacle: Obstacle) -> None:
        key = alike(problem)
        if key is not None:
            self._known.put((key, scope), _Failure(obstacle, self._now(), self._room.version))

    def rest(self, problem: Problem, obstacle: Obstacle, *, seconds: float) -> None:
        """Let a search for ``problem`` rest that was given up after ``seconds``."""
        now = self._now()
        self._resting = {k: (o, until) for k, (o, until) in self._resting.items() if until > now}
        self._resting[_searched(problem)] = obstacle, now + REST * seconds


def _searched(problem: Problem) -> Hashable:
    key = alike(problem)
    return frozenset(claim.claim.ref.uid for claim in problem.claims) if key is None else key


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


def _weight(key: object, _value: object = None) -> int:
    """Rough number of bytes that nested tuples with texts take."""
    if isinstance(key, tuple | frozenset):
        return 100 + sum(map(_weight, key))
    return 50 + len(key) if isinstance(key, str) else 50
