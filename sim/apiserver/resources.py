"""The resources that are served: the built-in ones here, custom ones from their definitions.

List types and patch strategies of the built-in kinds are those of the 1.36 OpenAPI.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sim.apiserver.shapes import (
    ANY,
    QUANTITY,
    Shape,
    keyed,
    list_of,
    map_of,
    set_of,
    struct,
)

Family = tuple[str, str]
"""(API group, plural): all served versions of a resource share one collection."""

_LISTS = list_of()
METADATA = struct(
    labels=map_of(ANY),
    annotations=map_of(ANY),
    finalizers=set_of(),
    ownerReferences=keyed(struct(atomic=True), "uid"),
    managedFields=_LISTS,
)


def _kind(**fields: Shape) -> Shape:
    """Describes a whole object of which other top-level fields are dropped."""
    common = {"apiVersion": ANY, "kind": ANY, "metadata": METADATA}
    return Shape("struct", common | fields, closed=True)


_CONDITIONS = keyed(ANY, "type")
_REFERENCE = struct(atomic=True)
_BINDING: dict[str, Any] = {"bindingConditions": _LISTS, "bindingFailureConditions": _LISTS}
_DEVICES = struct(requests=_LISTS, constraints=_LISTS, config=_LISTS)
_CLAIM_SPEC = struct(devices=_DEVICES)
_RESULT = struct(consumedCapacity=map_of(QUANTITY), tolerations=_LISTS, **_BINDING)
_CLAIM = _kind(
    spec=_CLAIM_SPEC,
    status=struct(
        allocation=struct(
            devices=struct(results=list_of(_RESULT), config=_LISTS),
            nodeSelector=_REFERENCE,
        ),
        reservedFor=keyed(ANY, "uid"),
        devices=keyed(
            struct(
                conditions=keyed(ANY, "type", merge=False),
                data=_REFERENCE,
            ),
            *("driver", "device", "pool", "shareID"),
            merge=False,
        ),
    ),
)
_COUNTERS = map_of(struct(value=QUANTITY))
_DEVICE = struct(
    attributes=map_of(ANY),
    capacity=map_of(struct(value=QUANTITY)),
    consumesCounters=list_of(struct(counters=_COUNTERS)),
    **_BINDING,
)
_SLICE = _kind(
    spec=struct(
        sharedCounters=list_of(struct(counters=_COUNTERS)),
        devices=list_of(_DEVICE),
        nodeSelector=_REFERENCE,
    )
)
_CONTAINER = struct(
    env=keyed(struct(valueFrom=map_of(_REFERENCE)), "name"),
    ports=keyed(ANY, "containerPort", "protocol", protocol="TCP"),
    volumeMounts=keyed(ANY, "mountPath"),
    resources=struct(claims=keyed(ANY, "name", merge=False)),
)
_POD_SPEC = struct(
    containers=keyed(_CONTAINER, "name"),
    initContainers=keyed(_CONTAINER, "name"),
    volumes=keyed(ANY, "name"),
    imagePullSecrets=keyed(_REFERENCE, "name"),
    resourceClaims=keyed(ANY, "name"),
    schedulingGates=keyed(ANY, "name"),
    nodeSelector=map_of(ANY, atomic=True),
    affinity=struct(nodeAffinity=struct(requiredDuringSchedulingIgnoredDuringExecution=_REFERENCE)),
)
_POD = _kind(
    spec=_POD_SPEC,
    status=struct(
        conditions=_CONDITIONS,
        podIPs=keyed(ANY, "ip"),
        resourceClaimStatuses=keyed(ANY, "name"),
    ),
)
_WORKLOAD = _kind(
    spec=struct(template=struct(metadata=METADATA, spec=_POD_SPEC)),
    status=struct(conditions=_CONDITIONS),
)
_NODE = _kind(
    spec=struct(taints=_LISTS), status=struct(conditions=_CONDITIONS, addresses=keyed(ANY, "type"))
)
_EVENT = struct(metadata=METADATA, involvedObject=_REFERENCE)
_LEASE = _kind(spec=ANY)
_DEFINITION = _kind(spec=ANY, status=struct(conditions=keyed(ANY, "type", merge=False)))
_PLAIN = struct(metadata=METADATA)
_TEMPLATE = _kind(spec=struct(metadata=METADATA, spec=_CLAIM_SPEC))
_CLASS = _kind(spec=struct(selectors=_LISTS, config=_LISTS))
_CONFIG_MAP = _kind(data=map_of(ANY), binaryData=map_of(ANY), immutable=ANY)


@dataclass(frozen=True, slots=True)
class ResourceType:
    """One resource in one version: names, scope, subresources and the shape of its objects.

    `columns` and `selectable` are those of a custom resource's definition. Of an `idle` one no
    controller runs here: it is stored, and who writes it is told.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    shape: Shape = _PLAIN
    subresources: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    singular: str = ""
    custom: bool = False
    columns: tuple[dict[str, Any], ...] = ()
    selectable: tuple[str, ...] = ()
    idle: bool = False

    @property
    def api_version(self) -> str:
        """The `apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """Plural and group, as messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def family(self) -> Family:
        """Family under which the resource's objects are stored."""
        return (self.group, self.plural)

    @property
    def has_status(self) -> bool:
        """True if the status has an endpoint of its own."""
        return "status" in self.subresources


