"""Kinds of the core group, leases and definitions; what is not here is only stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra.common.resources import Obj
from sim.apiserver.kinds.kind import Environment, Kind, text_at
from sim.apiserver.validate import pods

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sim.apiserver.refusals.causes import Cause

_WAIT_FOR_NODE_SECONDS = 300
_DEFAULT_GRACE_SECONDS = 30


class PodKind(Kind):
    """Pods: many defaults, a nearly immutable spec, a graceful end once they are on a node."""

    bumps_generation = True
    graceful = True
    selectable = frozenset(
        [
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ]
    )

    def default(self, obj: Obj, env: Environment) -> None:
        """Fills in what kubelets and schedulers take for granted."""
        spec = obj.setdefault("spec", {})
        spec.setdefault("restartPolicy", "Always")
        spec.setdefault("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
        spec.setdefault("dnsPolicy", "ClusterFirst")
        spec.setdefault("securityContext", {})
        spec.setdefault("schedulerName", "default-scheduler")
        for container in [*spec.get("containers", []), *spec.get("initContainers", [])]:
            container.setdefault("terminationMessagePath", "/dev/termination-log")
            container.setdefault("terminationMessagePolicy", "File")
            image = container.get("image", "")
            latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
            container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
            resources = container.setdefault("resources", {})
            if limits := resources.get("limits"):
                resources["requests"] = limits | resources.get("requests", {})
            for port in container.get("ports", []):
                port.setdefault("protocol", "TCP")

    def prepare_create(self, obj: Obj, env: Environment) -> None:
        """Gives a new pod its first status, and what admission adds."""
        spec = obj["spec"]
        spec.setdefault("serviceAccountName", "default")
        spec.setdefault("serviceAccount", spec["serviceAccountName"])
        spec.setdefault("enableServiceLinks", True)
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        spec.setdefault("priority", 0)
        tolerations = spec.setdefault("tolerations", [])
        for trouble in ("not-ready", "unreachable"):
            key = f"node.kubernetes.io/{trouble}"
            if not any(t.get("key", key) == key for t in tolerations):
                tolerations.append(
                    {
                        "key": key,
                        "operator": "Exists",
                        "effect": "NoExecute",
                        "tolerationSeconds": _WAIT_FOR_NODE_SECONDS,
                    }
                )
        obj["status"] = {"phase": "Pending", "qosClass": _qos_class(spec)}
        if spec.get("schedulingGates"):
            obj["status"]["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                    "lastProbeTime": None,
                    "lastTransitionTime": env.timestamp(),
                    "observedGeneration": 1,
                }
            ]

    def prepare_status(self, new: Obj, old: Obj, env: Environment) -> None:
        """Keeps owners and the QoS class."""
        for name in ("ownerReferences",):
            if name in old["metadata"]:
                new["metadata"][name] = old["metadata"][name]
            else:
                new["metadata"].pop(name, None)
        new.setdefault("status", {}).setdefault("qosClass", text_at(old, "status.qosClass"))

    def check_create(self, obj: Obj, env: Environment) -> Iterable[Cause]:
        """Checks that there are containers."""
        return pods.check_pod(obj["spec"])

    def check_update(self, new: Obj, old: Obj, env: Environment) -> Iterable[Cause]:
        """Refuses all but a few changes of the spec."""
        return pods.check_pod_update(new["spec"], old["spec"])

    def check_status(self, new: Obj, old: Obj, env: Environment) -> Iterable[Cause]:
        """Checks the recorded claims."""
        return pods.check_pod_status(new)

    def grace_seconds(self, obj: Obj, asked: int | None) -> int:
        """Gives no time to pods without a node and to finished ones."""
        if not text_at(obj, "spec.nodeName"):
            return 0
        if text_at(obj, "status.phase") in ("Succeeded", "Failed"):
            return 0
        seconds: int = (
            asked
            if asked is not None
            else obj["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS)
        )
        return 1 if seconds < 0 else seconds

    def fields(self, obj: Obj) -> Obj:
        """Gives node, phase and so on."""
        fields = super().fields(obj)
        return fields | {"spec.hostNetwork": fields["spec.hostNetwork"] or "false"}


def _qos_class(spec: Obj) -> str:
    containers = [*spec.get("containers", []), *spec.get("initContainers", [])]
    wanted = [container.get("resources", {}) for container in containers]
    if not any(w.get("requests") or w.get("limits") for w in wanted):
        return "BestEffort"
    guaranteed = all(
        {"cpu", "memory"} <= w.get("limits", {}).keys()
        and w.get("requests", {}) == w.get("limits", {})
        for w in wanted
    )
    return "Guaranteed" if guaranteed else "Burstable"


class NodeKind(Kind):
    """Nodes: allocatable follows capacity until somebody reports it."""

    create_keeps_status = True
    selectable = frozenset(["spec.unschedulable"])

    def default(self, obj: Obj, env: Environment) -> None:
        """Takes the capacity for allocatable."""
        obj.setdefault("spec", {})
        status = obj.setdefault("status", {})
        if "capacity" in status:
            status.setdefault("allocatable", dict(status["capacity"]))

    def fields(self, obj: Obj) -> Obj:
        """Gives whether the node is cordoned: never empty."""
        return {"spec.unschedulable": text_at(obj, "spec.unschedulable") or "false"}


class NamespaceKind(Kind):
    """Namespaces: held by the `kubernetes` finalizer of their spec until they are empty."""

    selectable = frozenset(["status.phase", "name"])

    def default(self, obj: Obj, env: Environment) -> None:
        """Labels the namespace with its name."""
        metadata = obj["metadata"]
        if metadata.get("name"):
            metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = metadata["name"]

    def prepare_create(self, obj: Obj, env: Environment) -> None:
        """Sets the phase and the finalizer."""
        obj["status"] = {"phase": "Active"}
        obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])

    def prepare_update(self, new: Obj, old: Obj, env: Environment) -> None:
        """Keeps the spec's finalizers: the server takes them away when the namespace is empty."""
        new["spec"] = old["spec"]

    def fields(self, obj: Obj) -> Obj:
        """The phase."""
        name = obj["metadata"]["name"]
        return {"status.phase": text_at(obj, "status.phase"), "name": name}


