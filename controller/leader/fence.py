"""A fence against late writes of a former leader, raised before the first decision of the next.

A leader sends nothing after its time is up. A request that it sent before may still lie in a
kernel's buffer or with a slow server, and take effect when the next leader has given the same
slices to another claim. The API server refuses that request if the claim has changed since, by the
request's resourceVersion. So the next leader changes every claim to which an allocation may be on
its way: the claims with our finalizer and without an allocation that a living pod names. None is
missed, as the finalizer is stored before an allocation is sent, and the mirrors list after the
former leader's time. There may be many if claims get the finalizer when they are created.

If no living pod names a claim, no node prepares a late allocation of it, and the allocation is
removed when it is seen. Such claims are changed next, each once and all within a second, so that
the next leader may need no fence. The first decision does not wait longer for them. A claim that is
too large (``controller.cluster.trim``) is not changed: no leader allocates it as it is.

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
- A late reservation in a MigNode names the list that it replaces: it fails, or brings ids that this
  leader sees and removes. It allocates nothing.
- A scheduling gate lifted late, a pod's condition and a DeviceClass allocate nothing.

Most leaders end cleanly, by SIGTERM. They wait for the answers to their requests; if all came, the
next leader needs no fence around the waiting claims, which may be thousands. The Lease is given
back *settled* (``dra.kube.lease``) only if

- no allocation of earlier leaders can arrive: the Lease was settled when it was taken, or the fence
  of this leader stands and has no gap, and
- every allocation that this leader sent has been answered, or its claim was seen to have changed
  since, so that the allocation no longer fits.

Otherwise the Lease is given back unsettled, and the next leader raises its fence. It need not wait
before that, as a fence works at any time. A leader also raises its fence if its Lease ran out
before, was created by itself, was emptied by somebody else, or came from a version of this program
that does not settle Leases. Without an election there is always a fence.
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
        lacking = {
            key: known.claim
            for key, known in cluster.claims.items()
            if known.claim.allocation is None and cluster.finalizer in known.claim.finalizers
        }
        self._open = lacking
        living = (
            key for key in lacking if any(pod.live for pod in cluster.pod_index.of_claim(key))
        )
        self._named = dict.fromkeys(living)
        self._rest_until = inf
        self._gaps = False
        for key in self._named:
            self._work.add(key, 0)
        if lacking:
            _log.info("fencing claims", extra={"claims": len(lacking)})
        self._begin_rest()

    def stands(self) -> bool:
        return not self._open or self._now() >= self._rest_until

    def has_no_gap(self) -> bool:
        """True if every claim was changed, so that no late allocation of any fits."""
        return not self._open and not self._gaps

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
        """The monotonic time of the next attempt or of the end; inf while answers are awaited."""
        return min(inf if self._in_flight.full else self._work.due, self._rest_until)

    def _begin_rest(self) -> None:
        if self._open and not self._named and self._rest_until == inf:
            self._rest_until = self._now() + times.FENCE_OF_OTHERS
            for key in self._open:
                self._work.add(key, 0)

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
            case UnavailableError() | ConflictError() if self._may_pass(key, error):
                self._work.retry(key, 0)
                _log.warning("nothing is allocated before this claim is fenced", extra=fields)
                return
            case _:
                self._gaps = True
                _log.error(
                    "claim not fenced: a former leader's allocation of it may still come, and the "
                    "node then refuses what overlaps",
                    extra=fields,
                )
        del self._open[key]
        self._named.pop(key, None)
        self._begin_rest()
        for obj in answer.written:
            self._cluster.confirm_claim(obj)

    def _may_pass(self, key: ObjectKey, error: KubeError) -> bool:
        """True if the error may pass and the claim of a living pod is worth another try.

        That is so until the server has served any claim, and otherwise for ``times.FENCE_OF_PODS``.
        """
        if key not in self._named:
            return False
        serves_nobody = error.status in _NO_ANSWER and not self._is_served
        return serves_nobody or self._now() < self._began + times.FENCE_OF_PODS
