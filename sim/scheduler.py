"""Stand-in for kube-scheduler with pods and their claims: first fit, one pod at a time.

It does not allocate devices: a claim that nobody else allocates waits, as it does in a cluster
where no ResourceSlice offers a device for it. What happens to claims that another program allocates
follows the dynamicresources plugin of Kubernetes 1.36, but for binding conditions, for which it
does not wait. A pod that fits nowhere is tried again after a change.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from dra.claims.claims import claim_names
from dra.common.resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    Obj,
    Resource,
    at,
)
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError
from dra.kube.events import EventRecorder
from dra.kube.reflector import Change, Reflector
from dra.kube.timing import rfc3339
from dra.pods.nodefit import NodeFacts, find_misfit, read_node
from dra.pods.pods import Amounts, PodNeeds, effective_request, read_needs
from dra.pods.selectors import matches_selector
from sim.daemon import WorkQueue

FIRST_BACKOFF = 1.0
LAST_BACKOFF = 10.0
FLUSH_SECONDS = 300.0
"""After this long a rejected pod is tried again although nothing changed."""

NAME = "default-scheduler"
_TERMINAL = frozenset({"Succeeded", "Failed"})
_log = logging.getLogger(__name__)


class WaitingError(Exception):
    """The pod is not worth a look yet: a claim does not exist (PreEnqueue)."""


class UnresolvableError(Exception):
    """No node will do as long as the claims are what they are (PreFilter)."""


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The claims of one pod, in the order of its spec."""

    pod: Obj
    claims: list[Obj]
    off_node: set[str] = field(default_factory=set)
    """Names of the allocated claims that were the reason to reject a node."""

    def reject_node(self, node: Obj) -> str:
        """Filter: the reason why the claims do not go with this node, or ""."""
        reason, metadata = "", node["metadata"]
        for claim in self.claims:
            allocation = at(claim, "status", "allocation", default=None)
            if allocation is None:
                reason = reason or "cannot allocate all claims"
            elif not matches_selector(
                allocation.get("nodeSelector"), metadata.get("labels", {}), metadata["name"]
            ):
                self.off_node.add(claim["metadata"]["name"])
                reason = "resourceclaim not available on the node"
        return reason

    def to_deallocate(self) -> Obj | None:
        """PostFilter: the first claim whose allocation keeps the pod from other nodes, if any.

        A claim that another consumer holds is left alone.
        """
        for claim in self.claims:
            reserved = [c["uid"] for c in at(claim, "status", "reservedFor")]
            mine = not reserved or reserved == [self.pod["metadata"]["uid"]]
            if mine and claim["metadata"]["name"] in self.off_node:
                return claim
        return None


def find_claims(
    pod: Obj,
    get_claim: Callable[[str, str], Obj | None],
    get_class: Callable[[str], Obj | None],
) -> PodClaims:
    """The pod's claims, looked up by name and namespace.

    Raises:
        WaitingError: a claim does not exist yet.
        UnresolvableError: a claim is being deleted, or a class is missing.
    """
    namespace, claims = pod["metadata"]["namespace"], []
    for pod_claim, name in claim_names(pod).items():
        claim = get_claim(name, namespace) if name is not None else None
        if claim is None:
            raise WaitingError(f"pod claim {pod_claim!r}: there is no ResourceClaim yet")
        if "deletionTimestamp" in claim["metadata"]:
            raise UnresolvableError(f'resourceclaim "{name}" is being deleted')
        if "allocation" not in claim.get("status", {}):
            _check_classes(claim, get_class)
        claims.append(claim)
    return PodClaims(pod, claims)


def _check_classes(claim: Obj, get_class: Callable[[str], Obj | None]) -> None:
    for request in at(claim["spec"], "devices", "requests"):
        for wanted in request.get("firstAvailable") or [request.get("exactly", {})]:
            name = wanted.get("deviceClassName", "")
            if name and get_class(name) is None:
                raise UnresolvableError(
                    f"request {request['name']}: device class {name} does not exist"
                )


