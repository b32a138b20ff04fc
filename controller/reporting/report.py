"""Reports for people: a log line for every decision, events and pod conditions.

A reason is repeated only when it changes, and its details not more often than every few seconds: a
cluster at rest says nothing, and a busy one not the same in ever new words.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from controller.reporting.observer import ControllerObserver
from controller.reporting.podconditions import PodConditions
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, Obj, Resource
from dra.kube.events import EventSink
from dra.pods.pods import Pod

_log = logging.getLogger(__name__)

DETAILS_SECONDS = 10.0
"""Time for which the details of a reason stand before others may be said."""


class Reporter:
    """Remembers per object what was last said about it. ``now`` gives monotonic seconds."""

    def __init__(
        self,
        sink: EventSink,
        conditions: PodConditions,
        now: Callable[[], float],
        *,
        observer: ControllerObserver | None = None,
    ) -> None:
        self._sink = sink
        self._conditions = conditions
        self._now = now
        self._observer = observer or ControllerObserver()
        self._said: dict[tuple[str, str], tuple[Obstacle, float]] = {}

    def waiting(self, pod: Pod, obstacle: Obstacle, claims: list[Obj]) -> None:
        """The pod's claims wait because of ``obstacle``."""
        self._observer.waiting(pod, obstacle.reason, claims)
        self._conditions.waits(pod, obstacle)
        if not self._is_news(("pod", pod.uid), obstacle):
            return
        _log.info(
            "claims wait",
            extra={
                "pod": str(pod),
                "claim": ",".join(
                    f"{c['metadata']['namespace']}/{c['metadata']['name']}" for c in claims
                ),
                "reason": obstacle.reason.value,
                "detail": obstacle.message,
            },
        )
        for regarding in [_typed(pod.obj, PODS), *(_typed(c, RESOURCE_CLAIMS) for c in claims)]:
            self._sink.emit(regarding, obstacle.reason.value, obstacle.message, warning=True)

    def served(self, pod: Pod) -> None:
        """Nothing of the pod's claims is left to allocate."""
        self.forget(pod_uid=pod.uid)
        self._conditions.served(pod)

    def left(self, pod: Pod) -> None:
        """The pod does not wait for us now: it runs, ends, or somebody else holds it back."""
        if pod.phase == "Running":
            self.served(pod)
        else:
            self.forget(pod_uid=pod.uid)
            self._conditions.leave(pod.uid)

    @property
    def due(self) -> float | None:
        """The monotonic time of the next write of a condition, None when there is none."""
        return self._conditions.due

    def write_if_due(self) -> bool:
        """Begin to write a condition, if it is time."""
        return self._conditions.write_if_due()

    def allocated(self, pod: Pod, claim: Obj, message: str, *, profiles: Iterable[str]) -> None:
        """A claim of the pod was allocated: its devices' profiles, "" for a whole GPU.

        The pod's event tells of it; of the claim its status says the same, without an event.
        """
        self._observer.allocated(claim, profiles)
        self._sink.emit(_typed(pod.obj, PODS), Reason.ALLOCATED.value, message)

    def on_claim(self, claim: Obj, obstacle: Obstacle, *, warning: bool = True) -> None:
        """Something about one claim, said once until something else is."""
        key = ("claim", claim["metadata"]["uid"])
        if not self._is_news(key, obstacle):
            return
        _log.log(
            logging.WARNING if warning else logging.INFO,
            "claim",
            extra={
                "claim": f"{claim['metadata']['namespace']}/{claim['metadata']['name']}",
                "reason": obstacle.reason.value,
                "detail": obstacle.message,
            },
        )
        self._sink.emit(
            _typed(claim, RESOURCE_CLAIMS), obstacle.reason.value, obstacle.message, warning=warning
        )

    def stranded(self, pod: Pod, claim: Obj, obstacle: Obstacle) -> None:
        """A bound pod whose claim its node cannot prepare; said once of the pod and the claim."""
        if not self._is_news(("stranded", pod.uid), obstacle):
            return
        _log.warning(
            "pod cannot start where it is",
            extra={"pod": str(pod), "reason": obstacle.reason.value, "detail": obstacle.message},
        )
        for regarding in (_typed(pod.obj, PODS), _typed(claim, RESOURCE_CLAIMS)):
            self._sink.emit(regarding, obstacle.reason.value, obstacle.message, warning=True)

    def evicted(self, pod: Pod, obstacle: Obstacle) -> None:
        """A pod was evicted, or was to be and is not yet; said once until something else is."""
        if not self._is_news(("evicted", pod.uid), obstacle):
            return
        fields = {"pod": str(pod), "reason": obstacle.reason.value, "detail": obstacle.message}
        _log.warning("pod cannot start where it is", extra=fields)
        reason, message = obstacle.reason.value, obstacle.message
        self._sink.emit(_typed(pod.obj, PODS), reason, message, warning=True)

    def template_missing(self, pod: Pod, obstacle: Obstacle) -> None:
        """A pod's claim is not made for want of a template; said once until something else is."""
        if not self._is_news(("template", pod.uid), obstacle):
            return
        fields = {"pod": str(pod), "reason": obstacle.reason.value, "detail": obstacle.message}
        _log.info("pod has no claim", extra=fields)
        reason, message = obstacle.reason.value, obstacle.message
        self._sink.emit(_typed(pod.obj, PODS), reason, message, warning=True)

    def class_conflict(self, device_class: Obj) -> None:
        """A class that we would generate exists and is somebody else's."""
        name = device_class["metadata"]["name"]
        obstacle = Obstacle(
            Reason.CLASS_CONFLICT,
            f"DeviceClass {name!r} exists and was not generated by this driver: it is left as it "
            "is; rename it if the generated one is wanted",
        )
        key = ("class", name)
        if not self._is_news(key, obstacle):
            return
        _log.warning("DeviceClass left alone", extra={"class": name, "detail": obstacle.message})
        self._sink.emit(
            _typed(device_class, DEVICE_CLASSES),
            obstacle.reason.value,
            obstacle.message,
            warning=True,
        )

    def node_class(self, node: str, problem: str) -> None:
        """The class, the mode or the layout of a Node cannot be."""
        _log.warning("class of a node", extra={"node": node, "detail": problem})
        # Kubelet's own events name a Node by its name in place of a UID.
        regarding = _typed({"metadata": {"name": node, "uid": node}}, NODES)
        self._sink.emit(regarding, Reason.NODE_CLASS.value, problem, warning=True)

    def unreadable(self, mignodes: Mapping[str, str]) -> None:
        """All MigNodes that cannot be read, and why: nothing is allocated on their nodes."""
        self._observer.unreadable(len(mignodes))
        for node, problem in mignodes.items():
            message = (
                f"nothing is allocated on node {node}, as its MigNode cannot be read: {problem}; "
                "compare the versions of the node's plugin, the controller and the resource "
                "definition (kubectl mig doctor), and see who wrote it (kubectl get mignode "
                f"{node} --show-managed-fields -o yaml)"
            )
            obstacle = Obstacle(Reason.MIGNODE_UNREADABLE, message)
            if self._is_news(("mignode", node), obstacle):
                # Kubelet's own events name a Node by its name in place of a UID.
                regarding = _typed({"metadata": {"name": node, "uid": node}}, NODES)
                self._sink.emit(regarding, obstacle.reason.value, message, warning=True)

    def extended_resource(
        self, device_class: Obj, resource: str, taker: str, *, carries: bool
    ) -> None:
        """The extended resource of a class of ours is served by ``taker``; "" ends that.

        Ours still ``carries`` it where giving it up would take it from the other.
        """
        name = device_class["metadata"]["name"]
        key = ("extended resource", name)
        if not taker:
            if self._said.pop(key, None):
                _log.info("extended resource is free again", extra={"class": name})
            return
        stays = (
            "ours is older and out of use, and keeps the name, as kube-scheduler would forget it "
            "otherwise"
            if carries
            else "ours goes without. If pods wait for it as insufficient, change anything of that "
            f"class (kubectl annotate deviceclass {taker} seen=again): kube-scheduler forgets a "
            "name that another class has given up"
        )
        obstacle = Obstacle(
            Reason.EXTENDED_RESOURCE_TAKEN,
            f"extendedResourceName {resource!r} of DeviceClass {name!r} is served by DeviceClass "
            f"{taker!r}, which this driver did not make: {stays}; delete that class or its field "
            "if this driver is to serve the pods that ask for it by limits",
        )
        if not self._is_news(key, obstacle):
            return
        _log.warning("extended resource taken", extra={"class": name, "detail": obstacle.message})
        self._sink.emit(
            _typed(device_class, DEVICE_CLASSES),
            obstacle.reason.value,
            obstacle.message,
            warning=True,
        )

    def _is_news(self, key: tuple[str, str], obstacle: Obstacle) -> bool:
        said, at = self._said.get(key, (None, 0.0))
        now = self._now()
        same = said is not None and said.reason is obstacle.reason
        if same and (said == obstacle or now - at < DETAILS_SECONDS):
            return False
        self._said[key] = (obstacle, now)
        return True

    def forget(self, *, pod_uid: str = "", claim_uid: str = "", gone: bool = False) -> None:
        """An object is ``gone``, or no longer waits."""
        self._observer.no_longer_waits(pod_uid=pod_uid, claim_uid=claim_uid)
        self._said.pop(("pod", pod_uid), None)
        self._said.pop(("claim", claim_uid), None)
        if gone:
            self._conditions.forget(pod_uid)
            self._said.pop(("stranded", pod_uid), None)
            self._said.pop(("evicted", pod_uid), None)
            self._said.pop(("template", pod_uid), None)


def _typed(obj: Obj, resource: Resource) -> Obj:
    """Object with its kind and API version, which objects out of a list lack."""
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        **obj,
    }
