"""Reports for people: a log line for every decision, events and pod conditions.

A reason is repeated only when it changes, and its details not more often than every few seconds: a
cluster at rest says nothing, and a busy one not the same in ever new words.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from controller import times
from controller.cluster.cluster import Cluster
from controller.cluster.records import PodRecord, Said
from controller.report.decisions import DecisionLog
from controller.report.metrics import ControllerMetrics
from controller.report.pod_conditions import PodConditions
from dra.allocator.problem import Problem
from dra.claims.reader import KnownClaim
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, Obj, Resource
from dra.kube.events import EventSink
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)


class Reporter:
    """Tells of the pods, claims, classes and nodes of a cluster. ``now`` gives monotonic seconds.

    ``conditions`` are those of pods, which somebody has to have written; ``metrics`` count along,
    and ``decisions`` are recorded, if they are.
    """

    def __init__(  # noqa: PLR0913 - whom it tells
        self,
        sink: EventSink,
        conditions: PodConditions,
        cluster: Cluster,
        metrics: ControllerMetrics,
        now: Callable[[], float],
        *,
        decisions: DecisionLog | None = None,
    ) -> None:
        self.decisions = decisions
        self.conditions = conditions
        self.metrics = metrics
        self._sink = sink
        self._cluster = cluster
        self._now = now
        self._said: Said = {}
        """Of classes and nodes."""

    def waiting(self, pod: Pod, obstacle: Obstacle, claims: Iterable[KnownClaim]) -> None:
        known, record = [*claims], self._cluster.pod_index.record(pod)
        record.waits_for = obstacle.reason
        record.waiting_claims = tuple((k.claim.ref.uid, _created(k.obj)) for k in known)
        self.conditions.waits(record, obstacle)
        found = record.examined.found if record.examined is not None else None
        if self.decisions is not None and isinstance(found, Problem):
            self.decisions.waits(pod, found, obstacle.reason)
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
        # Of most pods that run nothing is to be noted.
        self.conditions.served(self._cluster.pod_index.records.get(pod.uid) or PodRecord(pod))

    def left(self, pod: Pod) -> None:
        """The pod does not wait for us now: it runs, ends, or somebody else holds it back."""
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
        """A claim of the pod was allocated: its devices' profiles, "" for a whole GPU.

        The pod's event tells of it; of the claim its status says the same, without an event.
        """
        self.metrics.allocated(claim, profiles)
        self._sink.emit(_typed(pod.obj, PODS), Reason.ALLOCATED.value, message)

    def on_claim(self, known: KnownClaim, obstacle: Obstacle, *, warning: bool = True) -> None:
        """Something about one claim, said once until something else is."""
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
        """Trouble of a pod and of ``claims``: ``what`` in the log, as a warning if it ``warns``."""
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
        """Trouble of a class for that reason is over; False if none was told."""
        name = device_class["metadata"]["name"]
        return self._said.pop(f"class {name} {reason.value}", None) is not None

    def on_node(self, node: str, problem: str) -> None:
        _log.warning("class of a node", extra={"node": node, "detail": problem})
        self._sink.emit(_node(node), Reason.NODE_CLASS.value, problem, warning=True)

    def unreadable(self, mignodes: Mapping[str, str]) -> None:
        """All MigNodes that cannot be read, and why: nothing is allocated on their nodes."""
        self.metrics.unreadable(len(mignodes))
        for node, problem in mignodes.items():
            message = (
                f"nothing is allocated on node {node}, as its MigNode cannot be read: {problem}; "
                "compare the versions of the node's plugin, the controller and the resource "
                "definition (kubectl mig doctor), and see who wrote it (kubectl get mignode "
                f"{node} --show-managed-fields -o yaml)"
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
        """Log ``what``, if there is anything, and emit events, unless that was said already."""
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
    """Object with its kind and API version, which objects out of a list lack."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **obj}


def _node(name: str) -> Obj:
    """A Node as kubelet's own events name it: by its name in place of a UID."""
    return _typed({"metadata": {"name": name, "uid": name}}, NODES)