class SchedulerWrites:
    """The scheduler's requests to the API. Raises the errors of dra.kube.errors."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._events = EventRecorder(api, component=NAME)

    def close(self) -> None:
        """Sends the last events."""
        self._events.close()

    def reserve(self, pod: Obj, claim: Obj) -> None:
        """PreBind: add the pod to ``reservedFor``; nothing is written when it is there.

        An allocation without a timestamp gets one, as from kube-scheduler, and is refused by the
        API server because an allocation never changes.
        """
        user, status = pod["metadata"], claim["status"]
        if any(c["uid"] == user["uid"] for c in status.get("reservedFor", ())):
            return
        consumer = {"resource": "pods", "name": user["name"], "uid": user["uid"]}
        change: Obj = {"reservedFor": [consumer]}
        if "allocationTimestamp" not in status["allocation"]:
            change["allocation"] = {"allocationTimestamp": rfc3339(datetime.now(UTC))}
        self._patch(RESOURCE_CLAIMS, claim, change)

    def deallocate(self, claim: Obj) -> None:
        """PostFilter: take the allocation away, with reservations and device status."""
        metadata = claim["metadata"]
        _log.info("deallocating claim %s/%s", metadata["namespace"], metadata["name"])
        nothing = dict.fromkeys(("allocation", "reservedFor", "devices"))
        version = {"resourceVersion": metadata["resourceVersion"]}
        self._patch(RESOURCE_CLAIMS, claim, nothing, **version)

    def bind(self, pod: Obj, node: str) -> None:
        """Binds the pod through its binding subresource."""
        metadata = {name: pod["metadata"][name] for name in ("namespace", "name", "uid")}
        path = f"pods/{metadata['name']}/binding"
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._api.create(Resource("", "v1", path, "Binding", namespaced=True), body)
        where = f"{metadata['namespace']}/{metadata['name']}"
        self._events.emit(pod, "Scheduled", f"Successfully assigned {where} to {node}")

    def report(self, pod: Obj, reason: str, message: str) -> None:
        """Event FailedScheduling, and condition PodScheduled=False if it says something new.

        ``reason`` is ``Unschedulable`` or ``SchedulerError``.
        """
        self._events.emit(pod, "FailedScheduling", message, warning=True)
        conditions = at(pod, "status", "conditions")
        old: Obj = next((c for c in conditions if c["type"] == "PodScheduled"), {})
        if (old.get("reason"), old.get("message")) == (reason, message):
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": old.get("lastTransitionTime") or rfc3339(datetime.now(UTC)),
        }
        self._patch(PODS, pod, {"conditions": [condition]})

    def _patch(self, resource: Resource, obj: Obj, status: Obj, **metadata: str) -> None:
        """Changes the status of this object, and of none that came in its place."""
        have = obj["metadata"]
        self._api.patch(
            resource,
            have["name"],
            {"metadata": {"uid": have["uid"], **metadata}, "status": status},
            namespace=have["namespace"],
            subresource="status",
            content="strategic",
        )


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node, and what its pods ask for together."""

    node: Obj
    facts: NodeFacts
    used: Amounts


