"""Objects of Kubernetes as decoded JSON, and a table of the resources that the driver uses."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

Obj = dict[str, Any]
"""A Kubernetes object as decoded JSON."""

ObjectKey = tuple[str, str]
"""Namespace and name of an object."""


def at(obj: Mapping[str, Any], *path: str, default: Any = ()) -> Any:
    """The value at a path of fields, ``default`` where one of them is missing or null.

    Kubernetes' servers leave empty fields out, and some clients write them as null.
    """
    found: Any = obj
    for field in path:
        found = found.get(field)
        if found is None:
            return default
    return found


def picked(mapping: Mapping[str, Any], fields: Iterable[str]) -> Obj:
    """Those of ``fields`` that ``mapping`` has, in their order."""
    return {key: mapping[key] for key in fields if key in mapping}


BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
"""Effects of taints, of nodes and of devices, that keep away whoever does not tolerate them."""


def tolerates(tolerations: Iterable[Mapping[str, Any]], taint: Mapping[str, Any]) -> bool:
    """True if one of a pod's, or of a request's, tolerations covers ``taint``."""
    return any(_covers(t, taint) for t in tolerations)


def _covers(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    effect = toleration.get("effect")
    if effect and effect != taint["effect"]:
        return False
    key = toleration.get("key")
    if key and key != taint["key"]:
        return False
    match toleration.get("operator") or "Equal":
        case "Exists":
            return True
        case "Equal":
            return bool(key) and (toleration.get("value") or "") == (taint.get("value") or "")
    return False


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object: group ("" is core), version, plural, kind, and whether it is namespaced."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of its objects: ``v1``, ``resource.k8s.io/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path of the collection, of one object, or of an object's subresource.

        An empty namespace of a namespaced resource addresses all namespaces, which only lists and
        watches can do.
        """
        parts = [f"/apis/{self.group}" if self.group else "/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(quote(subresource, safe=""))
        return "/".join(parts)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


_DRA = "resource.k8s.io"


def _v1(group: str, kind: str, *, namespaced: bool = False) -> Resource:
    """A resource of version v1 whose plural is that of its kind in English."""
    word = kind.lower()
    plural = f"{word[:-1]}ies" if word.endswith("y") else f"{word}{'e' * word.endswith('s')}s"
    return Resource(group, "v1", plural, kind, namespaced=namespaced)


PODS = _v1("", "Pod", namespaced=True)
NODES = _v1("", "Node")
EVENTS = _v1("", "Event", namespaced=True)
NAMESPACES = _v1("", "Namespace")
PERSISTENT_VOLUMES = _v1("", "PersistentVolume")
PERSISTENT_VOLUME_CLAIMS = _v1("", "PersistentVolumeClaim", namespaced=True)
STORAGE_CLASSES = _v1("storage.k8s.io", "StorageClass")
LEASES = _v1("coordination.k8s.io", "Lease", namespaced=True)
RESOURCE_CLAIMS = _v1(_DRA, "ResourceClaim", namespaced=True)
RESOURCE_CLAIM_TEMPLATES = _v1(_DRA, "ResourceClaimTemplate", namespaced=True)
RESOURCE_SLICES = _v1(_DRA, "ResourceSlice")
DEVICE_CLASSES = _v1(_DRA, "DeviceClass")
MIG_NODES = Resource("mig.dra.dev", "v1alpha1", "mignodes", "MigNode", namespaced=False)
CUSTOM_RESOURCE_DEFINITIONS = _v1("apiextensions.k8s.io", "CustomResourceDefinition")
