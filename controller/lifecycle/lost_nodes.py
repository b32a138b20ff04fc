"""Allocations on nodes where their pod can go no more, given up before it is bound.

A node may be deleted, or tainted because it is not ready, after a claim was allocated there.
kube-scheduler takes such an allocation back only where another node refuses the claim itself.
"""

from __future__ import annotations

from collections.abc import Callable

from controller.cluster.cluster import Cluster
from controller.lifecycle.giving_up import GivingUp
from dra.pods.nodefit import find_barrier
from dra.pods.pods import Pod

GRACE_SECONDS = 30.0
"""Time for which a node may be away before its unused allocations are given up."""


class LostNodes:
    """Pods that wait to be bound where they cannot go. ``now`` gives monotonic seconds."""

    def __init__(self, cluster: Cluster, giving_up: GivingUp, *, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._giving_up = giving_up
        self._now = now
        self._since: dict[str, float] = {}

    def look_at(self, pod: Pod) -> float | None:
        """Give up what ``pod``, which is pending, has where it cannot go for long.

        Returns the monotonic time to look again, None if there is no reason to.
        """
        lost = [
            (known, node, why)
            for known, node in self._giving_up.unused_of(pod)
            if (why := self._why_lost(pod, node))
            and all(
                self._why_lost(other, node)
                for other in self._cluster.pods_of(
                    (known.claim.ref.namespace, known.claim.ref.name)
                )
            )
        ]
        if not lost:
            self._since.pop(pod.uid, None)
            return None
        end = self._since.setdefault(pod.uid, self._now()) + GRACE_SECONDS
        if self._now() < end:
            return end
        for known, node, why in lost:
            message = (
                f"the allocation on node {node} is given up, as its pod cannot go there: {why}"
            )
            self._giving_up.give_up(known, message)
        return None

    def forget(self, pod_uid: str) -> None:
        """The pod is gone."""
        self._since.pop(pod_uid, None)

    def _why_lost(self, pod: Pod, node: str) -> str:
        """Reason why ``pod`` cannot be bound to ``node`` whatever becomes free; empty if it can."""
        facts = self._cluster.hosts.facts.get(node)
        if facts is None:
            return "there is no such Node"
        barrier = find_barrier(pod.needs, facts)
        return "" if barrier is None else barrier.message
