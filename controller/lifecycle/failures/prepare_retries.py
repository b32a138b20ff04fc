"""Pods for which kubelet is made to ask again at once, where a failed Prepare would work now.

Left alone, kubelet asks again after 60 to 90 s. It is told once for each failure: when what was in
the way is gone, when the failure passes by itself, when the plugin is back that was killed in the
middle of the call, or when the call never came, of which the claim's status tells. A mark on the
pod says for which, so that another leader does not repeat it.

A call does not come where kubelet may not read the claim yet. It reads claims before it calls; the
API server lets it once its node authorizer has heard that the pod is bound
(plugin/pkg/auth/authorizer/node/graph_populator.go, 1.36), of which kubelet hears at the same time.
Where the API server is busy a third of the pods of a burst lose that race.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from controller.cluster.cluster import Cluster
from controller.writing.in_flight import InFlight, WriteAnswer
from controller.writing.pod_writer import PodWriter
from dra.claims.conditions import unasked_since
from dra.common.resources import Obj, at
from dra.gpu.holdings import find_blocker
from dra.gpu.inventory import FailedClaim, Inventory
from dra.gpu.names import prepare_retry
from dra.kube.timing import Backoff
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)

GAP_SECONDS = 5.0
"""Shortest time between two for one pod; it doubles with each."""

LONGEST_GAP_SECONDS = 80.0

_MOST = 32
"""Remembered occasions of one pod."""

_SECOND = len("2026-01-01T00:00:00")
"""An allocation's time is told in whole seconds."""


@dataclass(slots=True)
class _Told:
    """Occasions that a pod was marked for, and when the next may be.

    ``read`` is the mark that it had when it was seen first: what is not later counts as told.
    Otherwise times are only told apart, as a node's clock may be set back.
    """

    read: str
    occasions: tuple[str, ...] = ()
    not_before: float = float("-inf")
    backoff: Backoff = field(
        default_factory=lambda: Backoff(first=GAP_SECONDS, limit=LONGEST_GAP_SECONDS, jitter=0)
    )


class PrepareRetries:
    """Marks pods that wait on their node. ``now`` gives monotonic seconds."""

    def __init__(
        self,
        cluster: Cluster,
        writer: PodWriter,
        *,
        in_flight: InFlight,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._in_flight = in_flight
        self._now = now
        self._told: dict[str, _Told] = {}
        self._blocked: dict[str, str] = {}

    def look_at(self, pod: Pod) -> float | None:
        """Mark ``pod`` if kubelet had better ask again for its claims.

        Returns the monotonic time to look again, None if there is no reason to.
        """
        found = self._occasions(pod) if pod.node and pod.pending else frozenset()
        if not found:
            return None
        told = self._told.get(pod.uid) or self._read(pod)
        new = sorted(o for o in found.difference(told.occasions) if o > told.read)
        if not new:
            return None
        if self._now() < told.not_before:
            return told.not_before
        told.not_before = self._now() + told.backoff.next_delay()
        before, told.occasions = told.occasions, (*told.occasions, *new)[-_MOST:]
        self._mark(pod, told, new[-1], before)
        return told.not_before

    def forget(self, pod_uid: str) -> None:
        """The pod is gone."""
        self._told.pop(pod_uid, None)

    def forget_claim(self, claim_uid: str) -> None:
        """The claim is gone."""
        self._blocked.pop(claim_uid, None)

    def _read(self, pod: Pod) -> _Told:
        """Mark that a pod has, maybe just now by the leader before."""
        marks = at(pod.obj, "metadata", "annotations", default={})
        mark = str(marks.get(prepare_retry(self._cluster.driver), ""))
        told = self._told[pod.uid] = _Told(mark)
        if mark:
            told.not_before = self._now() + GAP_SECONDS
        return told

    def _mark(self, pod: Pod, told: _Told, occasion: str, before: tuple[str, ...]) -> None:
        def job() -> Iterator[Obj]:
            yield self._writer.request_prepare(pod, occasion)

        def done(answer: WriteAnswer) -> None:
            fields = {"pod": str(pod), "node": pod.node}
            if answer.error is None:
                _log.info("kubelet is to prepare the claims again", extra=fields)
                return
            told.occasions = before  # tried again when it is looked at again
            fields["error"] = str(answer.error)
            _log.info("kubelet could not be told to prepare the claims again", extra=fields)

        self._in_flight.start((), job, done)

    def _occasions(self, pod: Pod) -> frozenset[str]:
        """Times of what makes another try worth while; none if something is in the way."""
        inventory = self._cluster.inventory(pod.node)
        if inventory is None:
            return frozenset()
        failed = {f.claim.uid: f for f in inventory.failed_claims}
        found: list[str] = []
        for key in pod.claim_keys:
            known = self._cluster.claims.get(key)
            allocation = known.claim.allocation if known is not None else None
            if known is None or allocation is None or allocation.node != pod.node:
                continue
            uid = known.claim.ref.uid
            devices = [d.device for d in allocation.of_driver(self._cluster.driver)]
            if not devices:
                continue
            if uid not in failed:
                since = at(known.obj, "status", "allocation", "allocationTimestamp", default="")
                if since[:_SECOND] <= inventory.resumed[:_SECOND]:
                    found.append(inventory.resumed)
                found.append(unasked_since(known.obj, driver=self._cluster.driver))
            elif self._is_blocked(failed[uid], devices, inventory):
                return frozenset()
            elif failed[uid].passing or self._blocked.get(uid) == failed[uid].time:
                found.append(failed[uid].time)
        return frozenset(filter(None, found))

    def _is_blocked(self, failed: FailedClaim, devices: list[str], inventory: Inventory) -> bool:
        """True if something is in the way that others see too; that is remembered."""
        if any(find_blocker(device, failed.claim.uid, inventory) for device in devices):
            self._blocked[failed.claim.uid] = failed.time
            return True
        return False
