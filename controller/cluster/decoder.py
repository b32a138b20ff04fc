"""Decoding of the objects that the controller mirrors: 40,000 whole pods would be gigabytes.

Parts that many objects have in common, such as the resources of the pods of a Job, are kept once,
and so are the names and UIDs by which objects refer to each other. Each object is bounded, but a
tenant may make thousands. Large parts therefore count against the allowance of their namespace, as
long as the mirror, the index or a decision holds them.
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

from dra.claims.claims import ALLOCATED_BY, Request, read_requests
from dra.claims.conditions import AS_THEY_SHOULD_BE, MADE, PREPARED
from dra.claims.otherdevices import trim_slice
from dra.claims.stored import TOO_MANY, crowded, keep_claim, without_others
from dra.common.cache import BoundedCache, decoded_weight, json_weight
from dra.common.parts import decode, decoded, shape
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
    at,
    picked,
)
from dra.gangs.membership import KINDS, keep_pod_group, read_annotations
from dra.kube.http import Keep, whole
from dra.pods.nodefit import keep_node
from dra.pods.pods import READ_FIELDS, PodNeeds, read_needs
from dra.pods.stored import keep_pod, unread
from dra.pods.stored_volumes import KEPT as KEPT_OF_VOLUMES

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

    def share(self, namespace: str, text: bytes, make: Callable[[bytes], Any]) -> Any:
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
        value = make(text)
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


_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
_SHARED_BYTES = 32 * 2**20
_LABELS_BYTES = 2 * 2**20
"""Small, as labels often differ between the pods of one owner, so that few of them are equal."""

_POD_GROUPS: dict[Resource, Keep] = {
    kind.at_version(version): keep_pod_group for kind in KINDS for version in kind.versions
}

_LARGE_BYTES = {PODS: 2**9, RESOURCE_CLAIMS: 2**11}
"""Rough bytes above which a part of an object counts against its namespace's allowance.

