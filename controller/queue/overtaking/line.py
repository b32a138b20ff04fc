"""Line of waiting pods and gangs, and how often each was overtaken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dra.pods.pods import Pod

OVERTAKEN = 20
"""Pods that may be served before one that has waited longer or is more urgent, or a gang."""

PATIENCE_SECONDS = 120.0
"""Time after which a single overtaking is enough."""

_REMEMBERED = 4096
"""Served pods that are remembered; whoever was not looked at for longer was overtaken by them."""

Urgency = tuple[int, str, str, str]


def urgency(pod: Pod) -> Urgency:
    """Place of a pod in the line: higher priority first, then older, then by name."""
    return (-pod.priority, pod.created, *pod.key)


def priority(place: Urgency) -> int:
    """The priority of a pod that stands there."""
    return -place[0]


@dataclass(slots=True)
class _Waiting:
    """``read`` is the number of served pods that are in ``overtaken`` already, if they are."""

    urgency: Urgency
    since: float
    read: int
    overtaken: int = 0


class Line:
    """Waiting pods and gangs by UID. ``now`` gives monotonic seconds. Not thread-safe.

    Who was served is written down once, and counted when somebody asks: thousands may wait.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._waiting: dict[str, _Waiting] = {}
        self._served: list[Urgency] = []
        self._forgotten = 0

    def wait(self, uid: str, place: Urgency) -> None:
        """Somebody with that place waits until something becomes free."""
        known = self._waiting.get(uid)
        if known is None or known.urgency != place:
            read = self._forgotten + len(self._served)
            self._waiting[uid] = _Waiting(place, self._now(), read)

    def leave(self, uid: str) -> None:
        """The pod or gang waits no longer."""
        self._waiting.pop(uid, None)

    def served(self, pod: Pod) -> None:
        """``pod`` was served, before those that are more urgent."""
        if not self._waiting:
            return
        self._served.append(urgency(pod))
        if len(self._served) >= 2 * _REMEMBERED:
            del self._served[:_REMEMBERED]
            self._forgotten += _REMEMBERED

    def is_due(self, uid: str) -> bool:
        """True if it was overtaken too often, or once after a long wait."""
        known = self._waiting.get(uid)
        if known is None:
            return False
        self._count(known)
        patient = self._now() - known.since < PATIENCE_SECONDS
        return known.overtaken >= (OVERTAKEN if patient else 1)

    def _count(self, known: _Waiting) -> None:
        """Bring ``overtaken`` up to date; beyond the bound nobody needs to know it."""
        known.overtaken += max(0, self._forgotten - known.read)
        start = max(0, known.read - self._forgotten)
        if known.overtaken < OVERTAKEN:
            known.overtaken += sum(other > known.urgency for other in self._served[start:])
        known.read = self._forgotten + len(self._served)
