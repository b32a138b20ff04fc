"""The life cycle of a kind: defaults, what each endpoint may write, rules, selectable fields.

A kind that is not in the table is only stored; custom resources are in `custom`. Of the rules those
are here that our programs or kubectl run into: what else is wrong with an object a real API server
says.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj, at
from dra.kube.timing import rfc3339
from sim.apiserver.errors import Cause, forbidden, invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    from sim.apiserver.ownership import Path
    from sim.apiserver.store import Store


DEFAULT_GATES = frozenset(["DRADeviceTaints", "DRAPartitionableDevices"])
"""Feature gates that 1.36 has on, and that a server may be started without."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Surroundings of an object: the clock, the gates, other objects."""

    now: Callable[[], datetime]
    store: Store
    gates: frozenset[str] = field(default=DEFAULT_GATES)

    def timestamp(self) -> str:
        """The present moment as the API writes it."""
        return rfc3339(self.now())


def _nothing(*_: Any) -> None:
    """Leaves an object as it is."""


def _no_rule(*_: Any) -> list[Cause]:
    return []


@dataclass(frozen=True, slots=True)
class Kind:
    """The common case: a spec, and a status of its own endpoint.

    `default` fills in, on every write; `begin` completes a new object; `check` gets the new object
    and the old one; `check_status` likewise, and undoes before what a write to the status may not
    change. `aliases` are selectable fields that are computed.
    """

    default: Callable[[Obj, Environment], None] = _nothing
    begin: Callable[[Obj, Environment], None] = _nothing
    check: Callable[[Obj, Obj | None], Iterable[Cause]] = _no_rule
    check_status: Callable[[Obj, Obj], Iterable[Cause]] = _no_rule
    selectable: tuple[str, ...] = ()
    aliases: Callable[[Obj], Obj] = lambda _: {}
    bumps_generation: bool = False
    graceful: bool = False
    status_carries_metadata: bool = True
    create_keeps_status: bool = False

    def select(self, obj: Obj) -> Obj:
        """All selectable fields."""
        paths = ("metadata.name", "metadata.namespace", *self.selectable)
        return {path: text_at(obj, path) for path in paths} | self.aliases(obj)

    def create(self, obj: Obj, env: Environment, *, has_status: bool) -> None:
        """Brings a new object into its first state."""
        if has_status and not self.create_keeps_status:
            obj.pop("status", None)
        if self.bumps_generation:
            obj["metadata"]["generation"] = 1
        self.begin(obj, env)

    def advance(self, new: Obj, old: Obj, *, has_status: bool) -> None:
        """Confines an update of the main endpoint to what it may change."""
        if has_status:
            _take_over(new, old, "status")
        counted = ("metadata", "status") if has_status else ("metadata",)
        if self.bumps_generation and _but(new, counted) != _but(old, counted):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    def report(self, new: Obj, old: Obj) -> None:
        """Confines an update of the status endpoint to what it may change."""
        for name in set(new) | set(old):
            if name not in ("apiVersion", "kind", "metadata", "status"):
                _take_over(new, old, name)
        if not self.status_carries_metadata:
            kept = {"managedFields", "resourceVersion"}
            theirs = {k: v for k, v in new["metadata"].items() if k in kept}
            new["metadata"] = {k: v for k, v in old["metadata"].items() if k not in kept} | theirs

    def reset_fields(self, subresource: str, *, has_status: bool) -> tuple[Path, ...]:
        """Fields that nobody owns who writes to an endpoint, as it does not write them."""
        if subresource == "status":
            spec: tuple[Path, ...] = (("f:spec",),)
            return spec if self.status_carries_metadata else (*spec, ("f:metadata",))
        return (("f:status",),) if has_status else ()


def _take_over(new: Obj, old: Obj, name: str) -> None:
    if name in old:
        new[name] = old[name]
    else:
        new.pop(name, None)


def _but(obj: Obj, names: Iterable[str]) -> Obj:
    return {name: value for name, value in obj.items() if name not in names}


def text_at(obj: Obj, path: str) -> str:
    """The scalar at a dotted path as text, "" if there is none."""
    value = at(obj, *path.lstrip(".").split("."), default=None)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _default_spec(obj: Obj, _: Environment) -> None:
    obj.setdefault("spec", {})


def _immutable(path: str, new: Any, old: Any) -> list[Cause]:
    return [] if new == old else [invalid(path, new, "field is immutable")]


def _check_spec_stays(obj: Obj, old: Obj | None) -> list[Cause]:
    return _immutable("spec", obj["spec"], old["spec"]) if old is not None else []


