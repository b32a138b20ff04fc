"""Refusals: what is not tried again for now, until when, and why; one table for all rules.

What is about one pod, claim or gang is in its record; here is what is about kinds of them, or what
no record is kept of. A refusal stands until a time, or until room is made on a node that could
serve.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from enum import Enum, auto
from math import inf

from controller import times
from controller.cluster.records import Refusal
from dra.claims.reasons import Obstacle, Reason
from dra.common.cache import BoundedCache

_UNTOLD = Obstacle(Reason.WAITING, "")

_BYTES = 16 * 2**20
"""Upper bound on what is remembered about each of ``About``."""


class About(Enum):
    """Kinds of refusals, each with what its keys are."""

    SEARCH = auto()
    """No room: problems that fail ``alike``, with the held-back devices that they may take."""
    LONG_SEARCH = auto()
    """A search took too long: the same without the devices; whatever becomes free."""
    PLAN = auto()
    """No pods can leave to make room: kinds of pods."""
    HOLD = auto()
    """Nothing can be held back: kinds of waiters."""
    HELD_NODE = auto()
    """Holds there were in vain: nodes."""
    UNMOVED = auto()
    """Holds waited for them in vain: claims, by UID."""
    GPU = auto()
    """A slice could not be made: GPUs, by node and name."""


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


CouldServe = Callable[[Iterable[str]], bool]
"""Returns True if one of some nodes, where room was made, has what was refused now."""


class Refused:
    """The table of one leadership. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.room = Room()
        self._known: dict[About, BoundedCache[Hashable, Refusal]] = {
            about: BoundedCache(_BYTES, weigh=_weight) for about in About
        }

    def note(
        self,
        about: About,
        what: Hashable,
        why: Obstacle = _UNTOLD,
        *,
        seconds: float = inf,
        room: int | None = None,
    ) -> None:
        """Refuse ``what`` for ``seconds``; ``room``: at most until room is made after that."""
        now = self._now()
        self._known[about].put(what, Refusal(why, now, now + seconds, room))

    def again(self, about: About, what: Hashable, *, pauses: tuple[float, float]) -> None:
        """Refuse ``what`` for the first of ``pauses``, or for twice as long as the last time.

        If it is still refused that begins anew, and is no longer than before. What was not refused
        for the longest of ``pauses`` is forgotten.
        """
        now, known = self._now(), self._known[about].find(what)
        if known is None or now >= known.until + pauses[1]:
            known = Refusal(_UNTOLD, -inf, -inf, pause=times.growing(pauses))
            self._known[about].put(what, known)
        if now >= known.until:
            known.again(now)
        else:
            known.at, known.until = now, now + known.until - known.at

    def find(
        self, about: About, what: Hashable, could_serve: CouldServe | None = None
    ) -> Refusal | None:
        """The refusal of ``what``; None if none stands (see ``stands``)."""
        known = self._known[about].find(what)
        return known if known is not None and self.stands(known, could_serve) else None

    def stands(self, refusal: Refusal, could_serve: CouldServe | None = None) -> bool:
        """True until its time is over, or room is made that ``could_serve``.

        Without ``could_serve`` any room ends it. The details of a refusal go out of date by room
        that does not help, so that it ends after a while anyway.
        """
        now, room = self._now(), self.room
        if now >= refusal.until:
            return False
        if refusal.room is not None and refusal.room != room.version:
            nodes = room.since(refusal.room)
            if could_serve is None or nodes is None or (nodes and could_serve(nodes)):
                return False
            if nodes:
                refusal.room, refusal.changed = room.version, True
        return not refusal.changed or now < refusal.at + times.REFUSAL_DETAILS

    def prove(self, about: About, what: Hashable) -> None:
        """Forget a refusal of ``what`` whose time is over: it was tried since, and was right."""
        known = self._known[about].find(what)
        if known is not None and self._now() >= known.until:
            self._known[about].drop(what)

    def standing(self, about: About) -> Iterator[Hashable]:
        """Keys of the refusals whose time is not over."""
        return (what for what, known in self._known[about].items() if self._now() < known.until)

    def knows(self, about: About, what: Hashable, *, within: float = inf) -> bool:
        """True if ``what`` is refused, or was ``within`` so many seconds and is not forgotten."""
        known = self._known[about].find(what)
        return known is not None and self._now() < known.until + within

    def keep(self, about: About, present: Collection[Hashable]) -> None:
        """Forget what is not ``present`` any more."""
        known = self._known[about]
        for what in [what for what, _ in known.items() if what not in present]:
            known.drop(what)

    def weight(self, about: About) -> int:
        """Number of bytes, roughly, that are remembered."""
        return self._known[about].weight


def _weight(key: object, _value: object = None) -> int:
    """Rough number of bytes that nested tuples with texts take."""
    if isinstance(key, tuple | frozenset):
        return 100 + sum(map(_weight, key))
    return 50 + len(key) if isinstance(key, str) else 50
