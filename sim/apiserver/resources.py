"""The resources that are served: the built-in ones here, custom ones from their definitions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj
from sim.apiserver import builtin

if TYPE_CHECKING:
    from sim.apiserver.shapes import Shape


Family = tuple[str, str]
"""(API group, plural): all served versions of a resource share one collection."""

ALL_VERBS = (
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
)


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
    namespaced: bool
    shape: Shape
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

    def present(self, obj: Obj) -> Obj:
        """A stored object under this version, which differs in its name only."""
        if obj["apiVersion"] == self.api_version:
            return obj
        return obj | {"apiVersion": self.api_version}


_STATUS = ("status",)
_RBAC = "rbac.authorization.k8s.io"
_DRA = "resource.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_POLICY = "ValidatingAdmissionPolicy"
_APIEXTENSIONS = "apiextensions.k8s.io"


def _core(plural: str, kind: str, shape: Shape, **more: Any) -> ResourceType:
    return ResourceType("", "v1", plural, kind, more.pop("namespaced", True), shape, **more)


def _dra(plural: str, kind: str, shape: Shape, **more: Any) -> ResourceType:
    return ResourceType(_DRA, "v1", plural, kind, more.pop("namespaced", False), shape, **more)


def _stored(group: str, plural: str, kind: str, lacking: str, **more: Any) -> ResourceType:
    """A kind that is stored, and whose controllers run nowhere here."""
    namespaced = more.pop("namespaced", True)
    text = f"this simulated cluster stores {kind}s and does nothing with them: {lacking}"
    return ResourceType(group, "v1", plural, kind, namespaced, builtin.PLAIN, lacking=text, **more)


_NO_NETWORK = "it has no network, and nothing answers at one"
_ALL_MAY = "every client may do everything"
_NO_POLICY = "nothing is refused by one; policies need a real cluster (make cluster)"


def _workload(group: str, plural: str, kind: str, *short: str) -> ResourceType:
    lacking = "no pod comes of one; apply Pods, or use a real cluster (make cluster)"
    return _stored(
        group,
        plural,
        kind,
        lacking,
        subresources=_STATUS,
        short_names=short,
        categories=("all",),
    )


NAMESPACES = _core(
    "namespaces",
    "Namespace",
    builtin.NAMESPACE,
    namespaced=False,
    subresources=_STATUS,
    short_names=("ns",),
)
NODES = _core(
    "nodes", "Node", builtin.NODE, namespaced=False, subresources=_STATUS, short_names=("no",)
)
PODS = _core(
    "pods",
    "Pod",
    builtin.POD,
    subresources=("status", "binding", "eviction", "log"),
    short_names=("po",),
    categories=("all",),
)
EVENTS = _core("events", "Event", builtin.EVENT, short_names=("ev",))
CUSTOM_RESOURCE_DEFINITIONS = ResourceType(
    _APIEXTENSIONS,
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    False,
    builtin.CUSTOM_RESOURCE_DEFINITION,
    _STATUS,
    ("crd", "crds"),
    ("api-extensions",),
)
RESOURCE_CLAIMS = _dra(
    "resourceclaims",
    "ResourceClaim",
    builtin.RESOURCE_CLAIM,
    namespaced=True,
    subresources=_STATUS,
)
RESOURCE_CLAIM_TEMPLATES = _dra(
    "resourceclaimtemplates",
    "ResourceClaimTemplate",
    builtin.RESOURCE_CLAIM_TEMPLATE,
    namespaced=True,
)
RESOURCE_SLICES = _dra("resourceslices", "ResourceSlice", builtin.RESOURCE_SLICE)
DEVICE_CLASSES = _dra("deviceclasses", "DeviceClass", builtin.DEVICE_CLASS)
LEASES = ResourceType("coordination.k8s.io", "v1", "leases", "Lease", True, builtin.LEASE)

BUILTIN: tuple[ResourceType, ...] = (
    NAMESPACES,
    NODES,
    PODS,
    EVENTS,
    LEASES,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
    _core("configmaps", "ConfigMap", builtin.CONFIG_MAP, short_names=("cm",)),
    _core("secrets", "Secret", builtin.PLAIN),
    _core("serviceaccounts", "ServiceAccount", builtin.PLAIN, short_names=("sa",)),
    _stored("", "services", "Service", _NO_NETWORK, subresources=_STATUS, short_names=("svc",)),
    _stored(
        "",
        "resourcequotas",
        "ResourceQuota",
        "nothing is counted and nothing refused; quota needs a real cluster (make cluster)",
        subresources=_STATUS,
        short_names=("quota",),
    ),
    _workload("", "replicationcontrollers", "ReplicationController", "rc"),
    _workload("apps", "daemonsets", "DaemonSet", "ds"),
    _workload("apps", "deployments", "Deployment", "deploy"),
    _workload("apps", "replicasets", "ReplicaSet", "rs"),
    _workload("apps", "statefulsets", "StatefulSet", "sts"),
    _workload("batch", "cronjobs", "CronJob", "cj"),
    _workload("batch", "jobs", "Job"),
    _stored(_RBAC, "clusterroles", "ClusterRole", _ALL_MAY, namespaced=False),
    _stored(_RBAC, "clusterrolebindings", "ClusterRoleBinding", _ALL_MAY, namespaced=False),
    _stored(_RBAC, "roles", "Role", _ALL_MAY),
    _stored(_RBAC, "rolebindings", "RoleBinding", _ALL_MAY),
    _stored(
        _ADMISSION,
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        _NO_POLICY,
        namespaced=False,
    ),
    _stored(
        _ADMISSION,
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        _NO_POLICY,
        namespaced=False,
    ),
    _stored(
        "scheduling.k8s.io",
        "priorityclasses",
        "PriorityClass",
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
        return next(t for t in self._types.values() if (t.group, t.plural) == family)

    def of_kind(self, group: str, kind: str) -> ResourceType | None:
        """Some version of a kind: what an owner reference names."""
        return next((t for t in self._types.values() if (t.group, t.kind) == (group, kind)), None)

    def serve(self, resource: ResourceType) -> None:
        """Begins to serve a custom resource, or replaces it."""
        self._types[resource.group, resource.version, resource.plural] = resource

    def withdraw(self, group: str, plural: str) -> None:
        """Ends serving every version of a custom resource."""
        self._types = {
            key: t for key, t in self._types.items() if (key[0], key[2]) != (group, plural)
        }

    def all(self) -> list[ResourceType]:
        """Gives everything, core first, then by group, version and plural."""
        return sorted(self._types.values(), key=lambda t: (t.group, t.version, t.plural))
