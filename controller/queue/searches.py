"""Decisions and plans that take long, and searches that failed.

The first are made in parts with other work in between. Each is carried on by the looks at one pod,
its leader. Parts take turns, and rest together as long as the last one took while other work is
due: whoever asks for what is hard to find gets half of the deciding thread's time at most, and gets
it always.

For pods that are equal to one whose search failed none is made until a node could serve them. A
search that was given up took long, and all other pods waited for it: it is not tried again for many
times as long, whatever becomes free.
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
"""Steps of one part: some tens of milliseconds."""

MOST = 16
"""Upper bound on decisions whose progress is kept; further ones begin when one of them ends."""

W = TypeVar("W")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Made(Generic[R]):
    """A decision that was made, in ``seconds``; ``is_outdated`` if room was made meanwhile."""

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
    """Decisions by key: that of a pod by itself has the pod's. ``now`` gives monotonic seconds.

    Not thread-safe.
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
        """Make a part of a decision; None while it is not made, and ``next`` names its leader.

        It is begun anew where something else was ``asked`` before, and after an exception. One part
        of it is made by ``go_on``, which returns None where that has not come to an end.
        """
        known = self._ongoing.get(key)
        if known is not None and known.asked != asked:
            self.forget(key)
            known = None
        if self.is_ongoing(key):
            return None  # its turn comes
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
        """The decision that is to go on now, and its leader; None when it is others' turn.

        ``idle``: nothing else is due. After a look at the leader ``end_turn`` is to be called.
        """
        if not self.are_ongoing or (not idle and self._now() < self._rests_until):
            return None
        line = self._line if len(self._ongoing) >= MOST or not self._later else self._later
        key = next(iter(line), None)
        return None if key is None else (key, line.pop(key))

    def end_turn(self, key: Hashable) -> None:
        """The leader was looked at: its decision goes on, or nobody asks for it."""
        if key not in self._line:
            self._ongoing.pop(key, None)

    def room_made(self) -> None:
        """Something became free: whoever is refused what it asked for before looks again."""
        for known in self._ongoing.values():
            known.is_outdated = True

    def forget(self, key: Hashable) -> None:
        """Somebody asks for something else, or for nothing."""
        self._ongoing.pop(key, None)
        self._line.pop(key, None)
        self._later.pop(key, None)


REST = 50
"""Rest after a search that was given up, as a multiple of the time that it took."""

_BYTES = 16 * 2**20


class Room:
    """Nodes where something may fit now that did not before, in the order of that. No threads."""

    def __init__(self) -> None:
        self.version = 0
        """Grows whenever room is made."""
        self._nodes: dict[str, int] = {}
        self._anywhere = 0

    def make(self, nodes: Iterable[str], *, anywhere: bool = False) -> None:
        """Room was made on ``nodes``; ``anywhere``: for a reason that no node tells."""
        self.version += 1
        if anywhere:
            self._anywhere = self.version
            self._nodes.clear()
            return
        for node in nodes:
            self._nodes.pop(node, None)
            self._nodes[node] = self.version

    def since(self, version: int) -> list[str] | None:
        """The nodes that have made room after ``version``, None when it may be any."""
        if version < self._anywhere:
            return None
        found: list[str] = []
        for node, made in reversed(self._nodes.items()):
            if made <= version:
                break
            found.append(node)
        return found


class _Failure(NamedTuple):
    """An obstacle that was found at a time, and that was there up to this version of ``Room``."""

    obstacle: Obstacle
    at: float
    version: int
    changed: bool = False


class FailedSearches:
    """Obstacles by what was asked for, and by the holds that do not bind who asks (``scope``).

    ``now`` gives monotonic seconds. Not thread-safe.
    """

    def __init__(self, room: Room, now: Callable[[], float]) -> None:
        self._room = room
        self._now = now
        self._known: BoundedCache[Hashable, _Failure] = BoundedCache(_BYTES, weigh=_weight)
        self._resting: dict[Hashable, tuple[Obstacle, float]] = {}

    def find(
        self, problem: Problem, scope: frozenset[str], could_serve: Callable[[Iterable[str]], bool]
    ) -> Obstacle | None:
        """Reason why an equal problem failed and would fail now; None when it is to be searched.

        ``could_serve`` tells of nodes whether one has what the problem asks for now. It is asked of
        those alone that have made room since the problem failed. What is told of them goes out of
        date: after some time with changes the problem is searched anew all the same.
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
        """The search for ``problem`` was given up after ``seconds``."""
        now = self._now()
        self._resting = {k: (o, until) for k, (o, until) in self._resting.items() if until > now}
        self._resting[_searched(problem)] = obstacle, now + REST * seconds


def _searched(problem: Problem) -> Hashable:
    key = alike(problem)
    return frozenset(claim.claim.ref.uid for claim in problem.claims) if key is None else key


def alike(problem: Problem) -> Hashable | None:
    """Equal for problems that fail alike; None for one that is tied to what its pod has already."""
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
    # What an obstacle names is for the pod's namespace only.
    pod = problem.pod
    rules = () if problem.rules is None else problem.rules.key
    preempts = pod.priority if pod.needs.preempts else None
    needs = _needs(pod.needs), preempts, rules
    return claims, needs, frozenset(problem.excluded), pod.node, pod.key[0]


def _needs(needs: PodNeeds) -> str:
    parts = [needs.requests, needs.node_selector, needs.affinity_terms, needs.tolerations]
    return json.dumps(parts, sort_keys=True)


def _weight(key: object, _value: object = None) -> int:
    """Bytes that nested tuples with texts take, roughly."""
    if isinstance(key, tuple | frozenset):
        return 100 + sum(map(_weight, key))
    return 50 + len(key) if isinstance(key, str) else 50
