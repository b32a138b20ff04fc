"""Trimming of the objects that the controller mirrors: 40,000 whole pods would be gigabytes.

What many have in common, such as the resources of the pods of a Job, is kept once, and so are the
names and UIDs by which objects refer to each other. Of what is for other drivers little is kept.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from controller.cluster.trimming.allowance import NAMESPACE_BYTES, Allowance, CrowdedError
from controller.cluster.trimming.volume_trimming import TRIMMERS
from dra.claims.allocation import node_label
from dra.claims.claims import ALLOCATED_BY, POD_CLAIM, allocation_managers, made_for
from dra.claims.conditions import MADE, PREPARED
from dra.claims.otherdevices import trim_slice
from dra.claims.trimming import crowded, trim_allocation, trim_claim_spec, without_others
from dra.common.cache import BoundedCache, decoded_weight, json_weight
from dra.common.resources import (
    DEVICE_CLASSES,
    MIG_NODES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Obj,
    Resource,
    picked,
)
from dra.gangs.membership import KINDS, read_annotations, trim_pod_group
from dra.pods.trimming import NAME_LENGTH, cut_owner, trim_pod, unread

_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
_CLAIM_METADATA = (
    *("name", "namespace", "uid", "resourceVersion", "finalizers"),
    *("creationTimestamp", "deletionTimestamp", "ownerReferences"),
)
_OWNER = ("kind", "controller", "uid")
_DEVICE = ("driver", "pool", "device", "shareID", "conditions")
_SHARED_BYTES = 32 * 2**20
_LABELS_BYTES = 2 * 2**20
"""Few: what tells the pods of one owner apart is often in their labels, and then none are equal."""

_POD_GROUPS: dict[Resource, Callable[[Obj], Obj]] = {
    kind.at_version(version): partial(trim_pod_group, kind)
    for kind in KINDS
    for version in kind.versions
}

MOST_FINALIZERS = 64
"""Upper bound on finalizers: a claim with more is not touched."""

LARGEST = 2**17
"""Upper bound on the bytes of a claim that is to be allocated, as JSON: a write of one with 8,500
labels takes the API server 0.4 s of CPU, one of etcd's limit cannot be written at all."""

_LARGE_BYTES = {PODS: 2**9, RESOURCE_CLAIMS: 2**11}
"""Memory for a part of an object above which it counts for its namespace, roughly.

A pod has a dozen parts, most of them as others have, and a claim one.
"""

_LARGE_LABELS = 2**11
_TOO_MANY = ["too-many"] * (MOST_FINALIZERS + 1)
_CROWDED = f"the large pods of its namespace take more than {NAMESPACE_BYTES // 2**20} MiB together"


def identity(obj: Obj) -> Obj:
    """The name and the version of an object."""
    return {"metadata": picked(obj["metadata"], _IDENTITY)}


