"""Answers to writes for pods and claims: what failed is tried again, and so are those who wait."""

from __future__ import annotations

from collections.abc import Callable

from controller.cluster.cluster import Cluster
from controller.serving.agenda import Agenda
from controller.serving.retries import Retries
from dra.common.resources import ObjectKey


class Answers:
    """Takes what came of writes. ``now`` gives monotonic seconds.

    Both methods raise NotLeadingError if that is what went wrong.
    """

    def __init__(
        self, cluster: Cluster, agenda: Agenda, retries: Retries, *, now: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._agenda = agenda
        self._retries = retries
        self._now = now

    def to_pod(self, key: ObjectKey, error: Exception | None) -> None:
        """A pod's write was answered; changes that came meanwhile are looked at next."""
        if error is not None:
            self._agenda.let_pod_rest(key)
        self._retries.retry_pod(key, error)

    def to_claim(self, key: ObjectKey, error: Exception | None) -> None:
        """A write to a claim was answered; its pods may wait for that."""
        if error is not None:
            self._agenda.let_claim_rest(key)
        pause = self._retries.retry_claim(key, error)
        for pod in self._cluster.pods_of(key) if error is not None else ():
            self._agenda.add_pod(pod.key, at=self._now() + pause)
