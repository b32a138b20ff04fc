"""What is kept of the objects that the controller mirrors: 40,000 pods as they come are gigabytes.

What many have in common, such as the resources of the pods of a Job, is kept once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from dra.kube.resources import MIG_NODES, NODES, PODS, RESOURCE_CLAIMS, Obj, Resource
from dra.selectors.cache import BoundedCache

_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
_METADATA = (
    *_IDENTITY,
    *("creationTimestamp", "deletionTimestamp", "finalizers", "ownerReferences"),
)
_POD_SPEC = (
    *("overhead", "resources", "nodeSelector", "affinity", "tolerations", "priority"),
    *("schedulingGates", "resourceClaims", "nodeName"),
)
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
        said: Obj = _picked(status, ("phase", "resourceClaimStatuses"))
        # What Kubernetes says of a pod is nothing to us, unlike what we said ourselves.
        if own := [c for c in status.get("conditions") or () if "/" in c["type"]]:
            said["conditions"] = own
        return {"metadata": self._metadata(obj), "spec": slim, "status": said}

    def _claim(self, obj: Obj) -> Obj:
        slim: Obj = {"metadata": self._metadata(obj), "spec": self._shared(obj.get("spec") or {})}
        if status := obj.get("status"):
            slim["status"] = dict(status)
            if allocation := status.get("allocation"):
                slim["status"]["allocation"] = {k: self._shared(v) for k, v in allocation.items()}
        return slim

    def _metadata(self, obj: Obj) -> Obj:
        kept = _picked(obj["metadata"], _METADATA)
        if "finalizers" in kept:
            kept["finalizers"] = self._shared(kept["finalizers"])
        return kept

    def _shared(self, value: Any) -> Any:
        """``value``, or the one that was there before and is equal to it."""
        if isinstance(value, dict | list):
            return self._known.get(msgspec.json.encode(value), lambda: value)
        return value


def remembering(resource: Resource) -> Callable[[Obj], Obj]:
    """What the mirror itself holds, to know what has changed: nodes are in the index already."""
    return identity if resource in (NODES, MIG_NODES) else lambda obj: obj


def _picked(mapping: Obj, fields: Iterable[str]) -> Obj:
    return {key: mapping[key] for key in fields if key in mapping}
