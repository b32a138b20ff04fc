"""Condition of pods whose claims wait: the reason, for readers of the pod and not of its events.

A ResourceClaim has no conditions of its own (its status has them per allocated device only), so the
pod carries it: ``kubectl wait --for=condition=mig.dra.dev/ClaimsAllocated pod/...`` works. Few pods
wait for long, and a cluster has many pods: only those that do are written to, one after the other
with a gap, namespace after namespace.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from controller import times
from controller.cluster.records import ConditionState, Effects, PodRecord
from controller.write.in_flight import InFlight, KeptObjects, WriteAnswer
from controller.write.writers import PodWriter
from dra.claims.conditions import claims_allocated
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import Obj, at
from dra.kube.errors import ForbiddenError, UnavailableError
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)

_LIMIT = 1024


_Key = tuple[str, str]
"""Namespace and UID of a pod."""


class PodConditions:
    """Conditions that are to be written, of which one at a time is under way.

    ``now`` gives monotonic seconds. Owned by one thread.
    """

    def __init__(
        self, writer: PodWriter, in_flight: InFlight, *, driver: str, now: Callable[[], float]
    ) -> None:
        self._writer = writer
        self._type = claims_allocated(driver)
        self._now = now
        self._objects: KeptObjects[_Key] = KeptObjects(
            "condition", in_flight, now, group=lambda key: key[0]
        )
        self._wanted: dict[_Key, tuple[PodRecord, ConditionState]] = {}
        self._not_before = float("-inf")

    @property
    def due(self) -> float | None:
        """The monotonic time of the next write, None when there is none before an answer."""
        due = self._objects.due
        return None if due is None else max(due, self._not_before)

    def waits(self, record: PodRecord, obstacle: Obstacle) -> None:
        state = ConditionState(
            allocated=False, reason=obstacle.reason.value, message=obstacle.message
        )
        if len(state.message) > _LIMIT:
            state.message = f"{state.message[: _LIMIT - 3]}..."
        known, now = self._known(record), self._now()
        if known is not None and known.reason == state.reason:
            is_same = known.message == state.message and not known.allocated
            if is_same or now < known.since + times.CONDITION_DETAILS:
                self.leave(record.pod)
                return
        self._want(record, state, at=now + times.CONDITION)

    def served(self, record: PodRecord) -> None:
        """Nothing of the pod's claims is left to allocate; told only if it was said to wait."""
        self.leave(record.pod)
        known = self._known(record)
        if known is not None and not known.allocated:
            state = ConditionState(allocated=True, reason=Reason.ALLOCATED.value, message="")
            self._want(record, state, at=self._now())

    def note(self, effects: Effects) -> None:
        for record in effects.gone_pods:
            self.leave(record.pod)
            record.condition = None

    def leave(self, pod: Pod) -> None:
        """Write nothing of the pod: it is not ours to say now if it waits."""
        self._wanted.pop(_key(pod), None)
        self._objects.discard(_key(pod))

    def work_if_due(self) -> bool:
        if not self._wanted:
            return False
        due, now = self.due, self._now()
        key = self._objects.next() if due is not None and due <= now else None
        if key is None:
            return False
        self._not_before = now + times.CONDITION_GAP
        record, state = self._wanted.pop(key)
        state.since, record.condition = now, state
        self._objects.begin(
            lambda: self._requests(record.pod, state),
            lambda answer: self._written(record, state, answer),
        )
        return True

    def _want(self, record: PodRecord, state: ConditionState, *, at: float) -> None:
        """Have it written at a time, or when another condition of the pod was to be."""
        key = _key(record.pod)
        self._wanted[key] = record, state
        self._objects.add(key, at=at)

    def _requests(self, pod: Pod, state: ConditionState) -> Iterator[Obj]:
        yield self._writer.set_condition(
            pod,
            self._type,
            status="True" if state.allocated else "False",
            reason=state.reason,
            message=state.message,
        )

    def _written(self, record: PodRecord, state: ConditionState, answer: WriteAnswer) -> None:
        error = answer.error
        if error is None:
            return
        known, record.condition = record.condition, None
        if isinstance(error, UnavailableError):
            if known is not None:
                self._want(*self._wanted.get(_key(record.pod), (record, state)), at=self._now())
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


def _key(pod: Pod) -> _Key:
    return pod.key[0], pod.uid
