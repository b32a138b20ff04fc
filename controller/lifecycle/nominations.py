"""Nominations: they have kube-scheduler end pods of lower priority for one that is allocated.

A pod that is not gated is refused for its CPU, say, before its claims are allocated. Preemption
finds nothing then, as no node has devices for it, and kube-scheduler remembers the CPU alone: it
does not try again when the claims change, but when any pod ends, or after five minutes. A pod whose
``nominatedNodeName`` goes counts as one that has ended (``hasNominatedNodeNameChanged`` in
kube-scheduler's eventhandlers.go, 1.32 to 1.36), for all that have no higher priority.

So one is told at a time, and the others only if they wait still: kube-scheduler may have nominated
them meanwhile, which our taking back would undo. The room that was made for such a pod would look
free to others, whose allocations on other nodes it would then take back.

A nominated pod that has room is told of as well, if nobody binds it: where two pods get the room of
one victim, kube-scheduler 1.36.2 may wait for the end of a victim that is gone (for the second one
its request to delete the victim is answered by 404).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import NoneType

from controller.cluster.cluster import Cluster
from controller.writing.in_flight import InFlight, WriteAnswer
from controller.writing.pod_writer import PodWriter
from dra.common.resources import Obj, ObjectKey
from dra.kube.errors import ConflictError, ForbiddenError
from dra.kube.timing import Backoff
from dra.pods.pods import Pod
from dra.pods.rules import find_victims

_log = logging.getLogger(__name__)

GRACE_SECONDS = 1.0
"""Time in which kube-scheduler makes room by itself if it has heard of the allocation, or was told
of another pod."""

STUCK_SECONDS = 10.0
"""Time for kube-scheduler to bind a nominated pod that has room."""

FIRST_SECONDS = 30.0
LONGEST_SECONDS = 300.0
"""Pauses before it is told again."""

Settle = Callable[[ObjectKey, Exception | None], None]
"""Called when the writes to a pod were answered: with what went wrong, or None."""


def _backoff() -> Backoff:
    return Backoff(first=FIRST_SECONDS, limit=LONGEST_SECONDS, jitter=0)


@dataclass(slots=True)
class _Due:
    """``is_left``: what we said may still stand, as a write had no answer.

    ``has_room``: nobody has to end there.
    """

    node: str
    at: float
    has_room: bool
    is_left: bool = False
    backoff: Backoff = field(default_factory=_backoff)


class Nominations:
    """Pods for which kube-scheduler would have to end others. ``now`` gives monotonic seconds."""

    def __init__(
        self,
        cluster: Cluster,
        writer: PodWriter,
        in_flight: InFlight,
        settle: Settle,
        *,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._writer = writer
        self._in_flight = in_flight
        self._settle = settle
        self._now = now
        self._due: dict[str, _Due] = {}
        self._is_under_way = False
        self._told_priority = 0
        self._told_at = float("-inf")

    def look_at(self, pod: Pod) -> float | None:
        """Tell kube-scheduler of ``pod``, which waits to be bound with all that it asked for.

        Returns the monotonic time to look again, None if there is no reason to.
        """
        due = self._due.get(pod.uid)
        if due is not None and due.is_left and not pod.node:
            self._send(pod, due)
            return due.at
        crowded = self._crowded(pod)
        if pod.nominated and crowded == pod.nominated:
            return self._now() + STUCK_SECONDS  # victims are ending
        node = crowded or pod.nominated
        if not node or not self._is_wanted(pod):
            self._due.pop(pod.uid, None)
            return None
        if due is None or (due.node, due.has_room) != (node, not crowded):
            grace = GRACE_SECONDS if crowded else STUCK_SECONDS
            due = self._due[pod.uid] = _Due(node, self._now() + grace, not crowded)
        due.at = max(due.at, self._not_before(pod))
        if self._now() >= due.at:
            due.at = self._now() + due.backoff.next_delay()
            self._send(pod, due)
        return due.at

    def forget(self, pod_uid: str) -> None:
        """The pod is gone."""
        self._due.pop(pod_uid, None)

    def _is_wanted(self, pod: Pod) -> bool:
        """True if ``pod`` is neither bound nor about to be, once a volume of it is made."""
        volumes = self._cluster.hosts.volumes
        making = any(c.selected_node for c in volumes.claims_of(pod) if volumes.is_late(c))
        return not pod.node and pod.needs.preempts and not making

    def _crowded(self, pod: Pod) -> str:
        """The node of its claims, if others have to end there."""
        if pod.node or not pod.needs.preempts:
            return ""
        cluster = self._cluster
        found = (cluster.claims[key].claim.allocation for key in pod.claim_keys)
        nodes = {a.node for a in found if a is not None and a.of_driver(cluster.driver)}
        facts = cluster.hosts.facts.get(next(iter(nodes))) if len(nodes) == 1 else None
        if facts is None or not find_victims(pod, facts, cluster.hosts):
            return ""
        return facts.name

    def _not_before(self, pod: Pod) -> float:
        """The monotonic time before which ``pod`` is not told of, as another one was or is."""
        if self._is_under_way:
            return self._now() + GRACE_SECONDS
        was_meant = pod.priority <= self._told_priority
        return self._told_at + GRACE_SECONDS if was_meant else float("-inf")

    def _send(self, pod: Pod, due: _Due) -> None:
        # Elsewhere it is nominated in vain: room is kept there, and nobody ends where it is.
        node = due.node if due.is_left else pod.nominated or due.node
        is_there = due.is_left or bool(pod.nominated)
        self._is_under_way = True

        def job() -> Iterator[Obj]:
            if not is_there:
                yield self._writer.nominate(pod, node)
            yield self._writer.take_back_nomination(pod, node)

        def done(answer: WriteAnswer) -> None:
            error = answer.error
            self._is_under_way = False
            self._told_priority, self._told_at = pod.priority, self._now()
            due.is_left = not isinstance(error, (NoneType, ConflictError, ForbiddenError))
            if isinstance(error, ForbiddenError):  # it stays allocated, and waits for longer
                _log.info("not nominated", extra={"pod": str(pod), "error": str(error)})
                error = None
            self._settle(pod.key, error)

        self._in_flight.start(pod.claim_keys, job, done)
