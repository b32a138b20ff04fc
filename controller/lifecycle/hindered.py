"""Allocations of pods that something else than their node keeps from running, given up.

A volume claim or another claim of the pod may be deleted after the allocation, and a claim of
another driver may find nothing: kube-scheduler then waits, and the slices stand idle. Nor need a
scheduler ever bind a pod that lacks nothing: its node is kept free for it for a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.cluster.cluster import Cluster
from controller.lifecycle.giving_up import GivingUp
from dra.allocator.problem import Examined, Satisfied
from dra.claims.reader import KnownClaim
from dra.claims.reasons import Obstacle, Reason
from dra.kube.timing import Backoff
from dra.pods.pods import Pod

GRACE_SECONDS = 30.0
"""Time for which a pod may be hindered before its unused allocations are given up."""

BINDING_SECONDS = 600.0
"""The same where kube-scheduler makes room or waits for a volume to be made; ``bindTimeoutSeconds``
of its plugin VolumeBinding, unless configured."""

CHARGED_SECONDS = 60.0
"""Time for which an allocated pod that nobody binds keeps others from its CPU, ports and zone."""

TAKE_UP_SECONDS = 360.0
"""Time for a scheduler to bind a pod that lacks nothing. kube-scheduler looks at each pod within
five minutes again, whatever it was refused for (``podMaxInUnschedulablePodsDuration``)."""

_NOT_BOUND = Obstacle(
    Reason.SCHEDULER,
    f"no scheduler bound it within {TAKE_UP_SECONDS:g} s of its allocation, which was given back "
    "and is tried again after a pause: see in the pod's events why, and whether its scheduler runs",
)

FIRST_SECONDS = 30.0
LONGEST_SECONDS = 300.0
"""Pauses before slices are tried again for a pod that could not use them: kube-scheduler allocates
a claim of another driver only once ours are there."""

FindHindrance = Callable[[Pod], Obstacle | None]


@dataclass(slots=True)
class _Rest:
    until: float
    backoff: Backoff
    obstacle: Obstacle


@dataclass(slots=True)
class _Wait:
    """A pod's wait with what it has, and for ``reason`` with what it cannot use, since when."""

    allocated: float
    reason: str
    since: float


class Hindered:
    """Pods that wait to be bound and cannot run yet. ``now`` gives monotonic seconds.

    ``find`` says what keeps a pod from running wherever it is.
    """

    def __init__(
        self,
        cluster: Cluster,
        giving_up: GivingUp,
        find: FindHindrance,
        *,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._giving_up = giving_up
        self._find = find
        self._now = now
        self._waits: dict[str, _Wait] = {}
        self._rests: dict[str, _Rest] = {}

    def look_at(self, pod: Pod, examined: Examined) -> float | None:
        """Give up what ``pod``, which is pending, has and cannot use for long.

        Returns the monotonic time to look again, None if there is no reason to.
        """
        unused, now = self._giving_up.unused_of(pod), self._now()
        if not unused and not self._cluster.sent_to(pod):
            self._waits.pop(pod.uid, None)
            return None
        hindrance = _hindrance(examined) if unused else None
        reason = hindrance.reason if hindrance is not None else ""
        wait = self._waits.setdefault(pod.uid, _Wait(now, reason, now))
        if wait.reason != reason:
            wait.reason, wait.since = reason, now
        kept_until = wait.allocated + CHARGED_SECONDS
        if kept_until <= now and not pod.nominated:
            self._cluster.end_charge(pod.key)
        times = [kept_until] if now < kept_until else []
        if hindrance is not None:
            end = wait.since + self._patience(pod, hindrance)
            if now >= end:
                self._give_up(pod, unused, hindrance)
                return None
            times.append(end)
        return min(times, default=None)

    def _give_up(self, pod: Pod, unused: list[tuple[KnownClaim, str]], hindrance: Obstacle) -> None:
        for known, node in unused:
            key = (known.claim.ref.namespace, known.claim.ref.name)
            pods = self._cluster.pods_of(key)
            others = [p for p in pods if p.pending and p.uid != pod.uid]
            if hindrance is _NOT_BOUND:
                why = f"no scheduler bound its pod within {TAKE_UP_SECONDS:g} s"
                for other in others:
                    self._rest(other.uid, hindrance)
            elif all(self._find(other) for other in others):
                why = f"its pod cannot run: {hindrance.message}"
            else:
                continue
            self._rest(pod.uid, hindrance)
            self._giving_up.give_up(known, f"the allocation on node {node} is given up, as {why}")

    def resting(self, pod_uid: str, foreign: Obstacle | None) -> tuple[float, Obstacle] | None:
        """Time before which nothing is tried for a pod that is hindered still, and by what.

        ``foreign`` is that a claim of another driver is not served.
        """
        rest = self._rests.get(pod_uid)
        if rest is None or self._now() >= rest.until:
            return None
        obstacle = foreign or (_NOT_BOUND if rest.obstacle is _NOT_BOUND else None)
        return None if obstacle is None else (rest.until, obstacle)

    def forget(self, pod_uid: str) -> None:
        """The pod is gone."""
        self._waits.pop(pod_uid, None)
        self._rests.pop(pod_uid, None)

    def _patience(self, pod: Pod, hindrance: Obstacle) -> float:
        patience = TAKE_UP_SECONDS if hindrance is _NOT_BOUND else GRACE_SECONDS
        return BINDING_SECONDS if self._is_being_bound(pod) else patience

    def _rest(self, pod_uid: str, obstacle: Obstacle) -> None:
        """Count a pod once, be its claims given up together or in several steps."""
        rest = self._rests.get(pod_uid)
        if rest is None:
            backoff = Backoff(first=FIRST_SECONDS, limit=LONGEST_SECONDS, jitter=0)
            rest = self._rests[pod_uid] = _Rest(self._now(), backoff, obstacle)
        rest.obstacle = obstacle
        if rest.until <= self._now():
            rest.until = self._now() + rest.backoff.next_delay()

    def _is_being_bound(self, pod: Pod) -> bool:
        volumes = self._cluster.hosts.volumes
        made = (c.selected_node for c in volumes.claims_of(pod) if volumes.is_late(c))
        return bool(pod.nominated) or any(made)


def _hindrance(examined: Examined) -> Obstacle | None:
    if examined.hindrance is None and isinstance(examined.found, Satisfied):
        return _NOT_BOUND
    return examined.hindrance
