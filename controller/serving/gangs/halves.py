"""Gangs that hold slices for some of their pods only, and what becomes of these.

That happens where a write fails, where kube-scheduler takes an allocation back, and where a pod is
deleted. What such a gang has and does not use is given back: at once if there is no room for the
others, and after a while whatever the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.cluster.cluster import Cluster
from controller.cluster.known_gangs import Gang
from controller.lifecycle.giving_up import GivingUp
from controller.serving.gangs.counts import GangCounts
from dra.gangs.membership import GangKey
from dra.kube.timing import Backoff
from dra.pods.pods import Pod

GRACE_SECONDS = 30.0
"""Time for which a gang may hold slices for some of its pods only and not use them."""

FIRST_SECONDS = 30.0
LONGEST_SECONDS = 300.0
"""First and longest pause before a gang is tried again that gave back slices after that time."""


@dataclass(slots=True)
class _Half:
    since: float
    gives_back: bool = False


@dataclass(slots=True)
class _Rest:
    until: float
    backoff: Backoff


class HalfGangs:
    """Pods that have slices and lack company. ``now`` gives monotonic seconds."""

    def __init__(
        self,
        cluster: Cluster,
        counts: GangCounts,
        giving_up: GivingUp,
        *,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._counts = counts
        self._giving_up = giving_up
        self._now = now
        self._halves: dict[GangKey, _Half] = {}
        self._rests: dict[GangKey, _Rest] = {}

    def look_at(self, pod: Pod) -> float | None:
        """Give back what the gang of ``pod`` has and does not use, if it was not whole for long.

        Returns the monotonic time to look again, None if there is no reason to.
        """
        gang = self._cluster.gangs.find(pod.key)
        if gang is None or not self._giving_up.unused_of(pod):
            return None
        if not self._counts.is_half(gang):
            self._halves.pop(gang.key, None)
            return None
        half = self._halves.setdefault(gang.key, _Half(self._now()))
        if not half.gives_back:
            if self._now() < half.since + GRACE_SECONDS:
                return half.since + GRACE_SECONDS
            self._rest(gang.key)
            self.give_back(gang)
        else:
            self._give_up(pod, gang)
        return None

    def give_back(self, gang: Gang) -> None:
        """Give back what pods of ``gang`` have and do not use: there is no room for the others."""
        for key in gang.members:
            pod = self._cluster.pods[key]
            if pod.pending and self._giving_up.unused_of(pod):
                half = self._halves.setdefault(gang.key, _Half(self._now()))
                half.gives_back = True
                self._give_up(pod, gang)

    def begins(self, gang: GangKey, *, anew: bool) -> None:
        """A gang is about to have slices for all its pods; ``anew``: it has none yet."""
        if anew:
            self._halves.pop(gang, None)
        elif gang in self._halves:
            self._halves[gang].gives_back = False

    def rests_until(self, gang: GangKey) -> float:
        """The monotonic time before which nothing is tried for a gang."""
        rest = self._rests.get(gang)
        return rest.until if rest is not None else float("-inf")

    def forget(self, gang: GangKey) -> None:
        """The gang is gone."""
        self._halves.pop(gang, None)
        self._rests.pop(gang, None)

    def _give_up(self, pod: Pod, gang: Gang) -> None:
        for known, node in self._giving_up.unused_of(pod):
            key = (known.claim.ref.namespace, known.claim.ref.name)
            others = (p for p in self._cluster.pods_of(key) if p.live and p.uid != pod.uid)
            if all(other.key in gang.members for other in others):
                why = f"not enough pods of {gang.key} have theirs"
                self._giving_up.give_up(
                    known, f"the allocation on node {node} is given up, as {why}"
                )

    def _rest(self, gang: GangKey) -> None:
        rest = self._rests.get(gang)
        if rest is None:
            backoff = Backoff(first=FIRST_SECONDS, limit=LONGEST_SECONDS, jitter=0)
            rest = self._rests[gang] = _Rest(self._now(), backoff)
        if rest.until <= self._now():
            rest.until = self._now() + rest.backoff.next_delay()
