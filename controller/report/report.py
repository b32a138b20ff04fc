"""Reports for people: a log line for every decision, events and pod conditions.

A reason is told again only after another one was told, and changed details of the same reason are
told at most every few seconds.

A ResourceClaim has no conditions of its own (its status has them per allocated device only), so
the condition is on the pods whose claims wait: ``kubectl wait
--for=condition=mig.dra.dev/ClaimsAllocated pod/...`` works. A cluster has many pods, but few wait
for long. Conditions are written to those only, one at a time with a gap; namespaces take turns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from controller import times
from controller.cluster.cluster import Cluster
from controller.cluster.records import ConditionState, Effects, PodRecord, Said
from controller.report.metrics import ControllerMetrics
from controller.write.in_flight import InFlight, KeptObjects, WriteAnswer, one
from controller.write.requests import Requests
from dra.claims.conditions import claims_allocated
from dra.claims.reader import KnownClaim
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, Obj, Resource, at
from dra.kube.errors import ForbiddenError, UnavailableError
from dra.kube.events import EventSink
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)


_LIMIT = 1024


_Key = tuple[str, str]
"""Namespace and UID of a pod."""


class PodConditions:
    """Conditions of pods that are to be written, one at a time.

    ``now`` gives monotonic seconds. Owned by one thread.
    """

    def __init__(
        self, requests: Requests, in_flight: InFlight, *, now: Callable[[], float]
    ) -> None:
        self._requests = requests
        self._type = claims_allocated(requests.driver)
        self._now = now
        self._objects: KeptObjects[_Key] = KeptObjects(
            "condition", in_flight, now, group=lambda key: key[0]
        )
        self._wanted: dict[_Key, tuple[PodRecord, ConditionState]] = {}
        self._not_before = float("-inf")

    @property
    def due(self) -> float:
        """The monotonic time of the next write; inf if none is to be begun before an answer."""
        return max(self._objects.due, self._not_before)

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
        """Note that all claims of the pod are allocated; written only if it was said to wait."""
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
        """Drop the condition that is to be written for the pod."""
        self._wanted.pop(_key(pod), None)
        self._objects.discard(_key(pod))

    def work(self) -> None:
        key, now = self._objects.next(), self._now()
        if key is None:
            return
        self._not_before = now + times.CONDITION_GAP
        record, state = self._wanted.pop(key)
        state.since, record.condition = now, state
        job = one(
            self._requests.set_condition,
            record.pod,
            self._type,
            status="True" if state.allocated else "False",
            reason=state.reason,
            message=state.message,
        )
        self._objects.begin(job, lambda answer: self._written(record, state, answer))

    def _want(self, record: PodRecord, state: ConditionState, *, at: float) -> None:
        """Have a condition written at a time, or at the time set for an earlier one of the pod."""
        key = _key(record.pod)
        self._wanted[key] = record, state
        self._objects.add(key, at=at)

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
        """The condition that the pod has, by our last write or by its status; None without one."""
        if record.condition is not None:
            return record.condition
        for found in at(record.pod.obj, "status", "conditions"):
            if found["type"] == self._type:
                told = (found.get("reason") or "", found.get("message") or "")
                return ConditionState(found["status"] == "True", *told)
        return None


def _key(pod: Pod) -> _Key:
    return pod.key[0], pod.uid


class Reporter:
    """Reports on the pods, claims, classes and nodes of a cluster.

    ``conditions``: conditions of pods; the engine has to have them written.
    ``metrics``: counts what is reported. ``now``: gives monotonic seconds.
    """

    def __init__(
        self,
        sink: EventSink,
        conditions: PodConditions,
        cluster: Cluster,
        metrics: ControllerMetrics,
        now: Callable[[], float],
    ) -> None:
        self.conditions = conditions
        self.metrics = metrics
        self._sink = sink
        self._cluster = cluster
        self._now = now
        self._said: Said = {}
        """The texts last told of classes and nodes."""

    def waiting(self, pod: Pod, obstacle: Obstacle, claims: Iterable[KnownClaim]) -> None:
        known, record = [*claims], self._cluster.pod_index.record(pod)
        record.waits_for = obstacle.reason
        record.waiting_claims = tuple((k.claim.ref.uid, _created(k.obj)) for k in known)
        self.conditions.waits(record, obstacle)
        self._say(
            "claims wait",
            obstacle,
            [_typed(pod.obj, PODS), *(_typed(k.obj, RESOURCE_CLAIMS) for k in known)],
            said=(record.said, "waiting"),
            level=logging.INFO,
            pod=str(pod),
            claim=",".join(str(k.claim.ref) for k in known),
        )

    def served(self, pod: Pod) -> None:
        self._waits_no_more(pod)
        # Most running pods have no record, and need none.
        self.conditions.served(self._cluster.pod_index.records.get(pod.uid) or PodRecord(pod))

    def left(self, pod: Pod) -> None:
        """Note that the pod does not wait for us: it runs, ends, or another gate holds it back."""
        if pod.phase == "Running":
            self.served(pod)
        else:
            self._waits_no_more(pod)
            self.conditions.leave(pod)

    def _waits_no_more(self, pod: Pod) -> None:
        if (record := self._cluster.pod_index.records.get(pod.uid)) is not None:
            record.waits_for = None
            record.said.pop("waiting", None)

    def allocated(self, pod: Pod, claim: Obj, message: str, *, profiles: Iterable[str]) -> None:
        """Report that a claim of the pod was allocated, by an event of the pod.

        ``profiles``: the profiles of the claim's devices, "" for a whole GPU. The claim gets no
        event, as its status shows the allocation.
        """
        self.metrics.allocated(claim, profiles)
        self._sink.emit(_typed(pod.obj, PODS), Reason.ALLOCATED.value, message)

    def on_claim(self, known: KnownClaim, obstacle: Obstacle, *, warning: bool = True) -> None:
        """Report an obstacle of one claim; it is not repeated until another one was told."""
        ref = known.claim.ref
        self._say(
            "claim",
            obstacle,
            [_typed(known.obj, RESOURCE_CLAIMS)],
            said=(self._cluster.claim_index.record(ref).said, "claim"),
            warning=warning,
            claim=str(ref),
        )

    def on_pod(
        self, pod: Pod, what: str, obstacle: Obstacle, *claims: KnownClaim, warns: bool = True
    ) -> None:
        """Report an obstacle of a pod and of ``claims``.

        ``what``: the text of the log line, which is a warning if ``warns``.
        """
        self._say(
            what,
            obstacle,
            [_typed(pod.obj, PODS), *(_typed(k.obj, RESOURCE_CLAIMS) for k in claims)],
            said=(self._cluster.pod_index.record(pod).said, obstacle.reason.value),
            level=logging.WARNING if warns else logging.INFO,
            pod=str(pod),
        )

    def on_class(self, device_class: Obj, what: str, obstacle: Obstacle) -> None:
        name = device_class["metadata"]["name"]
        self._say(
            what,
            obstacle,
            [_typed(device_class, DEVICE_CLASSES)],
            said=(self._said, f"class {name} {obstacle.reason.value}"),
            level=logging.WARNING,
            **{"class": name},
        )

    def class_is_right(self, device_class: Obj, reason: Reason) -> bool:
        """Note that a class has no such obstacle any more; returns False if none was told."""
        name = device_class["metadata"]["name"]
        return self._said.pop(f"class {name} {reason.value}", None) is not None

    def on_node(self, node: str, problem: str) -> None:
        _log.warning("class of a node", extra={"node": node, "detail": problem})
        self._sink.emit(_node(node), Reason.NODE_CLASS.value, problem, warning=True)

    def unreadable(self, mignodes: Mapping[str, str]) -> None:
        """Report the unreadable MigNodes, by node with the error: none of them is allocated."""
        self.metrics.unreadable(len(mignodes))
        for node, problem in mignodes.items():
            message = (
                f"nothing is allocated on node {node}, as its MigNode cannot be read: {problem}; "
                "compare the versions of the node's plugin, the controller and the resource "
                f"definition, and see who wrote it (kubectl get mignode {node} "
                "--show-managed-fields -o yaml)"
            )
            obstacle = Obstacle(Reason.MIGNODE_UNREADABLE, message)
            self._say("", obstacle, [_node(node)], said=(self._said, f"mignode {node}"))

    def _say(  # noqa: PLR0913 - all that is said
        self,
        what: str,
        obstacle: Obstacle,
        regarding: Iterable[Obj],
        *,
        said: tuple[Said, str],
        warning: bool = True,
        level: int | None = None,
        **fields: str,
    ) -> None:
        """Log ``what``, unless it is empty, and emit events on ``regarding``.

        ``said``: the memory of what was told and the subject there. Nothing is told if the obstacle
        is the one told last, or differs from it in details too soon.
        """
        before, subject = said
        told, at = before.get(subject, (None, 0.0))
        now = self._now()
        same = told is not None and told.reason is obstacle.reason
        if same and (told == obstacle or now - at < times.SAID_DETAILS):
            return
        before[subject] = obstacle, now
        reason, message = obstacle.reason.value, obstacle.message
        if what:
            extra = {**fields, "reason": reason, "detail": message}
            _log.log(level or (logging.WARNING if warning else logging.INFO), what, extra=extra)
        for each in regarding:
            self._sink.emit(each, reason, message, warning=warning)


def _created(obj: Obj) -> str:
    return str(obj["metadata"].get("creationTimestamp") or "")


def _typed(obj: Obj, resource: Resource) -> Obj:
    """The object with kind and API version, which objects of a list lack."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **obj}


def _node(name: str) -> Obj:
    """A Node as kubelet's own events name it: by its name in place of a UID."""
    return _typed({"metadata": {"name": name, "uid": name}}, NODES)
