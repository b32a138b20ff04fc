"""Agenda: the pods and claims to look at, and those held up until a write is answered."""

from __future__ import annotations

from collections.abc import Callable

from controller.cluster.cluster import Cluster
from controller.queue.pod_queue import PodQueue
from controller.queue.worklist import WorkList
from dra.common.resources import ObjectKey
from dra.pods.pods import Pod


class Agenda:
    """Work of one leadership. ``now`` gives monotonic seconds. Not thread-safe.

    ``pods`` are those that wait for us, ``claims`` those that may have ended.
    """

    def __init__(self, cluster: Cluster, *, gate: str, now: Callable[[], float]) -> None:
        self.pods = PodQueue(now)
        self.claims: WorkList[ObjectKey] = WorkList(now)
        self._cluster = cluster
        self._gate = gate
        self._pods_held_up: set[ObjectKey] = set()
        self._claims_held_up: set[ObjectKey] = set()

    def waiting_pod(self, key: ObjectKey) -> Pod | None:
        """The pod of that name if it waits for us.

        Whoever holds another gate may still change where a pod can go.
        """
        pod = self._cluster.pods.get(key)
        if pod is None or not pod.claims or not pod.pending:
            return None
        return pod if all(gate == self._gate for gate in pod.gates) else None

    def add_pod(self, key: ObjectKey, *, at: float | None = None) -> bool:
        """Look at a pod at once, or at the monotonic time ``at``; False if it does not wait."""
        pod = self.waiting_pod(key)
        if pod is None:
            self.pods.leave(key)
        else:
            self.pods.add(pod, at=at)
        return pod is not None

    def add_claim(self, key: ObjectKey, *, at: float | None = None) -> None:
        """Look at a claim at once, or at the monotonic time ``at``."""
        self.claims.add(key, 0, at=at)

    def hold_up_pod(self, key: ObjectKey) -> None:
        """Look at a pod after the next answer."""
        self._pods_held_up.add(key)

    def hold_up_claim(self, key: ObjectKey) -> None:
        """Look at a claim after the next answer."""
        self._claims_held_up.add(key)

    def let_pod_rest(self, key: ObjectKey) -> None:
        """The next answer is nothing to a pod: it is tried again after a pause."""
        self._pods_held_up.discard(key)

    def let_claim_rest(self, key: ObjectKey) -> None:
        """The next answer is nothing to a claim: it is tried again after a pause."""
        self._claims_held_up.discard(key)

    def go_on(self) -> None:
        """Answers have come: look again at what was held up."""
        pods, self._pods_held_up = self._pods_held_up, set()
        claims, self._claims_held_up = self._claims_held_up, set()
        for key in pods:
            self.add_pod(key)
        for key in claims:
            self.add_claim(key)
