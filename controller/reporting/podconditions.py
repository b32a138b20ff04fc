"""Condition of pods whose claims wait: the reason, for readers of the pod and not of its events.

A ResourceClaim has no conditions of its own (its status has them per allocated device only), so the
pod carries it: ``kubectl wait --for=condition=mig.dra.dev/ClaimsAllocated pod/...`` works. Few pods
wait for long, and a cluster has many pods: only those that do are written to, one every
``GAP_SECONDS``, namespace after namespace, and other details of the same reason not before
``DETAILS_SECONDS``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from controller.writing.outbox import Outbox
from controller.writing.pod_writer import PodWriter
from dra.claims.conditions import claims_allocated
from dra.claims.reasons import Obstacle, Reason
from dra.common.queues import FairQueue, Timers
from dra.kube.errors import ForbiddenError, UnavailableError
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)

PATIENCE_SECONDS = 2.0
"""A pod that has waited this long gets a condition: before that it is not worth a write."""

DETAILS_SECONDS = 60.0
GAP_SECONDS = 0.1
_RETRY_SECONDS = 5.0
_FORBIDDEN_SECONDS = 600.0
_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class ConditionState:
    """Content of the condition; ``reason`` and ``message`` as in an event."""

    allocated: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class _Due:
    pod: Pod
    state: ConditionState
    at: float


class PodConditions:
    """Remembers what is to be written of which pod, and has one write at a time under way.

    ``now`` gives monotonic seconds. Owned by one thread.
    """

    def __init__(
        self, writer: PodWriter, outbox: Outbox, *, driver: str, now: Callable[[], float]
    ) -> None:
        self._writer = writer
        self._outbox = outbox
        self._type = claims_allocated(driver)
        self._now = now
        self._early: dict[str, _Due] = {}
        self._times: Timers[str] = Timers()
        self._due: FairQueue[str, _Due] = FairQueue()
        self._written: dict[str, tuple[ConditionState, float]] = {}
        self._not_before = float("-inf")
        self._sent: _Due | None = None
        self._answers: deque[Exception | None] = deque()

    @property
    def due(self) -> float | None:
        """The monotonic time of the next write, None when there is none."""
        first = self._due.first()
        at = self._times.next() if first is None else first[1].at
        if at is None and self._sent is not None:
            at = self._sent.at
        return None if at is None else max(at, self._not_before)

    def waits(self, pod: Pod, obstacle: Obstacle) -> None:
        """The pod's claims wait because of ``obstacle``."""
        state = ConditionState(
            allocated=False, reason=obstacle.reason.value, message=_cut(obstacle.message)
        )
        known = self._known(pod)
        now = self._now()
        same = known is not None and known[0].reason == state.reason
        if known is not None and same and (known[0] == state or now < known[1] + DETAILS_SECONDS):
            self._discard(pod.uid)
            return
        before = self._find(pod.uid)
        at = now + PATIENCE_SECONDS if before is None else before.at
        self._put(_Due(pod, state, at))

    def served(self, pod: Pod) -> None:
        """Nothing of the pod's claims is left to allocate; told only if it was said to wait."""
        self._discard(pod.uid)
        known = self._known(pod)
        if known is not None and not known[0].allocated:
            state = ConditionState(allocated=True, reason=Reason.ALLOCATED.value, message="")
            self._put(_Due(pod, state, self._now()))

    def leave(self, pod_uid: str) -> None:
        """Forgets the pod: it is not ours to say now if it waits."""
        self._discard(pod_uid)

    def forget(self, pod_uid: str) -> None:
        """The pod is gone."""
        self._discard(pod_uid)
        self._written.pop(pod_uid, None)

    def write_if_due(self) -> bool:
        """Begin to write one condition, if it is time; False when it is not."""
        now = self._now()
        if self._answers and self._sent is not None:
            self._settle(self._sent, self._answers.popleft())
        if now < self._not_before or self.due is None or now < self.due:
            return False
        self._not_before = now + GAP_SECONDS
        if self._sent is not None:
            return False
        for uid in self._times.take(now):
            early = self._early.pop(uid)
            self._due.put(early.pod.key[0], uid, early)
        first = self._due.first()
        if first is None:
            return False
        self._sent = due = self._due.take(first[0])
        self._written[first[0]] = (due.state, now)
        self._outbox.send(lambda: self._answers.append(self._write(due)))
        return True

    def _find(self, uid: str) -> _Due | None:
        return self._early.get(uid) or self._due.get(uid)

    def _put(self, due: _Due) -> None:
        """Have it written at its time, in the place of what was to be written of that pod."""
        uid = due.pod.uid
        if self._due.get(uid) is not None:
            self._due.put(due.pod.key[0], uid, due)
            return
        self._early[uid] = due
        if self._times.get(uid) != due.at:
            self._times.set(uid, due.at)

    def _discard(self, uid: str) -> None:
        self._early.pop(uid, None)
        self._times.discard(uid)
        self._due.discard(uid)

    def _write(self, due: _Due) -> Exception | None:
        """Make the request; in a thread of its own."""
        try:
            self._writer.set_condition(
                due.pod,
                self._type,
                status="True" if due.state.allocated else "False",
                reason=due.state.reason,
                message=due.state.message,
            )
        except Exception as error:  # noqa: BLE001 - handed over to the thread that decides
            return error
        return None

    def _settle(self, sent: _Due, error: Exception | None) -> None:
        self._sent = None
        if error is None:
            return
        uid = sent.pod.uid
        known = self._written.pop(uid, None)
        if isinstance(error, UnavailableError):
            if known is not None:
                self._put(self._find(uid) or sent)
            self._not_before = self._now() + _RETRY_SECONDS
        elif isinstance(error, ForbiddenError):
            self._not_before = self._now() + _FORBIDDEN_SECONDS
            _log.warning(
                "pods do not say why they wait: the controller needs the verb patch on pods/status",
                extra={"error": str(error)},
            )
        else:
            _log.info("condition not written", extra={"pod": str(sent.pod), "error": str(error)})

    def _known(self, pod: Pod) -> tuple[ConditionState, float] | None:
        """Content that the pod has already, and since when at the earliest."""
        if pod.uid in self._written:
            return self._written[pod.uid]
        for found in (pod.obj.get("status") or {}).get("conditions") or ():
            if found["type"] == self._type:
                told = (found.get("reason") or "", found.get("message") or "")
                return ConditionState(found["status"] == "True", *told), float("-inf")
        return None


def _cut(message: str) -> str:
    return message if len(message) <= _LIMIT else message[: _LIMIT - 3] + "..."