# --- pods ---------------------------------------------------------------------------------------
_POD_DEFAULTS: Obj = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "serviceAccountName": "default",
    "priority": 0,
    "preemptionPolicy": "PreemptLowerPriority",
}
_CONTAINERS = ("containers", "initContainers")
_MUTABLE = {"schedulingGates", "tolerations", "activeDeadlineSeconds"}
_MAY_CHANGE = (
    "pod updates may not change fields other than `spec.containers[*].image`, "
    "`spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations`"
)


def _default_pod(pod: Obj, _: Environment) -> None:
    spec = pod["spec"] = _POD_DEFAULTS | pod.get("spec", {})
    for container in (c for part in _CONTAINERS for c in spec.get(part, [])):
        resources = container.setdefault("resources", {})
        if limits := resources.get("limits"):
            resources["requests"] = limits | resources.get("requests", {})


def _begin_pod(pod: Obj, env: Environment) -> None:
    pod["status"] = {"phase": "Pending"}
    if pod["spec"].get("schedulingGates"):
        gated = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastTransitionTime": env.timestamp(),
        }
        pod["status"]["conditions"] = [gated]


def _check_pod(pod: Obj, old: Obj | None) -> Iterator[Cause]:
    """Gates go and never come, and with the last of them the choice of a node ends."""
    new, before = pod["spec"], (old or pod)["spec"]
    gates = before.get("schedulingGates", [])
    for index, gate in enumerate(new.get("schedulingGates", [])):
        if gate not in gates:
            text = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            yield forbidden(f"spec.schedulingGates[{index}].name", text)
    mutable = _MUTABLE | {"nodeSelector", "affinity"} if gates else _MUTABLE
    if _but_images(new, mutable) != _but_images(before, mutable):
        yield forbidden("spec", _MAY_CHANGE)


def _but_images(spec: Obj, mutable: Iterable[str]) -> Obj:
    images = {part: [_but(c, ("image",)) for c in spec.get(part, [])] for part in _CONTAINERS}
    return _but(spec, mutable) | images


def grace_seconds(pod: Obj, asked: int | None) -> int:
    """Seconds that a pod outlives a delete request: none without a node, or when it has ended."""
    ended = text_at(pod, "status.phase") in ("Succeeded", "Failed")
    if ended or not text_at(pod, "spec.nodeName"):
        return 0
    seconds: int = pod["spec"]["terminationGracePeriodSeconds"] if asked is None else asked
    return 1 if seconds < 0 else seconds


# --- workloads ----------------------------------------------------------------------------------
def _check_workload(obj: Obj, _: Obj | None) -> Iterator[Cause]:
    chosen = at(obj, "spec", "selector", "matchLabels", default={})
    labels = at(obj, "spec", "template", "metadata", "labels", default={})
    if not chosen:
        yield Cause("FieldValueRequired", "spec.selector", "Required value")
    elif any(labels.get(key) != text for key, text in chosen.items()):
        text = "`selector` does not match template `labels`"
        yield invalid("spec.template.metadata.labels", labels, text)


_WORKLOAD = Kind(default=_default_spec, check=_check_workload, bumps_generation=True)


def _begin_job(job: Obj, _: Environment) -> None:
    spec = job["spec"]
    if "completions" not in spec and "parallelism" not in spec:
        spec |= {"completions": 1, "parallelism": 1}


# --- nodes, namespaces, definitions -------------------------------------------------------------
def _default_node(node: Obj, _: Environment) -> None:
    node.setdefault("spec", {})
    status = node.setdefault("status", {})
    if "capacity" in status:
        status.setdefault("allocatable", dict(status["capacity"]))


def _begin_namespace(namespace: Obj, _: Environment) -> None:
    """Its own finalizer holds a namespace until the garbage collector has emptied it."""
    metadata = namespace["metadata"]
    metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = metadata.get("name", "")
    namespace["status"] = {"phase": "Active"}
    namespace["spec"] = {"finalizers": ["kubernetes"]}


def _default_definition(definition: Obj, _: Environment) -> None:
    names = definition["spec"].setdefault("names", {})
    if kind := names.get("kind"):
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")


# --- claims and slices --------------------------------------------------------------------------
_IDENTITY = ("driver", "pool", "device", "shareID")
_GATED_DEVICE_FIELDS = {
    "DRAPartitionableDevices": ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
    "DRADeviceTaints": ("taints",),
    "Kubernetes 1.37": ("nodeAllocatableResources",),
}


def _default_requests(spec: Obj) -> None:
    for request in spec.setdefault("devices", {}).get("requests", []):
        for wanted in [request.get("exactly"), *request.get("firstAvailable", [])]:
            if wanted is not None and (
                wanted.setdefault("allocationMode", "ExactCount") == "ExactCount"
            ):
                wanted["count"] = wanted.get("count") or 1


def _default_claim(claim: Obj, _: Environment) -> None:
    _default_requests(claim.setdefault("spec", {}))
    status = claim.setdefault("status", {})
    if "allocation" in status:
        status["allocation"].setdefault("devices", {})


