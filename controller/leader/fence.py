"""A fence against late writes of a former leader, raised before the first decision of the next.

A leader sends nothing after its time is up. A request that it sent before may still lie in a
kernel's buffer or with a slow server, and take effect when the next leader has given the same
slices to another claim. The API server refuses that request if the claim has changed since, by the
request's resourceVersion. So the next leader changes every claim to which an allocation may be on
its way: the claims with our finalizer and without an allocation that a living pod names. None is
missed, as the finalizer is stored before an allocation is sent, and the mirrors list after the
former leader's time. If no living pod names a claim, no node prepares a late allocation of it, and
the allocation is removed when it is seen. A claim that is too large (``dra.claims.stored``)
is not changed: no leader allocates it as it is.

The fence's own write names no resourceVersion, so that it succeeds whatever state the claim is in.
Its answer shows an allocation that came before, which then counts like any other.

Nothing else needs a fence:

- A late write of our finalizer allocates nothing: the allocation is sent only after the answer to
  that write, by a controller that still leads.
- A late deallocation fits only a claim that has not changed, so not been reserved, since a leader
  found it unused. Its slices are given to others only when the watch has shown the claim without
  them, as after kube-scheduler takes an allocation back.
- A late write that takes ``reservedFor`` from a claim allocates nothing, and
  kube-controller-manager reserves the claim again for a pod that is bound.
- A late removal of our finalizer fits only a claim without an allocation, or one that is being
  deleted and that nobody may use any more.
- A scheduling gate lifted late, a pod's condition and a DeviceClass allocate nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

from controller import times
from controller.cluster.cluster import Cluster
from controller.worklist import WorkList
from controller.write.claims import ClaimWriter
from controller.write.in_flight import InFlight, WriteAnswer, one
from dra.claims.claims import Claim
from dra.common.resources import ObjectKey
from dra.kube.errors import ConflictError, KubeError, ObjectNotFoundError, UnavailableError

_log = logging.getLogger(__name__)

_NO_ANSWER = frozenset({0, 429, 503, 504})
"""HTTP statuses (0: no answer) by which the server cannot serve anybody, whatever the claim."""


class Fence:
    """The fence of one leadership. Owned by the thread that decides.

    ``mark``: the text that is written to the claims. It must differ from that of every earlier
    leadership, as a write that changes nothing leaves the resourceVersion as it is.
    ``now``: gives monotonic seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        writer: ClaimWriter,
        in_flight: InFlight,
        *,
        mark: str,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._in_flight = in_flight
        self._mark = mark
        self._now = now
        self._began = now()
        self._is_served = False
        self._work: WorkList[ObjectKey] = WorkList(now)
        self._open = {
            key: known.claim
            for key, known in cluster.claims.items()
            if known.claim.allocation is None and cluster.finalizer in known.claim.finalizers
            if any(pod.live for pod in cluster.pod_index.of_claim(key))
        }
        for key in self._open:
            self._work.add(key, 0)
        if self._open:
            _log.info("fencing claims", extra={"claims": len(self._open)})

    def stands(self) -> bool:
        return not self._open

    def absorb(self) -> None:
        """Take the answers that have come.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        self._in_flight.take_answers()

    def work(self) -> bool:
        """Begin to fence one claim; returns False if none is due or may be begun now."""
        if self._in_flight.full:
            return False
        key = self._work.pop()
        if key is None:
            return False
        self._send(key, self._open[key])
        return True

    @property
    def due(self) -> float:
        """The monotonic time of the next attempt; inf while answers are awaited."""
        return inf if self._in_flight.full else self._work.due

    def _send(self, key: ObjectKey, claim: Claim) -> None:
        job = one(self._writer.fence, claim, self._mark)
        self._in_flight.start([key], job, lambda answer: self._settle(key, answer))

    def _settle(self, key: ObjectKey, answer: WriteAnswer) -> None:
        error = answer.error
        self._is_served |= not (isinstance(error, KubeError) and error.status in _NO_ANSWER)
        fields = {"claim": str(self._open[key].ref), "error": str(error)}
        match error:
            case None | ObjectNotFoundError():
                pass
            case UnavailableError() | ConflictError() if self._may_pass(error):
                self._work.retry(key, 0)
                _log.warning("nothing is allocated before this claim is fenced", extra=fields)
                return
            case _:
                _log.error(
                    "claim not fenced: a former leader's allocation of it may still come, and the "
                    "node then refuses what overlaps",
                    extra=fields,
                )
        del self._open[key]
        for obj in answer.written:
            self._cluster.confirm_claim(obj)

    def _may_pass(self, error: KubeError) -> bool:
        """True if the error may pass: until the server has served any claim, or for a while."""
        serves_nobody = error.status in _NO_ANSWER and not self._is_served
        return serves_nobody or self._now() < self._began + times.FENCE
