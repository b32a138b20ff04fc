"""What is kept of the objects that the controller mirrors: 40,000 pods as they come are gigabytes.

What many have in common, such as the resources of the pods of a Job, is kept once, and so are the
names and UIDs by which objects refer to each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from dra.conditions import PREPARED
from dra.kube.resources import MIG_NODES, NODES, PODS, RESOURCE_CLAIMS, Obj, Resource
from dra.selectors.cache import BoundedCache

_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
_POD_METADATA = (
    *("name", "namespace", "uid"),
    *("creationTimestamp", "deletionTimestamp", "ownerReferences"),
)
"""Without the resourceVersion: a change of nothing that is kept is none."""
_CLAIM_METADATA = (*_POD_METADATA, "resourceVersion", "finalizers")
_POD_SPEC = (
    *("overhead", "resources", "nodeSelector", "affinity", "tolerations", "priority"),
    *("schedulingGates", "resourceClaims", "nodeName"),
)
_OWNER = ("kind", "controller")
_CONTAINER = ("name", "resources", "restartPolicy")
_SHARED = 20_000


def identity(obj: Obj) -> Obj:
    """The name and the version of an object."""
    return {"metadata": _picked(obj["metadata"], _IDENTITY)}


class Trimmer:
    """Trims the objects of one resource. Not thread-safe; the objects may not be changed."""

    def __init__(self, resource: Resource) -> None:
        self._known: BoundedCache[bytes, Any] = BoundedCache(_SHARED)
        self._trim: Callable[[Obj], Obj] = {
            PODS: self._pod,
            RESOURCE_CLAIMS: self._claim,
        }.get(resource, lambda obj: obj)

    def __call__(self, obj: Obj) -> Obj:
        """What the controller reads of ``obj``; what is not as it should be is left as it is."""
        try:
            return self._trim(obj)
        except (KeyError, TypeError, AttributeError):
            return obj

    def _pod(self, obj: Obj) -> Obj:
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        slim = {key: self._shared(value) for key, value in _picked(spec, _POD_SPEC).items()}
        for field in ("containers", "initContainers"):
            if field in spec:
                slim[field] = self._shared([_picked(c, _CONTAINER) for c in spec[field]])
        said = _picked(status, ("phase", "resourceClaimStatuses"))
        # What Kubernetes says of a pod is nothing to us, unlike what we said ourselves.
        if own := [c for c in status.get("conditions") or () if "/" in c["type"]]:
            said["conditions"] = own
        metadata = _named(obj["metadata"], _POD_METADATA)
        if owners := metadata.get("ownerReferences"):
            metadata["ownerReferences"] = self._shared([_picked(o, _OWNER) for o in owners])
        return {"metadata": metadata, "spec": slim, "status": said}

    def _claim(self, obj: Obj) -> Obj:
        metadata = _named(obj["metadata"], _CLAIM_METADATA)
        if "finalizers" in metadata:
            metadata["finalizers"] = self._shared(metadata["finalizers"])
        if owners := metadata.get("ownerReferences"):
            metadata["ownerReferences"] = [_picked(o, (*_OWNER, "uid")) for o in owners]
        slim: Obj = {"metadata": metadata, "spec": self._shared(obj.get("spec") or {})}
        if status := obj.get("status"):
            slim["status"] = said = {k: v for k, v in status.items() if k != "devices"}
            if allocation := said.pop("allocation", None):
                said["allocation"] = kept = _interned(allocation)
                if "nodeSelector" in kept:
                    kept["nodeSelector"] = self._shared(kept["nodeSelector"])
            if "reservedFor" in said:
                said["reservedFor"] = _interned(said["reservedFor"])
            # Devices that are as they should be say nothing that the allocation does not.
            if told := [d for d in status.get("devices") or () if not _is_prepared(d)]:
                said["devices"] = told
        return slim

    def _shared(self, value: Any) -> Any:
        """``value``, or the one that was there before and is equal to it."""
        if isinstance(value, dict | list):
            return self._known.get(msgspec.json.encode(value), lambda: value)
        return value


def remembering(resource: Resource) -> Callable[[Obj], Obj]:
    """What the mirror itself holds, to know what has changed: nodes are in the index already."""
    return identity if resource in (NODES, MIG_NODES) else lambda obj: obj


def _is_prepared(device: Obj) -> bool:
    return all(c.get("reason") == PREPARED for c in device.get("conditions") or ())


def _interned(value: Any) -> Any:
    """``value`` with each of its strings kept once, whatever else has it."""
    if isinstance(value, str):
        return sys.intern(value)
    if isinstance(value, list):
        return [_interned(v) for v in value]
    if isinstance(value, dict):
        return {key: _interned(v) for key, v in value.items()}
    return value


def _named(metadata: Obj, fields: Iterable[str]) -> Obj:
    """``fields`` of an object's metadata, its names kept once."""
    kept = _picked(metadata, fields)
    for field in ("name", "namespace", "uid"):
        if field in kept:
            kept[field] = sys.intern(kept[field])
    return kept


def _picked(mapping: Obj, fields: Iterable[str]) -> Obj:
    return {key: mapping[key] for key in fields if key in mapping}
