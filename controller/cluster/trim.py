"""Trimming of the objects that the controller mirrors: 40,000 whole pods would be gigabytes.

Parts that many objects have in common, such as the resources of the pods of a Job, are kept once,
and so are the names and UIDs by which objects refer to each other. Little is kept of the parts that
are for other drivers. Each object is bounded, but a tenant may make thousands. Large parts
therefore count against the allowance of their namespace, as long as the mirror, the index or a
decision holds them.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec

from dra.claims.allocation import node_label
from dra.claims.claims import (
    ALLOCATED_BY,
    POD_CLAIM,
    Request,
    allocation_managers,
    made_for,
    read_requests,
)
from dra.claims.conditions import MADE, PREPARED
from dra.claims.otherdevices import trim_slice
from dra.claims.trimming import crowded, trim_allocation, trim_claim_spec, without_others
from dra.common.cache import BoundedCache, decoded_weight, json_weight
from dra.common.resources import (
    DEVICE_CLASSES,
    MIG_NODES,
    NAMESPACES,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    Obj,
    Resource,
    picked,
)
from dra.gangs.membership import KINDS, read_annotations, trim_pod_group
from dra.pods.pods import READ_FIELDS, PodNeeds, read_needs
from dra.pods.trimming import NAME_LENGTH, cut_owner, trim_pod, unread
from dra.pods.volumes import BOUND, CLASS, SELECTED_NODE

NAMESPACE_BYTES = 16 * 2**20
"""Rough limit on the bytes of large parts in a namespace's objects of one resource."""

ALL_BYTES = 32 * 2**20
"""Limit on all namespaces together; beyond it each namespace has ``LEAST_BYTES`` only."""

LEAST_BYTES = 2**20


_SHORT = 200
"""Bytes of a JSON text up to which the text itself is the key; longer ones are hashed."""


class CrowdedError(Exception):
    """The allowance of a namespace is used up."""


class _Dict(dict[str, Any]):
    __slots__ = ("__weakref__",)


class _List(list[Any]):
    __slots__ = ("__weakref__",)


class Allowance:
    """Bytes that large parts take, counted by namespace.

    ``share`` is called by one thread; its values may be released by any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held: dict[str, int] = {}
        self._total = 0
        self._known: weakref.WeakValueDictionary[bytes, Any] = weakref.WeakValueDictionary()

    def share(self, namespace: str, text: bytes, make: Callable[[], Any]) -> Any:
        """The dict or list whose JSON is ``text``: one that is held already, or that of ``make``.

        Raises:
            CrowdedError: the objects of ``namespace`` hold too much already.
        """
        key = text if len(text) <= _SHORT else sha256(text).digest()
        known = self._known.get(key)
        if known is not None:
            return known
        weight = decoded_weight(text)
        self._take(namespace, weight)
        value = make()
        held: Any = _Dict(value) if isinstance(value, dict) else _List(value)
        weakref.finalize(held, self._give_back, namespace, weight).atexit = False
        self._known[key] = held
        return held

    def _take(self, namespace: str, weight: int) -> None:
        with self._lock:
            held = self._held.get(namespace, 0) + weight
            most = NAMESPACE_BYTES if self._total + weight <= ALL_BYTES else LEAST_BYTES
            if held > most:
                raise CrowdedError
            self._held[namespace] = held
            self._total += weight

    def _give_back(self, namespace: str, weight: int) -> None:
        with self._lock:
            self._total -= weight
            self._held[namespace] -= weight
            if not self._held[namespace]:
                del self._held[namespace]


_PARSED_BYTES = 16 * 2**20


class ParsedSpecs:
    """Readers of specs, whose results are shared between equal ones. Not thread-safe."""

    def __init__(self) -> None:
        self._needs: BoundedCache[bytes, PodNeeds] = BoundedCache(_PARSED_BYTES, weigh=json_weight)
        self._requests: BoundedCache[bytes, tuple[Request, ...]] = BoundedCache(
            _PARSED_BYTES, weigh=json_weight
        )

    def needs(self, spec: Mapping[str, Any]) -> PodNeeds:
        key = msgspec.json.encode([spec.get(field) for field in READ_FIELDS])
        return self._needs.get(key, lambda: read_needs(spec))

    def requests(self, raw: Iterable[Mapping[str, Any]]) -> tuple[Request, ...]:
        return self._requests.get(msgspec.json.encode(raw), lambda: read_requests(raw))


_VOLUME_METADATA = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
_ANNOTATIONS = (BOUND, CLASS, SELECTED_NODE)
_BOTH = ("accessModes", "storageClassName", "volumeMode", "volumeAttributesClassName")
_CLAIM = (*_BOTH, "resources", "selector", "volumeName")
_VOLUME = (*_BOTH, "capacity", "nodeAffinity")
CLAIM_BYTES = 4 * 2**10
"""Upper bound, roughly, on the memory of one PersistentVolumeClaim's spec; most take 1 KiB."""

_SELECTS_NOTHING = {"matchExpressions": [{"key": "too-large", "operator": "In", "values": []}]}
_STORAGE_CLASS = ("provisioner", "volumeBindingMode", "allowedTopologies")


def _volume_claim(obj: Obj) -> Obj:
    metadata = _volume_metadata(obj)
    owners = obj["metadata"].get("ownerReferences") or ()
    if controllers := [picked(o, ("uid", "controller")) for o in owners if o.get("controller")]:
        metadata["ownerReferences"] = controllers
    spec = picked(obj["spec"], _CLAIM)
    spec["accessModes"] = sorted({*spec.get("accessModes", ())})
    if decoded_weight(msgspec.json.encode(spec)) > CLAIM_BYTES:
        spec = picked(spec, (*_BOTH, "volumeName")) | {"selector": _SELECTS_NOTHING}
    return {"metadata": metadata, "spec": spec, "status": _phase(obj)}