class EventKind(Kind):
    """Events of either group."""

    selectable = frozenset(
        [
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ]
    )

    created_by_update = True

    def default(self, obj: Obj, env: Environment) -> None:
        """Events are about something, somewhere."""
        obj.setdefault("involvedObject", {})

    def check_create(self, obj: Obj, env: Environment) -> Iterable[Cause]:
        """Checks the namespace."""
        return pods.check_event(obj)

    def fields(self, obj: Obj) -> Obj:
        """Gives what the event is about and who reports it."""
        fields = super().fields(obj)
        reporter = text_at(obj, "reportingComponent")
        return fields | {"source": text_at(obj, "source.component") or reporter}


class LeaseKind(Kind):
    """Leases: every PUT names the version that it replaces."""

    unconditional_update = False
    created_by_update = True

    def default(self, obj: Obj, env: Environment) -> None:
        """Gives the lease a spec."""
        obj.setdefault("spec", {})


class SecretKind(Kind):
    """Secrets."""

    def default(self, obj: Obj, env: Environment) -> None:
        """Sets the type."""
        obj.setdefault("type", "Opaque")


class DefinitionKind(Kind):
    """Definitions of custom resources; `definitions` makes them take effect."""

    bumps_generation = True
    unconditional_update = False
    status_carries_metadata = False

    def default(self, obj: Obj, env: Environment) -> None:
        """Completes the names and the conversion."""
        spec = obj.setdefault("spec", {})
        spec.setdefault("conversion", {"strategy": "None"})
        names = spec.setdefault("names", {})
        if kind := names.get("kind"):
            names.setdefault("singular", kind.lower())
            names.setdefault("listKind", f"{kind}List")


CORE_KINDS: dict[tuple[str, str], Kind] = {
    ("", "pods"): PodKind(),
    ("", "nodes"): NodeKind(),
    ("", "namespaces"): NamespaceKind(),
    ("", "events"): EventKind(),
    ("", "secrets"): SecretKind(),
    ("coordination.k8s.io", "leases"): LeaseKind(),
    ("apiextensions.k8s.io", "customresourcedefinitions"): DefinitionKind(),
}