A pod has a dozen parts, most of them equal to those of other pods; a claim has one.
"""

_LARGE_LABELS = 2**11
_CROWDED = f"the large pods of its namespace take more than {NAMESPACE_BYTES // 2**20} MiB together"


_IDENTIFIED = msgspec.json.Decoder(shape({"metadata": dict.fromkeys(_IDENTITY, str)}))


def keep_identity(raw: msgspec.Raw) -> Obj:
    """Of an object only which one it is."""
    found: Obj = _IDENTIFIED.decode(raw)
    return found


_KEPT: Mapping[Resource, Keep] = {
    NODES: keep_node,
    **KEPT_OF_VOLUMES,
    RESOURCE_CLAIM_TEMPLATES: keep_identity,
    **_POD_GROUPS,
}


class Decoder:
    """Decodes the part that is kept of the objects of one resource, for ``driver``.

    Not thread-safe. Decoded objects share parts, so they may not be changed.
    """

    def __init__(self, resource: Resource, driver: str) -> None:
        self._driver = driver
        self._annotations = read_annotations(driver)
        self._known: BoundedCache[bytes, Any] = BoundedCache(_SHARED_BYTES, weigh=json_weight)
        self._labels: BoundedCache[bytes, Any] = BoundedCache(_LABELS_BYTES, weigh=json_weight)
        self._allowance = Allowance()
        self._large = _LARGE_BYTES.get(resource, 0)
        kept: dict[Resource, Keep] = {
            PODS: self._pod,
            RESOURCE_CLAIMS: self._claim,
            DEVICE_CLASSES: self._class,
            MIG_NODES: _without_managers,
            RESOURCE_SLICES: lambda raw: trim_slice(whole(raw)),
        }
        self._keep: Callable[[msgspec.Raw], Any] = kept.get(resource) or _KEPT[resource]

    def __call__(self, raw: msgspec.Raw) -> Obj:
        """The part of an object that is read; of a malformed one only which one it is."""
        try:
            found: Obj = self._keep(raw)
        except (msgspec.ValidationError, KeyError, TypeError, AttributeError, ValueError):
            return keep_identity(raw)
        return found

    def _pod(self, raw: msgspec.Raw) -> Obj:
        """A pod whose parts are shared with equal parts of other pods."""
        pod = keep_pod(raw, self._annotations)
        share = partial(self._shared, namespace=pod["metadata"]["namespace"])
        try:
            return self._kept_pod(pod, share)
        except CrowdedError:
            return self._kept_pod(unread(pod, _CROWDED), self._known_equal)

    def _kept_pod(self, pod: Obj, share: Callable[[bytes], Any]) -> Obj:
        metadata, namespace = dict(pod["metadata"]), pod["metadata"]["namespace"]
        _intern_names(metadata)
        if labels := metadata.get("labels"):
            metadata["labels"] = self._shared_labels(labels, namespace)
        return {
            "metadata": {k: share(v) if type(v) is bytes else v for k, v in metadata.items()},
            "spec": {
                key: share(part) if type(part) is bytes else _interned(part)
                for key, part in pod["spec"].items()
            },
            "status": _interned(pod["status"]),
        }

    def _shared_labels(self, text: bytes, namespace: str) -> Any:
        if decoded_weight(text) > _LARGE_LABELS:
            return self._allowance.share(namespace, text, _read)
        return self._labels.get(text, lambda: _read(text))

    def _claim(self, raw: msgspec.Raw) -> Obj:
        claim = keep_claim(raw, self._driver)
        metadata, status = claim["metadata"], claim.get("status") or {}
        _intern_names(metadata)
        share = partial(self._shared, namespace=metadata["namespace"])
        try:
            spec = share(claim["spec"])
        except CrowdedError:
            results = at(status, "allocation", "devices", "results")
            spec = crowded(claim["spec"], results)
        for field in ("annotations", "labels"):
            if field in metadata:
                metadata[field] = self._known_equal(msgspec.json.encode(metadata[field]))
        for field in ("ownerReferences", ALLOCATED_BY):
            if field in metadata:
                metadata[field] = _interned(metadata[field])
        if "finalizers" in metadata:
            try:
                metadata["finalizers"] = decoded(metadata["finalizers"], share)
            except CrowdedError:
                metadata["finalizers"] = TOO_MANY
        kept: Obj = {"metadata": metadata, "spec": spec}
        if status:
            kept["status"] = self._claim_status(status)
        return kept

    def _claim_status(self, status: Obj) -> Obj:
        said = {k: v for k, v in status.items() if k != "devices"}
        if allocation := said.get("allocation"):
            selector = allocation.pop("nodeSelector", None)
            said["allocation"] = kept = _interned(allocation)
            if selector is not None:
                kept["nodeSelector"] = self._known_equal(selector)
        if "reservedFor" in said:
            said["reservedFor"] = _interned(said["reservedFor"])
        # Devices that are as they should be say nothing but that kubelet has asked for them.
        devices = status.get("devices") or ()
        if told := [d for d in devices if not _is_prepared(d)]:
            said["devices"] = told
        elif any(c.get("reason") == PREPARED for d in devices for c in d.get("conditions") or ()):
            said["devices"] = AS_THEY_SHOULD_BE
        return said

    def _class(self, raw: msgspec.Raw) -> Obj:
        obj = _without_managers(raw)
        holder = without_others({"spec": obj.get("spec") or {}}, "spec", self._driver)
        return {**obj, "spec": holder["spec"]}

    def _shared(self, text: bytes, namespace: str) -> Any:
        """As ``_known_equal``, and a large value counts against the allowance of ``namespace``.

        Raises:
            CrowdedError: the objects of ``namespace`` hold too much already.
        """
        known = self._known.find(text)
        if known is not None:
            return known
        if decoded_weight(text) > self._large:
            return self._allowance.share(namespace, text, decode)
        return self._known_equal(text)

    def _known_equal(self, text: bytes) -> Any:
        """The value of a JSON text: one that is held already, or a new one."""
        return self._known.get(text, lambda: _read(text))


def _without_managers(raw: msgspec.Raw) -> Obj:
    obj = whole(raw)
    return {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "managedFields"}}


def remembering(resource: Resource) -> Callable[[Obj], Obj]:
    """Function that gives the part of an object that the mirror keeps to see changes.

    Objects of some resources are kept whole, as the index holds the same objects anyway.
    """
    if resource == RESOURCE_SLICES:
        return _digest
    by_name = resource == MIG_NODES or resource in _KEPT
    return identity if by_name else lambda obj: obj


def identity(obj: Obj) -> Obj:
    return {"metadata": picked(obj["metadata"], _IDENTITY)}


def _digest(obj: Obj) -> Obj:
    spec = sha256(msgspec.json.encode(obj.get("spec"))).digest()
    return {"metadata": picked(obj["metadata"], _IDENTITY), "spec": spec}


def _is_prepared(device: Obj) -> bool:
    return all(c.get("reason") in {PREPARED, MADE} for c in device.get("conditions") or ())


def _read(text: bytes) -> Any:
    return _interned(decode(text))


def _interned(value: Any) -> Any:
    """Copy of ``value`` whose strings are interned."""
    if isinstance(value, list):
        # A comprehension leaves room for more: a list of one takes 88 bytes, its copy 64.
        return [sys.intern(v) if type(v) is str else _interned(v) for v in value].copy()
    if isinstance(value, dict):
        return {key: sys.intern(v) if type(v) is str else _interned(v) for key, v in value.items()}
    return sys.intern(value) if type(value) is str else value


def _intern_names(metadata: Obj) -> None:
    """Intern the names in ``metadata``, in place."""
    for field in ("name", "namespace", "uid"):
        if field in metadata:
            metadata[field] = sys.intern(metadata[field])
