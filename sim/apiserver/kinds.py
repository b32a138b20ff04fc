"""The life cycle of a kind: defaults, what each endpoint may write, selectable fields.

`Kind` is the common case; those of resource.k8s.io with rules of their own are in `dra`, custom
resources in `custom`; a kind that is nowhere is only stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj, at
from sim.apiserver.errors import Cause
from sim.apiserver.fields import forbidden, invalid, not_found, required
from sim.apiserver.shapes import rfc3339

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from sim.apiserver.ownership import Path
    from sim.apiserver.store import Store


DEFAULT_GATES = frozenset(
    ["DRADeviceBindingConditions", "DRADeviceTaints", "DRAPartitionableDevices"]
)
"""Feature gates that 1.36 has on and that make a difference here."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Surroundings of an object that rules may look at: the clock, the gates, other objects."""

    now: Callable[[], datetime]
    store: Store
    gates: frozenset[str] = field(default=DEFAULT_GATES)

    def timestamp(self) -> str:
        """The present moment as the API writes it."""
        return rfc3339(self.now())


class Kind:
    """The common case: a spec under a generation, a status of its own endpoint."""

    bumps_generation = False
    unconditional_update = True
    created_by_update = False
    graceful = False
    status_carries_metadata = True
    create_keeps_status = False
    selectable: frozenset[str] = frozenset()

    def default(self, obj: Obj, env: Environment) -> None:
        """Fills in defaults; runs on every write, so it must be idempotent."""

    def prepare_create(self, obj: Obj, env: Environment) -> None:
        """Drops or sets what a client may not decide on creation."""

    def prepare_update(self, new: Obj, old: Obj, env: Environment) -> None:
        """Undoes what a write to the main endpoint may not change."""

    def prepare_status(self, new: Obj, old: Obj, env: Environment) -> None:
        """Undoes what a write to the status endpoint may not change."""

    def check_create(self, obj: Obj, env: Environment) -> Iterable[Cause]:
        """Gives what is wrong with a new object."""
        return ()

    def check_update(self, new: Obj, old: Obj, env: Environment) -> Iterable[Cause]:
        """Gives what is wrong with an update of the main endpoint."""
        return self.check_create(new, env)

    def check_status(self, new: Obj, old: Obj, env: Environment) -> Iterable[Cause]:
        """Gives what is wrong with an update of the status endpoint."""
        return ()

    def fields(self, obj: Obj) -> Obj:
        """The values of the selectable fields beside name and namespace."""
        return {path: text_at(obj, path) for path in self.selectable}

    def grace_seconds(self, obj: Obj, asked: int | None) -> int:
        """Gives how long the object outlives a delete request."""
        return 0

    def select(self, obj: Obj) -> Obj:
        """All selectable fields."""
        metadata = obj["metadata"]
        own = {
            "metadata.name": metadata.get("name", ""),
            "metadata.namespace": metadata.get("namespace", ""),
        }
        return own | self.fields(obj)

    def begin(self, obj: Obj, env: Environment, *, has_status: bool) -> None:
        """Brings a new object into its first state."""
        if has_status and not self.create_keeps_status:
            obj.pop("status", None)
        if self.bumps_generation:
            obj["metadata"]["generation"] = 1
        self.prepare_create(obj, env)

    def advance(self, new: Obj, old: Obj, env: Environment, *, has_status: bool) -> None:
        """Confines an update of the main endpoint to what it may change."""
        if has_status:
            _take_over(new, old, "status")
        self.prepare_update(new, old, env)
        counted = ("metadata", "status") if has_status else ("metadata",)
        if self.bumps_generation and _but(new, counted) != _but(old, counted):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def report(self, new: Obj, old: Obj, env: Environment) -> None:
        """Confines an update of the status endpoint to what it may change."""
        for name in set(new) | set(old):
            if name not in ("apiVersion", "kind", "metadata", "status"):
                _take_over(new, old, name)
        if not self.status_carries_metadata:
            kept = {"managedFields", "resourceVersion"}
            theirs = {k: v for k, v in new["metadata"].items() if k in kept}
            new["metadata"] = {k: v for k, v in old["metadata"].items() if k not in kept} | theirs
        self.prepare_status(new, old, env)

    def reset_fields(self, subresource: str, *, has_status: bool) -> tuple[Path, ...]:
        """The fields that a writer of this endpoint cannot own."""
        if subresource == "status":
            spec: tuple[Path, ...] = (("f:spec",),)
            return spec if self.status_carries_metadata else (*spec, ("f:metadata",))
        return (("f:status",),) if has_status else ()


def _take_over(new: Obj, old: Obj, name: str) -> None:
    if name in old:
        new[name] = old[name]
    else:
        new.pop(name, None)


