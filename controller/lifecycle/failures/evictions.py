"""Pods that are bound where their slice cannot be made, evicted where that is wished.

Nobody is evicted unless the administrator lets the controller do it and the pod's label, or the
configuration of its claim or class, asks for it. By class or claim only pods are that a controller
makes anew. PodDisruptionBudgets are respected: it is the Eviction API that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from controller.cluster.cluster import Cluster
from controller.lifecycle.failures.wishes import preparation
from controller.reporting.report import Reporter
from controller.writing.in_flight import InFlight, WriteAnswer
from controller.writing.pod_writer import PodWriter
from dra.claims.conditions import PREPARE_FAILED, PREPARE_FAILING, failed_prepare
from dra.claims.reader import KnownClaim
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import Obj, at
from dra.gpu.names import on_failure
from dra.kube.errors import ForbiddenError
from dra.kube.timing import Backoff
from dra.pods.pods import Pod

FIRST_SECONDS = 10.0
LONGEST_SECONDS = 300.0
"""Pauses between two requests for a pod whose eviction was refused, by a budget for instance."""

_FAILED = frozenset({PREPARE_FAILED, PREPARE_FAILING})
_EVICT = "evict"


@dataclass(slots=True)
class _Request:
    not_before: float = float("-inf")
    backoff: Backoff = field(
        default_factory=lambda: Backoff(first=FIRST_SECONDS, limit=LONGEST_SECONDS, jitter=0)
    )


class Evictions:
    """Requests of one leadership. ``now`` gives monotonic seconds."""

    def __init__(
        self,
        cluster: Cluster,
        writer: PodWriter,
        reporter: Reporter,
        *,
        in_flight: InFlight,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._reporter = reporter
        self._in_flight = in_flight
        self._now = now
        self._requests: dict[str, _Request] = {}

    def look_at(self, pod: Pod) -> float | None:
        """Have ``pod`` evicted if its node cannot make its slices and that is wished.

        Returns the monotonic time to look again, None if there is no reason to.
        """
        why = self._why(pod) if pod.node and pod.pending else ""
        if not why:
            return None
        if not self._writer.evicts:
            message = (
                "its eviction is asked for, and the controller may not evict pods: run it with "
                f"--evict-failed (chart: evictFailed.enabled). {why}"
            )
            self._reporter.evicted(pod, Obstacle(Reason.NOT_EVICTED, message))
            return None
        request = self._requests.setdefault(pod.uid, _Request())
        if self._now() < request.not_before:
            return request.not_before
        request.not_before = self._now() + request.backoff.next_delay()
        self._request(pod, why)
        return request.not_before

    def forget(self, pod_uid: str) -> None:
        """The pod is gone."""
        self._requests.pop(pod_uid, None)

    def _request(self, pod: Pod, why: str) -> None:
        def job() -> Iterator[Obj]:
            yield self._writer.evict(pod)

        def done(answer: WriteAnswer) -> None:
            error = answer.error
            if error is None:
                message = f"evicted, so that another is placed elsewhere: {why}"
                self._reporter.evicted(pod, Obstacle(Reason.EVICTED, message))
                return
            remedy = (
                "; grant the controller create on pods/eviction (chart: evictFailed.enabled)"
                if isinstance(error, ForbiddenError)
                else ""
            )
            message = f"it cannot be evicted now, which is tried again: {error}{remedy}. {why}"
            self._reporter.evicted(pod, Obstacle(Reason.NOT_EVICTED, message))

        self._in_flight.start((), job, done)

    def _why(self, pod: Pod) -> str:
        """Reason why ``pod`` is to be evicted, in words; empty if it is not."""
        for key in pod.claim_keys:
            known = self._cluster.claims.get(key)
            if known is None or known.claim.allocation is None:
                continue
            said = failed_prepare(known.obj, driver=self._cluster.driver, reasons=_FAILED)
            if said and known.claim.allocation.node == pod.node and self._is_wished(pod, known):
                return f"node {pod.node} cannot prepare claim {known.claim.ref}: {said}"
        return ""

    def _is_wished(self, pod: Pod, known: KnownClaim) -> bool:
        driver = self._cluster.driver
        if label := pod.labels.get(on_failure(driver)):
            return label == _EVICT
        owners = at(pod.obj, "metadata", "ownerReferences")
        if known.claim.allocation is None or not any(o.get("controller") for o in owners):
            return False
        config = known.claim.allocation.config
        return preparation(config, driver=driver).on_failure == _EVICT