def _default_template(template: Obj, _: Environment) -> None:
    _default_requests(template.setdefault("spec", {}).setdefault("spec", {}))


def _devices(status: Obj) -> set[tuple[str, ...]]:
    """Identities of the devices of an allocation."""
    return {_identity(result) for result in at(status, "allocation", "devices", "results")}


def _identity(entry: Obj) -> tuple[str, ...]:
    return tuple(entry.get(field, "") for field in _IDENTITY)


def _check_claim_status(new: Obj, old: Obj) -> Iterator[Cause]:
    """Checks a status, without the devices of an allocation that is gone.

    An allocation may come and go but never change.
    """
    status, before = new.setdefault("status", {}), old.get("status", {})
    allocation, allocated = status.get("allocation"), _devices(status)
    gone = _devices(before) - allocated
    if devices := [d for d in status.pop("devices", []) if _identity(d) not in gone]:
        status["devices"] = devices
    if allocation is not None and "allocation" in before:
        yield from _immutable("status.allocation", allocation, before["allocation"])
    reserved, path = status.get("reservedFor", []), "status.reservedFor"
    if reserved and allocation is None:
        yield forbidden(path, "may not be specified when `allocated` is not set")
    elif "deletionTimestamp" in new["metadata"] and any(
        entry not in before.get("reservedFor", []) for entry in reserved
    ):
        yield forbidden(path, "new entries may not be added while `deletionTimestamp` is set")
    for index, device in enumerate(devices):
        if _identity(device) not in allocated:
            identity = "/".join(filter(None, _identity(device)))
            text = "must be an allocated device in the claim"
            yield invalid(f"status.devices[{index}]", identity, text)


def _default_slice(obj: Obj, env: Environment) -> None:
    """Drops fields behind closed gates, and stamps taints."""
    spec = obj.setdefault("spec", {})
    if "DRAPartitionableDevices" not in env.gates:
        spec.pop("sharedCounters", None)
        spec.pop("perDeviceNodeSelection", None)
    closed = [f for gate, fs in _GATED_DEVICE_FIELDS.items() if gate not in env.gates for f in fs]
    for device in spec.get("devices", []):
        for name in closed:
            device.pop(name, None)
        for taint in device.get("taints", []):
            taint.setdefault("timeAdded", env.timestamp())


def _check_slice(obj: Obj, _: Obj | None) -> Iterator[Cause]:
    # Kubernetes 1.34 took both, and the plugin tries which of the two a server is.
    if at(obj, "spec", "devices") and at(obj, "spec", "sharedCounters"):
        yield invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")


KINDS: dict[tuple[str, str], Kind] = {
    ("", "pods"): Kind(
        default=_default_pod,
        begin=_begin_pod,
        check=_check_pod,
        bumps_generation=True,
        graceful=True,
        selectable=(
            *("spec.nodeName", "spec.schedulerName", "status.phase"),
            "status.nominatedNodeName",
        ),
    ),
    ("", "nodes"): Kind(
        default=_default_node,
        create_keeps_status=True,
        aliases=lambda node: {"spec.unschedulable": text_at(node, "spec.unschedulable") or "false"},
    ),
    ("", "namespaces"): Kind(begin=_begin_namespace, selectable=("status.phase",)),
    ("", "events"): Kind(
        selectable=(
            *(f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid")),
            *("involvedObject.fieldPath", "reason", "type"),
        ),
        aliases=lambda event: {
            "source": text_at(event, "source.component") or text_at(event, "reportingComponent")
        },
    ),
    ("apps", "deployments"): _WORKLOAD,
    ("apps", "replicasets"): _WORKLOAD,
    ("apps", "statefulsets"): _WORKLOAD,
    ("apps", "daemonsets"): _WORKLOAD,
    ("batch", "jobs"): Kind(default=_default_spec, begin=_begin_job, bumps_generation=True),
    ("coordination.k8s.io", "leases"): Kind(default=_default_spec),
    ("apiextensions.k8s.io", "customresourcedefinitions"): Kind(
        default=_default_definition, bumps_generation=True, status_carries_metadata=False
    ),
    ("resource.k8s.io", "resourceclaims"): Kind(
        default=_default_claim,
        begin=lambda claim, _: claim.update(status={}),
        check=_check_spec_stays,
        check_status=_check_claim_status,
        status_carries_metadata=False,
    ),
    ("resource.k8s.io", "resourceclaimtemplates"): Kind(
        default=_default_template, check=_check_spec_stays
    ),
    ("resource.k8s.io", "deviceclasses"): Kind(default=_default_spec, bumps_generation=True),
    ("resource.k8s.io", "resourceslices"): Kind(
        default=_default_slice,
        check=_check_slice,
        bumps_generation=True,
        selectable=("spec.nodeName", "spec.driver"),
    ),
}