def _but(obj: Obj, names: tuple[str, ...]) -> Obj:
    return {name: value for name, value in obj.items() if name not in names}


def text_at(obj: Obj, path: str) -> str:
    """The scalar at a dotted path as text, "" if there is none."""
    value: Any = obj
    for name in path.lstrip(".").split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


_MUTABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def check_pod(spec: Obj) -> list[Cause]:
    """Checks that there is something to run, and that its claims are what a kubelet can find."""
    causes = [] if spec.get("containers") else [required("spec.containers")]
    claims = spec.get("resourceClaims", [])
    for index, claim in enumerate(claims):
        sources = [f for f in ("resourceClaimName", "resourceClaimTemplateName") if f in claim]
        if len(sources) != 1:
            which = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be"
            none = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            text = f"{which} specified" if sources else none
            causes.append(invalid(f"spec.resourceClaims[{index}]", claim, text))
    known = {claim.get("name") for claim in claims}
    for part in ("initContainers", "containers"):
        for number, container in enumerate(spec.get(part, [])):
            path = f"spec.{part}[{number}].resources.claims"
            causes += [
                not_found(f"{path}[{index}]", reference.get("name", ""))
                for index, reference in enumerate(at(container, "resources", "claims"))
                if reference.get("name") not in known
            ]
    return causes


def check_pod_update(new: Obj, old: Obj) -> list[Cause]:
    """Checks an update: gates may only go, tolerations only come, images may change."""
    causes = check_pod(new)
    if len(new.get("containers", [])) != len(old.get("containers", [])):
        text = "pod updates may not add or remove containers"
        return [*causes, forbidden("spec.containers", text)]
    before = {gate["name"] for gate in old.get("schedulingGates", [])}
    for index, gate in enumerate(new.get("schedulingGates", [])):
        if gate.get("name") not in before:
            text = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            causes.append(forbidden(f"spec.schedulingGates[{index}].name", text))
    kept = new.get("tolerations", [])
    if any(toleration not in kept for toleration in old.get("tolerations", [])):
        text = "existing toleration can not be modified except its tolerationSeconds"
        causes.append(forbidden("spec.tolerations", text))
    if _immutable_part(new, old) != _immutable_part(old, old):
        text = f"pod updates may not change fields other than {_MUTABLE}"
        causes.append(forbidden("spec", text))
    return causes


def check_pod_status(pod: Obj) -> list[Cause]:
    """Checks that the recorded claims belong to claims of the pod."""
    known = {claim.get("name") for claim in pod["spec"].get("resourceClaims", [])}
    text = "must match the name of an entry in `spec.resourceClaims`"
    statuses = at(pod, "status", "resourceClaimStatuses")
    return [
        invalid(f"status.resourceClaimStatuses[{index}].name", status.get("name"), text)
        for index, status in enumerate(statuses)
        if status.get("name") not in known
    ]


def check_event(event: Obj) -> list[Cause]:
    """Checks that an event lies where its object lies; those of cluster-wide ones in default."""
    namespace = event["metadata"].get("namespace", "")
    about = event["involvedObject"].get("namespace", "")
    if about == namespace or (not about and namespace == "default"):
        return []
    return [invalid("involvedObject.namespace", about, "does not match event.namespace")]


def _immutable_part(spec: Obj, old: Obj) -> Obj:
    mutable = {"schedulingGates", "tolerations", "activeDeadlineSeconds"}
    if old.get("schedulingGates"):
        mutable |= _gated_freedom(spec, old)
    kept = {name: value for name, value in spec.items() if name not in mutable}
    for part in ("containers", "initContainers"):
        if part in kept:
            kept[part] = [
                {name: value for name, value in container.items() if name != "image"}
                for container in kept[part]
            ]
    return kept


def _gated_freedom(spec: Obj, old: Obj) -> set[str]:
    """Gives what a gated pod may still tighten: its node selector and node affinity."""
    free = set()
    if old.get("nodeSelector", {}).items() <= spec.get("nodeSelector", {}).items():
        free.add("nodeSelector")
    before, after = old.get("affinity", {}), spec.get("affinity", {})
    others = ("podAffinity", "podAntiAffinity")
    if all(before.get(name) == after.get(name) for name in others):
        free.add("affinity")
    return free


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
        return check_pod(obj["spec"])

    def check_update(self, new: Obj, old: Obj, env: Environment) -> Iterable[Cause]:
        """Refuses all but a few changes of the spec."""
        return check_pod_update(new["spec"], old["spec"])

    def check_status(self, new: Obj, old: Obj, env: Environment) -> Iterable[Cause]:
        """Checks the recorded claims."""
        return check_pod_status(new)

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
        return check_event(obj)

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
