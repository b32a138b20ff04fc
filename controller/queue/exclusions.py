"""Nodes that kube-scheduler has refused for a pod, left out for a while.

The scheduler takes an allocation back when the pod does not fit the node for a reason that only
the scheduler sees. Each time the node stays out longer, from 5 seconds to 5 minutes. A change of
the node ends the wait, but not sooner than a second after the refusal, and does not forgive: a
node that changes all the time must not become a hot loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dra.kube.timing import Backoff

FIRST_SECONDS = 5.0
LONGEST_SECONDS = 300.0
SHORTEST_SECONDS = 1.0
_SAME_REFUSAL_SECONDS = 1.0

REASON = "kube-scheduler took an allocation there back; left out for a while"


@dataclass(slots=True)
class _Refusal:
    at: float
    until: float
    backoff: Backoff


class Exclusions:
    """Refusals by pod UID and node. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._refusals: dict[str, dict[str, _Refusal]] = {}

    def refuse(self, pod_uid: str, node: str) -> float:
        """Leave ``node`` out for the pod; returns for how many seconds.

        Several claims of a pod that are taken back together count as one refusal.
        """
        now = self._now()
        nodes = self._refusals.setdefault(pod_uid, {})
        known = nodes.get(node)
        if known is not None and now - known.at < _SAME_REFUSAL_SECONDS:
            return known.until - now
        backoff = (
            known.backoff
            if known
            else Backoff(first=FIRST_SECONDS, limit=LONGEST_SECONDS, jitter=0)
        )
        wait = backoff.next_delay()
        nodes[node] = _Refusal(at=now, until=now + wait, backoff=backoff)
        return wait

    def excluded(self, pod_uid: str) -> dict[str, str]:
        """The nodes that are out for the pod now, with the reason."""
        now = self._now()
        return {n: REASON for n, r in self._refusals.get(pod_uid, {}).items() if r.until > now}

    def next_end(self, pod_uid: str) -> float | None:
        """The monotonic time at which the next node is let in again."""
        now = self._now()
        ends = [r.until for r in self._refusals.get(pod_uid, {}).values() if r.until > now]
        return min(ends, default=None)

    def ease(self, node: str) -> None:
        """The node has changed: let it in again soon."""
        for nodes in self._refusals.values():
            refusal = nodes.get(node)
            if refusal is not None:
                refusal.until = min(refusal.until, refusal.at + SHORTEST_SECONDS)

    def forget(self, pod_uid: str) -> None:
        """The pod is gone or runs."""
        self._refusals.pop(pod_uid, None)