_STATUS = ("status",)
_DRA = "resource.k8s.io"
_CRDS = "apiextensions.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
STREAMS = ("exec", "attach", "portforward")
"""Subresources of a pod that need a program in its containers."""
_POD_CALLS = ("status", "binding", "eviction", "log", *STREAMS)


def _of(group: str, plural: str, kind: str, *short: str, **more: Any) -> ResourceType:
    return ResourceType(group, "v1", plural, kind, short_names=short, **more)


def _global(group: str, plural: str, kind: str, *short: str, **more: Any) -> ResourceType:
    return _of(group, plural, kind, *short, namespaced=False, **more)


def _workload(names: tuple[str, ...], *subresources: str) -> ResourceType:
    return _of(*names, shape=_WORKLOAD, subresources=subresources, categories=("all",))


_SPACE = _kind(spec=ANY, status=ANY)
NAMESPACES = _global("", "namespaces", "Namespace", "ns", shape=_SPACE, subresources=_STATUS)
NODES = _global("", "nodes", "Node", "no", shape=_NODE, subresources=_STATUS)
CUSTOM_RESOURCE_DEFINITIONS = _global(
    *(_CRDS, "customresourcedefinitions", "CustomResourceDefinition", "crd", "crds"),
    shape=_DEFINITION,
    subresources=_STATUS,
)
_WORKLOADS = (
    ("apps", "daemonsets", "DaemonSet", "ds"),
    ("batch", "jobs", "Job"),
)
_SCALED = (
    ("apps", "deployments", "Deployment", "deploy"),
    ("apps", "replicasets", "ReplicaSet", "rs"),
    ("apps", "statefulsets", "StatefulSet", "sts"),
)
_IDLE = (
    ("", "services", "Service", "svc"),
    ("", "resourcequotas", "ResourceQuota", "quota"),
    ("rbac.authorization.k8s.io", "roles", "Role"),
    ("rbac.authorization.k8s.io", "rolebindings", "RoleBinding"),
)
_IDLE_GLOBAL = (
    ("rbac.authorization.k8s.io", "clusterroles", "ClusterRole"),
    ("rbac.authorization.k8s.io", "clusterrolebindings", "ClusterRoleBinding"),
    ("scheduling.k8s.io", "priorityclasses", "PriorityClass", "pc"),
    (_ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
    (_ADMISSION, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
)

BUILTIN: tuple[ResourceType, ...] = (
    NAMESPACES,
    NODES,
    CUSTOM_RESOURCE_DEFINITIONS,
    _of("", "pods", "Pod", "po", shape=_POD, subresources=_POD_CALLS, categories=("all",)),
    _of("", "events", "Event", "ev", shape=_EVENT),
    _of("", "configmaps", "ConfigMap", "cm", shape=_CONFIG_MAP),
    _of("", "secrets", "Secret"),
    _of("", "serviceaccounts", "ServiceAccount", "sa"),
    _of("coordination.k8s.io", "leases", "Lease", shape=_LEASE),
    _of(_DRA, "resourceclaims", "ResourceClaim", shape=_CLAIM, subresources=_STATUS),
    _of(_DRA, "resourceclaimtemplates", "ResourceClaimTemplate", shape=_TEMPLATE),
    _global(_DRA, "resourceslices", "ResourceSlice", shape=_SLICE),
    _global(_DRA, "deviceclasses", "DeviceClass", shape=_CLASS),
    *(_workload(names, *_STATUS) for names in _WORKLOADS),
    *(_workload(names, *_STATUS, "scale") for names in _SCALED),
    *(_of(*names, idle=True, subresources=_STATUS) for names in _IDLE),
    *(_global(*names, idle=True) for names in _IDLE_GLOBAL),
)


class Catalogue:
    """Every served resource, by group, version and plural."""

    def __init__(self) -> None:
        self._types = {(t.group, t.version, t.plural): t for t in BUILTIN}

    def find(self, group: str, version: str, plural: str) -> ResourceType | None:
        """A resource, or None if it is not served."""
        return self._types.get((group, version, plural))

    def of_family(self, family: Family) -> ResourceType:
        """Some version of a stored resource: enough to delete its objects."""
        return next(t for t in self._types.values() if t.family == family)

    def of_kind(self, group: str, kind: str) -> ResourceType | None:
        """Some version of a kind: what an owner reference names."""
        return next((t for t in self._types.values() if (t.group, t.kind) == (group, kind)), None)

    def serve(self, resource: ResourceType) -> None:
        """Begins to serve a custom resource, or replaces it."""
        self._types[resource.group, resource.version, resource.plural] = resource

    def withdraw(self, family: Family) -> None:
        """Ends serving every version of a custom resource."""
        self._types = {key: t for key, t in self._types.items() if t.family != family}

    def all(self) -> list[ResourceType]:
        """Gives everything, core first, then by group, version and plural."""
        return sorted(self._types.values(), key=lambda t: (t.group, t.version, t.plural))