def _volume(obj: Obj) -> Obj:
    metadata, spec = _volume_metadata(obj), picked(obj["spec"], _VOLUME)
    if labels := obj["metadata"].get("labels"):
        metadata["labels"] = labels
    if claim := obj["spec"].get("claimRef"):
        spec["claimRef"] = picked(claim, ("namespace", "name", "uid"))
    return {"metadata": metadata, "spec": spec, "status": _phase(obj)}


def _storage_class(obj: Obj) -> Obj:
    return {"metadata": _volume_metadata(obj), **picked(obj, _STORAGE_CLASS)}


def _namespace(obj: Obj) -> Obj:
    return {"metadata": picked(obj["metadata"], ("name", "uid", "resourceVersion", "labels"))}


def _volume_metadata(obj: Obj) -> Obj:
    metadata = picked(obj["metadata"], _VOLUME_METADATA)
    if annotations := picked(obj["metadata"].get("annotations") or {}, _ANNOTATIONS):
        metadata["annotations"] = annotations
    return metadata


def _phase(obj: Obj) -> Obj:
    return picked(obj.get("status") or {}, ("phase",))


TRIMMERS: Mapping[Resource, Callable[[Obj], Obj]] = {
    PERSISTENT_VOLUME_CLAIMS: _volume_claim,
    PERSISTENT_VOLUMES: _volume,
    STORAGE_CLASSES: _storage_class,
    NAMESPACES: _namespace,
}


_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
_CLAIM_METADATA = (
    *("name", "namespace", "uid", "resourceVersion", "finalizers"),
    *("creationTimestamp", "deletionTimestamp", "ownerReferences"),
)
_OWNER = ("kind", "controller", "uid")
_DEVICE = ("driver", "pool", "device", "shareID", "conditions")
_SHARED_BYTES = 32 * 2**20
_LABELS_BYTES = 2 * 2**20
"""Small, as labels often differ between the pods of one owner, so that few of them are equal."""

_POD_GROUPS: dict[Resource, Callable[[Obj], Obj]] = {
    kind.at_version(version): partial(trim_pod_group, kind)
    for kind in KINDS
    for version in kind.versions
}

MOST_FINALIZERS = 64
"""Upper bound on finalizers: a claim with more is never written to."""

LARGEST = 2**17
"""Upper bound on the JSON bytes of a claim that is to be allocated.

A write to a claim with 8,500 labels takes the API server 0.4 s of CPU. A claim as large as etcd's
limit cannot be written at all.
"""

_LARGE_BYTES = {PODS: 2**9, RESOURCE_CLAIMS: 2**11}
"""Rough bytes above which a part of an object counts against its namespace's allowance.

A pod has a dozen parts, most of them equal to those of other pods; a claim has one.
"""

_LARGE_LABELS = 2**11
_TOO_MANY = ["too-many"] * (MOST_FINALIZERS + 1)
_CROWDED = f"the large pods of its namespace take more than {NAMESPACE_BYTES // 2**20} MiB together"


def identity(obj: Obj) -> Obj:
    return {"metadata": picked(obj["metadata"], _IDENTITY)}


class Trimmer:
    """Trims the objects of one resource, for ``driver``.

    Not thread-safe. Trimmed objects share parts, so they may not be changed.
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
        """The part of ``obj`` that is read; a malformed object is returned whole."""
        try:
            return self._trim(obj)
        except (KeyError, TypeError, AttributeError):
            return obj

    def _pod(self, obj: Obj) -> Obj:
        """A trimmed pod whose parts are shared with equal parts of other pods."""
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
            spec = crowded(spec, obj.get("status") or {})
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
        """As ``_known_equal``, and a large value counts against the allowance of ``namespace``.

        Raises:
            CrowdedError: the objects of ``namespace`` hold too much already.
        """
        if not isinstance(value, dict | list):
            return self._known_equal(value)
        text = msgspec.json.encode(value)
        known = self._known.find(text)
        if known is not None:
            return known
        if decoded_weight(text) > self._large:
            return self._allowance.share(namespace, text, lambda: value)
        self._known.put(text, value)
        return value

    def _known_equal(self, value: Any) -> Any:
        """An equal value that is held already, else ``value``."""
        if isinstance(value, dict | list):
            return self._known.get(msgspec.json.encode(value), lambda: value)
        return sys.intern(value) if type(value) is str else value


def remembering(resource: Resource) -> Callable[[Obj], Obj]:
    """Function that gives the part of an object that the mirror keeps to see changes.

    Objects of some resources are kept whole, as the index holds the same objects anyway.
    """
    by_name = (NODES, MIG_NODES, RESOURCE_CLAIM_TEMPLATES, *TRIMMERS, *_POD_GROUPS)
    return identity if resource in by_name else lambda obj: obj


def _is_prepared(device: Obj) -> bool:
    return all(c.get("reason") in {PREPARED, MADE} for c in device.get("conditions") or ())


def _interned(value: Any) -> Any:
    """Copy of ``value``, a list or dict, whose strings are interned."""
    if isinstance(value, list):
        # A comprehension leaves room for more: a list of one takes 88 bytes, its copy 64.
        return [sys.intern(v) if type(v) is str else _interned(v) for v in value].copy()
    if isinstance(value, dict):
        return {key: sys.intern(v) if type(v) is str else _interned(v) for key, v in value.items()}
    return value


def _intern_names(metadata: Obj) -> None:
    """Intern the names in ``metadata``, in place."""
    for field in ("name", "namespace", "uid"):
        if field in metadata:
            metadata[field] = sys.intern(metadata[field])
