"""The resources that are served: the built-in ones here, custom ones from their definitions.

List types and patch strategies of the built-in kinds are those of the 1.36 OpenAPI.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dra.common.resources import Obj
from sim.apiserver.shapes import (
    ANY,
    MICRO_TIME,
    QUANTITY,
    TIME,
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
    creationTimestamp=TIME,
    deletionTimestamp=TIME,
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
            allocationTimestamp=TIME,
        ),
        reservedFor=keyed(ANY, "uid"),
        devices=keyed(
            struct(
                conditions=keyed(struct(lastTransitionTime=TIME), "type", merge=False),
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
    taints=list_of(struct(timeAdded=TIME)),
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
_POD = _kind(
    spec=struct(
        containers=keyed(_CONTAINER, "name"),
        initContainers=keyed(_CONTAINER, "name"),
        volumes=keyed(ANY, "name"),
        imagePullSecrets=keyed(_REFERENCE, "name"),
        resourceClaims=keyed(ANY, "name"),
        schedulingGates=keyed(ANY, "name"),
        nodeSelector=map_of(ANY, atomic=True),
        affinity=struct(
            nodeAffinity=struct(requiredDuringSchedulingIgnoredDuringExecution=_REFERENCE)
        ),
    ),
    status=struct(
        conditions=_CONDITIONS,
        podIPs=keyed(ANY, "ip"),
        resourceClaimStatuses=keyed(ANY, "name"),
    ),
)
_NODE = _kind(
    spec=struct(taints=_LISTS), status=struct(conditions=_CONDITIONS, addresses=keyed(ANY, "type"))
)
_TIMES: dict[str, Any] = {"firstTimestamp": TIME, "lastTimestamp": TIME, "eventTime": MICRO_TIME}
_EVENT = struct(metadata=METADATA, involvedObject=_REFERENCE, **_TIMES)
_LEASE = _kind(spec=struct(acquireTime=MICRO_TIME, renewTime=MICRO_TIME))
_DEFINITION = _kind(spec=ANY, status=struct(conditions=keyed(ANY, "type", merge=False)))
_PLAIN = struct(metadata=METADATA)
_CONFIG_MAP = _kind(data=map_of(ANY), binaryData=map_of(ANY), immutable=ANY)


@dataclass(frozen=True, slots=True)
class ResourceType:
    """One resource in one version: names, scope, subresources and the shape of its objects.

    `schema` and `columns` are those of a custom resource's definition. `lacking` tells who writes
    one what does not follow here, and does in a real cluster.
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
    schema: dict[str, Any] = field(default_factory=dict)
    columns: tuple[dict[str, Any], ...] = ()
    selectable: tuple[str, ...] = ()
    lacking: str = ""

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

    def present(self, obj: Obj) -> Obj:
        """A stored object under this version, which differs in its name only."""
        if obj["apiVersion"] == self.api_version:
            return obj
        return obj | {"apiVersion": self.api_version}


_STATUS = ("status",)
_ALL: dict[str, Any] = {"categories": ("all",)}
_DRA = ("resource.k8s.io", "v1")
_RBAC = "rbac.authorization.k8s.io"
_POLICIES = "admissionregistration.k8s.io"
NAMESPACES = ResourceType(
    "",
    "v1",
    "namespaces",
    "Namespace",
    namespaced=False,
    shape=_kind(spec=ANY, status=ANY),
    subresources=_STATUS,
    short_names=("ns",),
)
NODES = ResourceType("", "v1", "nodes", "Node", False, _NODE, _STATUS, ("no",))
CUSTOM_RESOURCE_DEFINITIONS = ResourceType(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
    shape=_DEFINITION,
    subresources=_STATUS,
    short_names=("crd", "crds"),
)
_NO_NETWORK = "it has no network, and nothing answers at one"
_ALL_MAY = "every client may do everything"
_NO_POLICY = "nothing is refused by one; policies need a real cluster (make cluster)"
_NO_QUOTA = "nothing is counted and nothing refused; quota needs a real cluster (make cluster)"
_NO_PODS = "no pod comes of one; apply Pods, or use a real cluster (make cluster)"


def _stored(group: str, plural: str, kind: str, lacking: str, **more: Any) -> ResourceType:
    """A kind that is stored, and whose controllers run nowhere here."""
    text = f"this simulated cluster stores {kind}s and does nothing with them: {lacking}"
    return ResourceType(group, "v1", plural, kind, lacking=text, **more)


def _workload(group: str, plural: str, kind: str, *short: str) -> ResourceType:
    more = {"subresources": _STATUS, "short_names": short, **_ALL}
    return _stored(group, plural, kind, _NO_PODS, **more)


BUILTIN: tuple[ResourceType, ...] = (
    NAMESPACES,
    NODES,
    CUSTOM_RESOURCE_DEFINITIONS,
    ResourceType(
        "",
        "v1",
        "pods",
        "Pod",
        shape=_POD,
        subresources=("status", "binding", "eviction", "log"),
        short_names=("po",),
        categories=("all",),
    ),
    ResourceType("", "v1", "events", "Event", shape=_EVENT, short_names=("ev",)),
    ResourceType("", "v1", "configmaps", "ConfigMap", shape=_CONFIG_MAP, short_names=("cm",)),
    ResourceType("", "v1", "secrets", "Secret"),
    ResourceType("", "v1", "serviceaccounts", "ServiceAccount", short_names=("sa",)),
    ResourceType("coordination.k8s.io", "v1", "leases", "Lease", shape=_LEASE),
    ResourceType(*_DRA, "resourceclaims", "ResourceClaim", shape=_CLAIM, subresources=_STATUS),
    ResourceType(
        *(*_DRA, "resourceclaimtemplates", "ResourceClaimTemplate"),
        shape=_kind(spec=struct(metadata=METADATA, spec=_CLAIM_SPEC)),
    ),
    ResourceType(*_DRA, "resourceslices", "ResourceSlice", False, _SLICE),
    ResourceType(
        *(*_DRA, "deviceclasses", "DeviceClass"),
        namespaced=False,
        shape=_kind(spec=struct(selectors=_LISTS, config=_LISTS)),
    ),
    _stored("", "services", "Service", _NO_NETWORK, short_names=("svc",)),
    _stored("", "resourcequotas", "ResourceQuota", _NO_QUOTA, short_names=("quota",)),
    _workload("", "replicationcontrollers", "ReplicationController", "rc"),
    _workload("apps", "daemonsets", "DaemonSet", "ds"),
    _workload("apps", "deployments", "Deployment", "deploy"),
    _workload("apps", "replicasets", "ReplicaSet", "rs"),
    _workload("apps", "statefulsets", "StatefulSet", "sts"),
    _workload("batch", "cronjobs", "CronJob", "cj"),
    _workload("batch", "jobs", "Job"),
    *(
        _stored(_RBAC, f"{kind.lower()}s", kind, _ALL_MAY, namespaced="Cluster" not in kind)
        for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    ),
    *(
        _stored(_POLICIES, plural, kind, _NO_POLICY, namespaced=False)
        for plural, kind in (
            ("validatingadmissionpolicies", "ValidatingAdmissionPolicy"),
            ("validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding"),
        )
    ),
    _stored(
        *("scheduling.k8s.io", "priorityclasses", "PriorityClass"),
        "no pod gets its priority by one",
        namespaced=False,
        short_names=("pc",),
    ),
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
