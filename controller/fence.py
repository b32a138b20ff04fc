"""A fence against late writes of a former leader, raised before the first decision of the next.

A leader sends nothing after its time is up. What it sent before may still lie in a kernel's buffer
or with a slow server, and land when the next leader has decided otherwise. Its resourceVersion
stops it if the claim has changed since. So the next leader changes every claim, with our finalizer,

- that has no allocation: one may be on its way, of slices that somebody else has by then. None is
  missed, as the finalizer is stored before an allocation is sent, and the mirrors list after the
  former leader's time;
- whose allocation is reserved for a pod that still lacks another claim: the former leader may have
  taken it away, to serve that pod elsewhere, and the pod would run without it. A leader gives such
  a pod nothing more before it knows (:mod:`controller.claimwrites`).

Usually these are few: claims wait without the finalizer, it comes with the decision.

The fence names no resourceVersion: it holds whatever the claim has become. The answer shows what
was faster, which then counts.

Nothing else needs a fence:

- Our finalizer, added late, gives nothing away: the allocation is only sent when the finalizer's
  answer has come, by whoever still leads.
- Any other deallocation fits only a claim that nobody has reserved since it was found unused. Who
  wants to use it reserves it first, and is refused if that is too late.
- A late removal of our finalizer fits only a claim without an allocation, or one that is being
  deleted and that nobody may use any more.
- A scheduling gate lifted late, a pod's condition and a DeviceClass decide about no slice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from controller.cluster import Cluster, KnownClaim
from controller.flights import Answer, Flights
from controller.worklist import WorkList
from controller.writer import NotLeadingError, Writer
from dra.claims import Claim
from dra.kube.errors import ConflictError, KubeError, NotFoundError, UnavailableError
from dra.kube.resources import Obj
from dra.pods import Key

_log = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0
"""So long a claim whose change is answered by errors, of a webhook for example, holds up others."""

_NO_ANSWER = frozenset({0, 429, 503, 504})
"""HTTP statuses, or none, that say nothing about the claim: the server cannot serve anybody."""


class Fence:
    """Owned by the thread that decides; ``now`` gives monotonic seconds.

    ``mark`` is written to the claims and must differ from that of every earlier leadership: the API
    server leaves an object as it is that would not change.
    """

    def __init__(
        self,
        cluster: Cluster,
        writer: Writer,
        flights: Flights,
        *,
        mark: str,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._flights = flights
        self._mark = mark
        self._now = now
        self._began = now()
        self._work: WorkList[Key] = WorkList(now)
        self._open = {
            key: known.claim
            for key, known in cluster.claims.items()
            if cluster.finalizer in known.claim.finalizers
            and (known.claim.allocation is None or _may_be_given_up(known, key, cluster))
        }
        for key in self._open:
            self._work.add(key, 0)
        if self._open:
            _log.info("fencing claims", extra={"claims": len(self._open)})

    def stands(self) -> bool:
        """Whether no late write can do harm any more."""
        return not self._open

    def absorb(self) -> None:
        """Take answers.

        Raises:
            NotLeadingError: nothing may be written any more.
        """
        self._flights.land()

    def work(self) -> bool:
        """Begin to fence one claim; False when none is due, or answers are to be waited for."""
        if self._flights.full:
            return False
        key = self._work.pop()
        if key is None:
            return False
        self._send(key, self._open[key])
        return True

    def next_due(self) -> float | None:
        """The monotonic time of the next attempt, None when only an answer brings any."""
        return None if self._flights.full else self._work.next_due()

    def _send(self, key: Key, claim: Claim) -> None:
        def job() -> Iterator[Obj]:
            yield self._writer.fence(claim, self._mark)

        self._flights.start([key], job, lambda answer: self._settle(key, answer))

    def _settle(self, key: Key, answer: Answer) -> None:
        error = answer.error
        fields = {"claim": str(self._open[key].ref), "error": str(error)}
        match error:
            case NotLeadingError():
                raise error
            case None | NotFoundError():
                pass
            case UnavailableError() | ConflictError() if self._may_pass(error):
                self._work.retry(key, 0)
                _log.warning("nothing is allocated before this claim is fenced", extra=fields)
                return
            case _:
                _log.error(
                    "claim not fenced: what a former leader sent may still change it; slices that "
                    "overlap are refused by their node",
                    extra=fields,
                )
        del self._open[key]
        for obj in answer.written:
            self._cluster.confirm_claim(obj)

    def _may_pass(self, error: KubeError) -> bool:
        """Whether the server serves nobody, or has not been refusing one claim for long."""
        return error.status in _NO_ANSWER or self._now() < self._began + PATIENCE_SECONDS


def _may_be_given_up(known: KnownClaim, key: Key, cluster: Cluster) -> bool:
    """Whether the claim is reserved and a pod that is to run with it lacks another one."""
    return bool(known.claim.reserved_for) and any(
        pod.pending and not pod.node and any(_lacks(k, cluster) for k in pod.claim_keys)
        for pod in cluster.pods_of(key)
    )


def _lacks(key: Key, cluster: Cluster) -> bool:
    known = cluster.claims.get(key)
    return known is None or known.claim.allocation is None
