"""The life cycle of a kind: defaults, what each endpoint may write, rules, selectable fields.

A kind that is not in the table is only stored. The kinds of resource.k8s.io are in `dra`, custom
resources in `custom`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj, at
from sim.apiserver.errors import Cause, forbidden, invalid, required
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


def _nothing(*_: Any) -> None:
    """Leaves an object as it is."""


def _no_rule(*_: Any) -> list[Cause]:
    return []


@dataclass(frozen=True, slots=True)
class Kind:
    """The common case: a spec, and a status of its own endpoint.

    `default` fills in, on every write; `begin` completes a new object; `check` gets the new object
    and the old one, or None; `prepare_status` undoes what a write to the status may not change.
    `aliases` are selectable fields that are computed.
    """

    default: Callable[[Obj, Environment], None] = _nothing
    begin: Callable[[Obj, Environment], None] = _nothing
    check: Callable[[Obj, Obj | None], Iterable[Cause]] = _no_rule
    prepare_status: Callable[[Obj, Obj, Environment], None] = _nothing
    check_status: Callable[[Obj, Obj], Iterable[Cause]] = _no_rule
    selectable: tuple[str, ...] = ()
    aliases: Callable[[Obj], Obj] = lambda _: {}
    bumps_generation: bool = False
    unconditional_update: bool = True
    created_by_update: bool = False
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


def _but(obj: Obj, names: Iterable[str]) -> Obj:
    return {name: value for name, value in obj.items() if name not in names}


def text_at(obj: Obj, path: str) -> str:
    """The scalar at a dotted path as text, "" if there is none."""
    value = at(obj, *path.lstrip(".").split("."), default=None)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


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
        image = container.get("image", "")
        latest = ":" not in image.rpartition("/")[2] or image.endswith(":latest")
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
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


def _check_pod(pod: Obj, old: Obj | None) -> Iterable[Cause]:
    """Checks that something runs, that its claims can be found, and that the spec stays."""
    spec = pod["spec"]
    if not spec.get("containers"):
        yield required("spec.containers")
    claims = spec.get("resourceClaims", [])
    for index, claim in enumerate(claims):
        if ("resourceClaimName" in claim) == ("resourceClaimTemplateName" in claim):
            text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            yield invalid(f"spec.resourceClaims[{index}]", claim, text)
    known = {claim.get("name") for claim in claims}
    for part in _CONTAINERS:
        for number, container in enumerate(spec.get(part, [])):
            for index, used in enumerate(at(container, "resources", "claims")):
                if used.get("name") not in known:
                    path = f"spec.{part}[{number}].resources.claims[{index}]"
                    yield Cause("FieldValueNotFound", path, used.get("name", ""))
    if old is not None:
        yield from _check_pod_update(spec, old["spec"])


def _check_pod_update(new: Obj, old: Obj) -> Iterable[Cause]:
    gates = old.get("schedulingGates", [])
    for index, gate in enumerate(new.get("schedulingGates", [])):
        if gate not in gates:
            text = f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'"
            yield forbidden(f"spec.schedulingGates[{index}].name", text)
    mutable = _MUTABLE | {"nodeSelector", "affinity"} if gates else _MUTABLE
    if _immutable(new, mutable) != _immutable(old, mutable):
        yield forbidden("spec", _MAY_CHANGE)


def _immutable(spec: Obj, mutable: Iterable[str]) -> Obj:
    images = {part: [_but(c, ("image",)) for c in spec.get(part, [])] for part in _CONTAINERS}
    return _but(spec, mutable) | images


def grace_seconds(pod: Obj, asked: int | None) -> int:
    """Seconds that a pod outlives a delete request: none without a node, or when it has ended."""
    ended = text_at(pod, "status.phase") in ("Succeeded", "Failed")
    if ended or not text_at(pod, "spec.nodeName"):
        return 0
    seconds: int = pod["spec"]["terminationGracePeriodSeconds"] if asked is None else asked
    return 1 if seconds < 0 else seconds


# --- other kinds --------------------------------------------------------------------------------
def _default_node(node: Obj, _: Environment) -> None:
    node.setdefault("spec", {})
    status = node.setdefault("status", {})
    if "capacity" in status:
        status.setdefault("allocatable", dict(status["capacity"]))


def _default_namespace(namespace: Obj, _: Environment) -> None:
    metadata = namespace["metadata"]
    labels = metadata.setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = metadata.get("name", "")


def _begin_namespace(namespace: Obj, _: Environment) -> None:
    """Its own finalizer holds a namespace until the garbage collector has emptied it."""
    namespace["status"] = {"phase": "Active"}
    namespace["spec"] = {"finalizers": ["kubernetes"]}


def _check_event(event: Obj, _: Obj | None) -> list[Cause]:
    """An event lies where its object lies; those of cluster-wide ones in default."""
    namespace = event["metadata"].get("namespace", "")
    about = at(event, "involvedObject", "namespace", default="")
    if about == namespace or (not about and namespace == "default"):
        return []
    return [invalid("involvedObject.namespace", about, "does not match event.namespace")]


def default_spec(obj: Obj, _: Environment) -> None:
    """Fills in an empty spec."""
    obj.setdefault("spec", {})


def _default_definition(definition: Obj, _: Environment) -> None:
    names = definition["spec"].setdefault("names", {})
    if kind := names.get("kind"):
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")


CORE_KINDS: dict[tuple[str, str], Kind] = {
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
    ("", "namespaces"): Kind(
        default=_default_namespace, begin=_begin_namespace, selectable=("status.phase",)
    ),
    ("", "events"): Kind(
        check=_check_event,
        created_by_update=True,
        selectable=(
            *(f"involvedObject.{name}" for name in ("kind", "namespace", "name", "uid")),
            *("involvedObject.fieldPath", "reason", "type"),
        ),
        aliases=lambda event: {
            "source": text_at(event, "source.component") or text_at(event, "reportingComponent")
        },
    ),
    ("coordination.k8s.io", "leases"): Kind(
        default=default_spec, unconditional_update=False, created_by_update=True
    ),
    ("apiextensions.k8s.io", "customresourcedefinitions"): Kind(
        default=_default_definition,
        bumps_generation=True,
        unconditional_update=False,
        status_carries_metadata=False,
    ),
}