class Trimmer:
    """Trims the objects of one resource, for ``driver``.

    Not thread-safe; the objects may not be changed.
    """

    def __init__(self, resource: Resource, driver: str) -> None:
        self._driver = driver
        self._annotations = read_annotations(driver)
        self._known: BoundedCache[bytes, Any] = BoundedCache(_SHARED_BYTES, weigh=json_weight)
        self._labels: BoundedCache[bytes, Any] = BoundedCache(_LABELS_BYTES, weigh=json_weight)
        self._allowance = Allowance()
        self._large = _LARGE_BYTES.get(resource, 0)
        self._trim: Callable[[Obj], Obj] = {
            PODS: self._pod,
            RESOURCE_CLAIMS: self._claim,
            DEVICE_CLASSES: self._class,
            RESOURCE_SLICES: trim_slice,
            RESOURCE_CLAIM_TEMPLATES: identity,
            **TRIMMERS,
            **_POD_GROUPS,
        }.get(resource, lambda obj: obj)

    def __call__(self, obj: Obj) -> Obj:
        """Part of ``obj`` that is read; what is not as it should be is left as it is."""
        try:
            return self._trim(obj)
        except (KeyError, TypeError, AttributeError):
            return obj

    def _pod(self, obj: Obj) -> Obj:
        """A pod with what others have too kept once."""
        pod = trim_pod(obj, self._annotations)
        try:
            return self._kept_pod(
                pod, partial(self._shared, namespace=pod["metadata"]["namespace"])
            )
        except CrowdedError:
            return self._kept_pod(unread(pod, _CROWDED), self._known_equal)

    def _kept_pod(self, pod: Obj, share: Callable[[Any], Any]) -> Obj:
        metadata, spec = dict(pod["metadata"]), pod["spec"]
        _intern_names(metadata)
        if labels := metadata.get("labels"):
            metadata["labels"] = self._shared_labels(labels, metadata["namespace"])
        for field in ("annotations", "ownerReferences"):
            if field in metadata:
                metadata[field] = share(metadata[field])
        slim = {key: share(value) for key, value in spec.items()}
        return {"metadata": metadata, "spec": slim, "status": _interned(pod["status"])}

    def _shared_labels(self, labels: Obj, namespace: str) -> Any:
        text = msgspec.json.encode(labels)
        if decoded_weight(text) > _LARGE_LABELS:
            return self._allowance.share(namespace, text, lambda: _interned(labels))
        return self._labels.get(text, lambda: _interned(labels))

    def _claim(self, obj: Obj) -> Obj:
        metadata = self._claim_metadata(obj)
        spec = trim_claim_spec(obj.get("spec") or {}, self._driver)
        try:
            spec = self._shared(spec, metadata["namespace"])
        except CrowdedError:
            spec = crowded(spec)
        slim: Obj = {"metadata": metadata, "spec": spec}
        if status := obj.get("status"):
            slim["status"] = said = {k: v for k, v in status.items() if k != "devices"}
            if allocation := said.pop("allocation", None):
                allocation = trim_allocation(allocation, self._driver)
                said["allocation"] = kept = _interned(allocation)
                if "nodeSelector" in kept:
                    kept["nodeSelector"] = self._known_equal(kept["nodeSelector"])
            if "reservedFor" in said:
                said["reservedFor"] = _interned(said["reservedFor"])
            # Devices that are as they should be say nothing that the allocation does not.
            own = (d for d in status.get("devices") or () if d["driver"] == self._driver)
            if told := [picked(d, _DEVICE) for d in own if not _is_prepared(d)]:
                said["devices"] = told
        return slim

    def _claim_metadata(self, obj: Obj) -> Obj:
        metadata = picked(obj["metadata"], _CLAIM_METADATA)
        _intern_names(metadata)
        lacks = "allocation" not in (obj.get("status") or {})
        if lacks and len(msgspec.json.encode(obj)) > LARGEST:
            metadata["finalizers"] = _TOO_MANY
        elif "finalizers" in metadata:
            metadata["finalizers"] = self._finalizers(metadata)
        made = made_for(obj) if lacks else None
        if made is not None:
            metadata["annotations"] = self._known_equal({POD_CLAIM: made.entry[:NAME_LENGTH]})
        if owners := [o for o in metadata.get("ownerReferences") or () if o.get("controller")]:
            kept = _OWNER if made is None else (*_OWNER, "name")
            metadata["ownerReferences"] = _interned([cut_owner(picked(o, kept)) for o in owners])
        else:
            metadata.pop("ownerReferences", None)
        if node := (obj["metadata"].get("labels") or {}).get(node_label(self._driver)):
            metadata["labels"] = self._known_equal({node_label(self._driver): node})
        if managers := allocation_managers(obj["metadata"]):
            metadata[ALLOCATED_BY] = [sys.intern(manager) for manager in managers]
        return metadata

    def _finalizers(self, metadata: Obj) -> Any:
        found = metadata["finalizers"]
        if len(found) > MOST_FINALIZERS:
            return _TOO_MANY
        try:
            return self._shared(found, metadata["namespace"])
        except CrowdedError:
            return _TOO_MANY

    def _class(self, obj: Obj) -> Obj:
        metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
        holder = without_others({"spec": obj.get("spec") or {}}, "spec", self._driver)
        return {**obj, "metadata": metadata, "spec": holder["spec"]}

    def _shared(self, value: Any, namespace: str) -> Any:
        """As ``_known_equal``; what is large counts for the ``namespace``.

        Raises:
            CrowdedError: its objects hold too much already.
        """
        if isinstance(value, dict | list):
            text = msgspec.json.encode(value)
            if decoded_weight(text) > self._large:
                return self._allowance.share(namespace, text, lambda: value)
            return self._known.get(text, lambda: value)
        return self._known_equal(value)

    def _known_equal(self, value: Any) -> Any:
        """``value``, or the one that was there before and is equal to it."""
        if isinstance(value, dict | list):
            return self._known.get(msgspec.json.encode(value), lambda: value)
        return sys.intern(value) if type(value) is str else value


def remembering(resource: Resource) -> Callable[[Obj], Obj]:
    """Part that the mirror holds, to know what has changed: others are in the index already."""
    by_name = (NODES, MIG_NODES, RESOURCE_CLAIM_TEMPLATES, *TRIMMERS, *_POD_GROUPS)
    return identity if resource in by_name else lambda obj: obj


def _is_prepared(device: Obj) -> bool:
    return all(c.get("reason") in {PREPARED, MADE} for c in device.get("conditions") or ())


def _interned(value: Any) -> Any:
    """``value``, no string itself, with each of its strings kept once, whatever else has it."""
    if isinstance(value, list):
        # A comprehension leaves room for more: a list of one takes 88 bytes, its copy 64.
        return [sys.intern(v) if type(v) is str else _interned(v) for v in value].copy()
    if isinstance(value, dict):
        return {key: sys.intern(v) if type(v) is str else _interned(v) for key, v in value.items()}
    return value


def _intern_names(metadata: Obj) -> None:
    """Have the names of an object kept once; ``metadata`` is changed."""
    for field in ("name", "namespace", "uid"):
        if field in metadata:
            metadata[field] = sys.intern(metadata[field])
