"""Decisions and plans that take long, made in parts with other work in between.

Each is carried on by the looks at one pod, its leader. Parts take turns, and rest together as long
as the last one took while other work is due: whoever asks for what is hard to find gets half of the
deciding thread's time at most, and gets it always.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dra.common.resources import ObjectKey

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
