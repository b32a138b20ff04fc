"""Condition of pods whose claims wait: the reason, for readers of the pod and not of its events.

A ResourceClaim has no conditions of its own (its status has them per allocated device only), so the
pod carries it: ``kubectl wait --for=condition=mig.dra.dev/ClaimsAllocated pod/...`` works. Few pods
wait for long, and a cluster has many pods: only those that do are written to, one after the other
with a gap, namespace after namespace.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from controller import times
from controller.cluster.records import ConditionState, Effects, PodRecord
from controller.write.in_flight import InFlight, OneWrite, WriteAnswer
from controller.write.writers import PodWriter
from dra.claims.conditions import claims_allocated
from dra.claims.reasons import Obstacle, Reason
from dra.common.queues import FairQueue, Timers
from dra.common.resources import Obj, at
from dra.kube.errors import ForbiddenError, UnavailableError

_log = logging.getLogger(__name__)

_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class _Due:
    record: PodRecord
    state: ConditionState
    at: float


class PodConditions:
    """Conditions that are to be written, of which one at a time is under way.

    ``now`` gives monotonic seconds. Owned by one thread.
    """

    def __init__(
        self, writer: PodWriter, in_flight: InFlight, *, driver: str, now: Callable[[], float]
    ) -> None:
        self._writer = writer
        self._writes = OneWrite(in_flight)
        self._type = claims_allocated(driver)
        self._now = now
        self._early: dict[str, _Due] = {}
        self._times: Timers[str] = Timers()
        self._due: FairQueue[str, _Due] = FairQueue()
        self._not_before = float("-inf")

    @property
    def due(self) -> float | None:
        """The monotonic time of the next write, None when there is none before an answer."""
        first = self._due.first()
        at = self._times.next() if first is None else first[1].at
        return None if at is None or not self._writes.may_begin else max(at, self._not_before)

    def waits(self, record: PodRecord, obstacle: Obstacle) -> None:
        state = ConditionState(
            allocated=False, reason=obstacle.reason.value, message=obstacle.message
        )
        if len(state.message) > _LIMIT:
            state.message = f"{state.message[: _LIMIT - 3]}..."
        known, now, uid = self._known(record), self._now(), record.pod.uid
        if known is not None and known.reason == state.reason:
            is_same = known.message == state.message and not known.allocated
            if is_same or now < known.since + times.CONDITION_DETAILS:
                self.leave(uid)
                return
        before = self._find(uid)
        self._put(_Due(record, state, now + times.CONDITION if before is None else before.at))

    def served(self, record: PodRecord) -> None:
        """Nothing of the pod's claims is left to allocate; told only if it was said to wait."""
        self.leave(record.pod.uid)
        known = self._known(record)
        if known is not None and not known.allocated:
            state = ConditionState(allocated=True, reason=Reason.ALLOCATED.value, message="")
            self._put(_Due(record, state, self._now()))

    def note(self, effects: Effects) -> None:
        for record in effects.gone_pods:
            self.leave(record.pod.uid)
            record.condition = None

    def leave(self, pod_uid: str) -> None:
        """Write nothing of the pod: it is not ours to say now if it waits."""
        self._early.pop(pod_uid, None)
        self._times.discard(pod_uid)
        self._due.discard(pod_uid)

    def work_if_due(self) -> bool:
        now, due_at = self._now(), self.due
        if due_at is None or now < due_at:
            return False
        for uid in self._times.take(now):
            early = self._early.pop(uid)
            self._due.put(early.record.pod.key[0], uid, early)
        first = self._due.first()
        if first is None:
            return False
        self._not_before = now + times.CONDITION_GAP
        due = self._due.take(first[0])
        due.state.since = now
        due.record.condition = due.state
        self._writes.begin(lambda: self._requests(due), lambda answer: self._written(due, answer))
        return True

    def _find(self, uid: str) -> _Due | None:
        return self._early.get(uid) or self._due.get(uid)

    def _put(self, due: _Due) -> None:
        """Have it written at its time, in the place of what was to be written of that pod."""
        pod = due.record.pod
        if self._due.get(pod.uid) is not None:
            self._due.put(pod.key[0], pod.uid, due)
            return
        self._early[pod.uid] = due
        if self._times.get(pod.uid) != due.at:
            self._times.set(pod.uid, due.at)

    def _requests(self, due: _Due) -> Iterator[Obj]:
        yield self._writer.set_condition(
            due.record.pod,
            self._type,
            status="True" if due.state.allocated else "False",
            reason=due.state.reason,
            message=due.state.message,
        )

    def _written(self, due: _Due, answer: WriteAnswer) -> None:
        error, record = answer.error, due.record
        if error is None:
            return
        known, record.condition = record.condition, None
        if isinstance(error, UnavailableError):
            if known is not None:
                self._put(self._find(record.pod.uid) or due)
            self._not_before = self._now() + times.CONDITION_AGAIN
        elif isinstance(error, ForbiddenError):
            self._not_before = self._now() + times.CONDITION_FORBIDDEN
            _log.warning(
                "pods do not say why they wait: the controller needs the verb patch on pods/status",
                extra={"error": str(error)},
            )
        else:
            fields = {"pod": str(record.pod), "error": str(error)}
            _log.info("condition not written", extra=fields)

    def _known(self, record: PodRecord) -> ConditionState | None:
        """Content that the pod has already, and since when at the earliest."""
        if record.condition is not None:
            return record.condition
        for found in at(record.pod.obj, "status", "conditions"):
            if found["type"] == self._type:
                told = (found.get("reason") or "", found.get("message") or "")
                return ConditionState(found["status"] == "True", *told)
        return None