class Scheduler:
    """Schedules the pods of ``schedulerName: default-scheduler``."""

    def __init__(self, api: KubeApi) -> None:
        self._writes = SchedulerWrites(api)
        self._queue = WorkQueue(
            "scheduling", self._look_at, first_retry=FIRST_BACKOFF, last_retry=LAST_BACKOFF
        )
        self._lock = threading.Lock()
        self._bound: dict[str, tuple[str, Obj]] = {}
        """Node and pod, by UID, of pods that were just bound: their event may be on its way."""
        self._pods = Reflector(api, PODS, on_event=self._pod_changed)
        self._nodes = Reflector(api, NODES, on_event=self._changed)
        self._claims = Reflector(api, RESOURCE_CLAIMS, on_event=self._claim_changed)
        self._classes = Reflector(api, DEVICE_CLASSES, on_event=self._changed)

    def start(self) -> None:
        """Begin."""
        for reflector in self._reflectors():
            reflector.start()
        self._queue.start()

    def stop(self) -> None:
        """Ends after the pod at hand."""
        self._queue.stop()
        for reflector in self._reflectors():
            reflector.stop()
        self._writes.close()

    def _reflectors(self) -> Sequence[Reflector]:
        return (self._nodes, self._classes, self._claims, self._pods)

    def _look_at(self, uid: str) -> float | None:
        for reflector in self._reflectors():
            reflector.wait_synced(None)
        pod = next((p for p in self._pods.store.list() if p["metadata"]["uid"] == uid), None)
        if pod is None or uid in self._bound or not _wants_node(pod) or self._schedule(pod):
            return None
        return FLUSH_SECONDS

    def _schedule(self, pod: Obj) -> bool:
        """True if a node was found for the pod; else it says why not, unless a claim is to come."""
        nodes = self._views()
        try:
            claims = find_claims(pod, self._claims.store.get, self._classes.store.get)
        except WaitingError as error:
            _log.debug("pod %s: %s", pod["metadata"]["name"], error)
            return False
        except UnresolvableError as error:
            message = _explain(Counter({str(error): len(nodes)}), total=len(nodes))
            self._writes.report(pod, "Unschedulable", message)
            return False
        needs = read_needs(pod["spec"])
        fitting, reasons = _filter(needs, claims, nodes)
        if fitting:
            node = max(fitting, key=lambda view: _free_share(needs, view)).facts.name
            self._bind(pod, claims, node)
            return True
        message = _explain(reasons, total=len(nodes))
        if (claim := claims.to_deallocate()) is not None:
            self._writes.deallocate(claim)
            message += " preemption: deallocation of ResourceClaim completed"
        self._writes.report(pod, "Unschedulable", message)
        return False

    def _bind(self, pod: Obj, claims: PodClaims, node: str) -> None:
        """PreBind and Bind; raises KubeError if a write fails, so that the queue tries again."""
        uid = pod["metadata"]["uid"]
        with self._lock:
            self._bound[uid] = (node, pod)
        try:
            for claim in claims.claims:
                self._writes.reserve(pod, claim)
            self._writes.bind(pod, node)
        except KubeError as error:
            with self._lock:
                self._bound.pop(uid, None)
            self._writes.report(pod, "SchedulerError", f"running PreBind or Bind: {error}")
            raise

    def _views(self) -> list[NodeView]:
        """Every node with what its pods, seen or just bound, ask for; in the order of names."""
        placed = [
            (p["spec"]["nodeName"], p)
            for p in self._pods.store.list()
            if p["spec"].get("nodeName") and at(p, "status", "phase") not in _TERMINAL
        ]
        with self._lock:
            placed += self._bound.values()
        used: dict[str, Counter[str]] = {}
        for name, pod in placed:
            used.setdefault(name, Counter()).update(effective_request(pod["spec"]))
        facts = {obj["metadata"]["name"]: (obj, read_node(obj)) for obj in self._nodes.store.list()}
        return [NodeView(*facts[name], used.get(name, {})) for name in sorted(facts)]

    def _pod_changed(self, change: Change) -> None:
        pod = change.new or change.old
        if pod is None:
            return
        uid = pod["metadata"]["uid"]
        gone = change.new is None or at(pod, "status", "phase") in _TERMINAL
        if gone or pod["spec"].get("nodeName"):
            with self._lock:
                self._bound.pop(uid, None)
        wants = change.new is not None and _wants_node(change.new)
        if wants and (change.old is None or _worth_a_try(change.old, pod)):
            self._queue.add(uid)
        if gone:
            self._wake()

    def _changed(self, change: Change) -> None:
        if change.new is not None:
            self._wake()

    def _claim_changed(self, change: Change) -> None:
        """Wakes the claim's pods when its status changed, all pods when a device became free."""
        claim = change.new or change.old
        if claim is None:
            return
        before, after = ((o or {}).get("status", {}) for o in (change.old, change.new))
        if "allocation" in before and "allocation" not in after:
            self._wake()
        elif change.old is None or before != after:
            self._wake(claim)

    def _wake(self, claim: Obj | None = None) -> None:
        """Has the waiting pods tried again: those that use a claim, or all."""
        for pod in self._pods.store.list():
            if _wants_node(pod) and (claim is None or _uses(pod, claim)):
                self._queue.add(pod["metadata"]["uid"])


def _uses(pod: Obj, claim: Obj) -> bool:
    metadata = claim["metadata"]
    is_near = pod["metadata"]["namespace"] == metadata["namespace"]
    return is_near and metadata["name"] in claim_names(pod).values()


def _filter(
    needs: PodNeeds, claims: PodClaims, nodes: Sequence[NodeView]
) -> tuple[list[NodeView], Counter[str]]:
    """Nodes that fit, and how many were rejected for each reason.

    Claims are asked last, so a node that fails for another reason is not blamed on a claim.
    """
    fitting: list[NodeView] = []
    reasons: Counter[str] = Counter()
    for view in nodes:
        misfit = find_misfit(needs, view.facts, view.used)
        reason = misfit.message if misfit is not None else claims.reject_node(view.node)
        if reason:
            reasons[reason] += 1
        else:
            fitting.append(view)
    return fitting, reasons


def _free_share(needs: PodNeeds, view: NodeView) -> float:
    """Share of CPU and memory together that stays free with the pod: least allocated first."""
    free = 0.0
    for name in ("cpu", "memory"):
        if whole := view.facts.allocatable.get(name, 0):
            free += 1 - (view.used.get(name, 0) + needs.requests.get(name, 0)) / whole
    return free


def _explain(reasons: Counter[str], *, total: int) -> str:
    if not total:
        return "no nodes available to schedule pods"
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    return f"0/{total} nodes are available: {listed}."


def _wants_node(pod: Obj) -> bool:
    spec = pod["spec"]
    return (
        not spec.get("nodeName")
        and "deletionTimestamp" not in pod["metadata"]
        and at(pod, "status", "phase") not in _TERMINAL
        and spec.get("schedulerName", NAME) == NAME
        and not spec.get("schedulingGates")
    )


def _worth_a_try(old: Obj, new: Obj) -> bool:
    """True if a waiting pod changed in a way that may make it fit; its conditions do not."""
    fields = ("labels", "annotations", "deletionTimestamp")
    return (
        old["spec"] != new["spec"]
        or any(old["metadata"].get(f) != new["metadata"].get(f) for f in fields)
        or claim_names(old) != claim_names(new)
    )
