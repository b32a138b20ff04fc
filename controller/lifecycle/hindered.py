"""Allocations of pods that something else than their node keeps from running, given up.

A volume claim or another claim of the pod may be deleted after the allocation, and a claim of
another driver may find nothing: kube-scheduler then waits, and the slices stand idle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.cluster.cluster import Cluster
from controller.lifecycle.giving_up import GivingUp
from dra.claims.reasons import Obstacle
from dra.kube.timing import Backoff
from dra.pods.pods import Pod

GRACE_SECONDS = 30.0
"""Time for which a pod may be hindered before its unused allocations are given up."""

BINDING_SECONDS = 600.0
"""The same where kube-scheduler makes room or waits for a volume to be made; ``bindTimeoutSeconds``
of its plugin VolumeBinding, unless configured."""

FIRST_SECONDS = 30.0
LONGEST_SECONDS = 300.0
"""Pauses before slices are tried again for a claim of another driver: kube-scheduler allocates that
only once ours are there."""

FindHindrance = Callable[[Pod], Obstacle | None]


@dataclass(slots=True)
class _Rest:
    until: float
    backoff: Backoff


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
        self._since: dict[str, float] = {}
        self._rests: dict[str, _Rest] = {}

    def look_at(self, pod: Pod, hindrance: Obstacle | None) -> float | None:
        """Give up what ``pod``, which is pending, has and cannot use for long.

        Returns the monotonic time to look again, None if there is no reason to.
        """
        unused = [] if hindrance is None else self._giving_up.unused_of(pod)
        if hindrance is None or not unused:
            self._since.pop(pod.uid, None)
            return None
        patience = BINDING_SECONDS if self._is_being_bound(pod) else GRACE_SECONDS
        end = self._since.setdefault(pod.uid, self._now()) + patience
        if self._now() < end:
            return end
        for known, node in unused:
            key = (known.claim.ref.namespace, known.claim.ref.name)
            waiting = (p for p in self._cluster.pods_of(key) if p.pending and p.uid != pod.uid)
            if all(self._find(other) for other in waiting):
                self._rest(pod.uid)
                why = f"its pod cannot run: {hindrance.message}"
                self._giving_up.give_up(
                    known, f"the allocation on node {node} is given up, as {why}"
                )
        return None

    def rests_until(self, pod_uid: str) -> float | None:
        """The monotonic time before which nothing is tried for a pod that is hindered still."""
        rest = self._rests.get(pod_uid)
        return rest.until if rest is not None and self._now() < rest.until else None

    def forget(self, pod_uid: str) -> None:
        """The pod is gone."""
        self._since.pop(pod_uid, None)
        self._rests.pop(pod_uid, None)

    def _rest(self, pod_uid: str) -> None:
        """Count a pod once, be its claims given up together or in several steps."""
        rest = self._rests.get(pod_uid)
        if rest is None:
            backoff = Backoff(first=FIRST_SECONDS, limit=LONGEST_SECONDS, jitter=0)
            rest = self._rests[pod_uid] = _Rest(self._now(), backoff)
        if rest.until <= self._now():
            rest.until = self._now() + rest.backoff.next_delay()

    def _is_being_bound(self, pod: Pod) -> bool:
        volumes = self._cluster.hosts.volumes
        made = (c.selected_node for c in volumes.claims_of(pod) if volumes.is_late(c))
        return bool(pod.nominated) or any(made)
