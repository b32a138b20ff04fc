"""Trimming of the objects that the controller mirrors: 40,000 whole pods would be gigabytes.

What many have in common, such as the resources of the pods of a Job, is kept once, and so are the
names and UIDs by which objects refer to each other. Nothing is kept of what is for other drivers;
a claim may bring 320 KiB of it, which are megabytes in memory.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from controller.cluster.trimming.picking import picked
from controller.cluster.trimming.pod_size import bounded
from controller.cluster.trimming.slice_trimming import trim_slice
from controller.cluster.trimming.volume_trimming import TRIMMERS
from dra.claims.claims import (
    ALLOCATED_BY,
    OTHERS_CONFIG,
    POD_CLAIM,
    TOO_LARGE,
    allocation_managers,
    made_for,
)
from dra.claims.conditions import MADE, PREPARED
from dra.claims.node_label import node_label
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
)
from dra.gangs.membership import ANNOTATIONS
from dra.gangs.podgroups import KINDS, trim_pod_group
from dra.gpu.names import prepare_retry

_IDENTITY = ("name", "namespace", "uid", "resourceVersion")
_POD_METADATA = (
    *("name", "namespace", "uid", "labels"),
    *("creationTimestamp", "deletionTimestamp", "ownerReferences"),
)
"""Without the resourceVersion: a change of nothing that is kept is none."""
_CLAIM_METADATA = (
    *("name", "namespace", "uid", "resourceVersion", "finalizers"),
    *("creationTimestamp", "deletionTimestamp", "ownerReferences"),
)
_POD_SPEC = (
    *("overhead", "resources", "affinity", "priority", "nodeName"),
    *("schedulingGroup", "workloadRef"),
)
"""Of every pod: what it takes of its node, whom it shuns, and with which it belongs together."""
_OWN_POD_SPEC = (
    *_POD_SPEC,
    *("nodeSelector", "tolerations", "topologySpreadConstraints", "preemptionPolicy"),
    *("schedulingGates", "resourceClaims"),
)
"""Of pods with claims: also where they may go."""
_OWNER = ("kind", "controller", "uid")
_DEVICE = ("driver", "pool", "device", "shareID", "conditions")
_CONTAINER = ("name", "resources", "restartPolicy")
_PORT = ("hostPort", "hostIP", "protocol")
_VOLUME_CLAIM = ("claimName",)
_SHARED_BYTES = 32 * 2**20
_LABELS_BYTES = 2 * 2**20
"""Few: what tells the pods of one owner apart is often in their labels, and then none are equal."""

_POD_GROUPS: dict[Resource, Callable[[Obj], Obj]] = {
    kind.at_version(version): partial(trim_pod_group, kind)
    for kind in KINDS
    for version in kind.versions
}

_NAME_LENGTH = 254
"""One more than a name may have: what is longer names nothing."""

REQUEST_BYTES = 64 * 2**10
"""The requests and constraints of a claim that is read; usual ones have some hundred bytes."""

DECODED_BYTES = 256 * 2**10
"""The same in memory, roughly: thousands of short selectors take many times their text."""

CONFIG_BYTES = 8 * 2**10
"""The parameters for this driver, likewise."""

MOST_FINALIZERS = 64
"""A claim with more is not touched."""


def identity(obj: Obj) -> Obj:
    """The name and the version of an object."""
    return {"metadata": picked(obj["metadata"], _IDENTITY)}


class Trimmer:
    """Trims the objects of one resource, for ``driver``.

    Not thread-safe; the objects may not be changed.
    """

    def __init__(self, resource: Resource, driver: str) -> None:
        self._driver = driver
        self._known: BoundedCache[bytes, Any] = BoundedCache(_SHARED_BYTES, weigh=json_weight)
        self._labels: BoundedCache[bytes, Any] = BoundedCache(_LABELS_BYTES, weigh=json_weight)
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
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        if spec.get("resourceClaims"):
            slim = picked(spec, _OWN_POD_SPEC)
            if volumes := [v for v in map(_volume, spec.get("volumes") or ()) if v]:
                slim["volumes"] = volumes
        else:
            slim = picked(spec, _POD_SPEC)
            if affinity := _shunning(slim.pop("affinity", None) or {}):
                slim["affinity"] = affinity
        for field in ("containers", "initContainers"):
            if field in spec:
                slim[field] = [_container(c) for c in spec[field]]
        said = picked(status, ("phase", "resourceClaimStatuses", "nominatedNodeName"))
        # What Kubernetes says of a pod is nothing to us, unlike what we said ourselves.
        if own := [c for c in status.get("conditions") or () if "/" in c["type"]]:
            said["conditions"] = own
        metadata = _named(obj["metadata"], _POD_METADATA)
        read = (prepare_retry(self._driver), *ANNOTATIONS)
        if notes := picked(obj["metadata"].get("annotations") or {}, read):
            cut = {key: text[:_NAME_LENGTH] for key, text in notes.items()}
            metadata["annotations"] = self._shared(cut)
        if owners := metadata.pop("ownerReferences", None):
            kept = [_cut(picked(o, _OWNER)) for o in owners if o.get("controller")]
            metadata["ownerReferences"] = self._shared(kept)
        return self._kept(bounded({"metadata": metadata, "spec": slim, "status": said}))

    def _kept(self, pod: Obj) -> Obj:
        """``pod`` with what others have too kept once."""
        metadata, spec = pod["metadata"], pod["spec"]
        if labels := metadata.get("labels"):
            known = msgspec.json.encode(labels)
            metadata["labels"] = self._labels.get(known, lambda: _interned(labels))
        return {**pod, "spec": {key: self._shared(value) for key, value in spec.items()}}

    def _claim(self, obj: Obj) -> Obj:
        metadata = self._claim_metadata(obj)
        slim: Obj = {"metadata": metadata, "spec": self._shared(self._claim_spec(obj))}
        if status := obj.get("status"):
            slim["status"] = said = {k: v for k, v in status.items() if k != "devices"}
            if allocation := said.pop("allocation", None):
                allocation = self._without_others(allocation, "devices")
                said["allocation"] = kept = _interned(allocation)
                if "nodeSelector" in kept:
                    kept["nodeSelector"] = self._shared(kept["nodeSelector"])
            if "reservedFor" in said:
                said["reservedFor"] = _interned(said["reservedFor"])
            # Devices that are as they should be say nothing that the allocation does not.
            own = (d for d in status.get("devices") or () if d["driver"] == self._driver)
            if told := [picked(d, _DEVICE) for d in own if not _is_prepared(d)]:
                said["devices"] = told
        return slim

    def _claim_metadata(self, obj: Obj) -> Obj:
        metadata = _named(obj["metadata"], _CLAIM_METADATA)
        if "finalizers" in metadata:
            # One more than a claim may have to be touched.
            metadata["finalizers"] = self._shared(metadata["finalizers"][: MOST_FINALIZERS + 1])
        made = made_for(obj) if "allocation" not in (obj.get("status") or {}) else None
        if made is not None:
            metadata["annotations"] = self._shared({POD_CLAIM: made.entry[:_NAME_LENGTH]})
        if owners := [o for o in metadata.get("ownerReferences") or () if o.get("controller")]:
            kept = _OWNER if made is None else (*_OWNER, "name")
            metadata["ownerReferences"] = [_cut(picked(o, kept)) for o in owners]
        else:
            metadata.pop("ownerReferences", None)
        if node := (obj["metadata"].get("labels") or {}).get(node_label(self._driver)):
            metadata["labels"] = self._shared({node_label(self._driver): node})
        if managers := allocation_managers(obj["metadata"]):
            metadata[ALLOCATED_BY] = [sys.intern(manager) for manager in managers]
        return metadata

    def _claim_spec(self, obj: Obj) -> Obj:
        spec = self._without_others(obj.get("spec") or {}, "devices")
        devices = spec.get("devices") or {}
        config = msgspec.json.encode(devices.get("config") or ())
        rest = msgspec.json.encode({k: v for k, v in devices.items() if k != "config"})
        is_usual = len(config) <= CONFIG_BYTES and len(rest) <= REQUEST_BYTES
        if is_usual and decoded_weight(rest) <= DECODED_BYTES:
            return spec
        size = len(config) + len(rest)
        return {"devices": {"requests": [_stub(r, size) for r in devices.get("requests") or ()]}}

    def _class(self, obj: Obj) -> Obj:
        metadata = {k: v for k, v in obj["metadata"].items() if k != "managedFields"}
        holder = self._without_others({"spec": obj.get("spec") or {}}, "spec")
        return {**obj, "metadata": metadata, "spec": holder["spec"]}

    def _without_others(self, holder: Obj, field: str) -> Obj:
        """``holder``, and in ``field`` of it no configuration but that for this driver."""
        inner = holder.get(field) or {}
        if "config" not in inner:
            return holder
        own = [c for c in inner["config"] if (c.get("opaque") or {}).get("driver") == self._driver]
        kept = {k: v for k, v in inner.items() if k != "config"}
        if own:
            kept["config"] = own
        if len(own) < len(inner["config"]):
            kept[OTHERS_CONFIG] = True
        return {**holder, field: kept}

    def _shared(self, value: Any) -> Any:
        """``value``, or the one that was there before and is equal to it."""
        if isinstance(value, dict | list):
            return self._known.get(msgspec.json.encode(value), lambda: value)
        return value


def remembering(resource: Resource) -> Callable[[Obj], Obj]:
    """Part that the mirror holds, to know what has changed: others are in the index already."""
    by_name = (NODES, MIG_NODES, RESOURCE_CLAIM_TEMPLATES, *TRIMMERS, *_POD_GROUPS)
    return identity if resource in by_name else lambda obj: obj


def _container(container: Obj) -> Obj:
    slim = picked(container, _CONTAINER)
    if ports := [picked(p, _PORT) for p in container.get("ports") or () if p.get("hostPort")]:
        slim["ports"] = ports
    return slim


def _cut(texts: Obj) -> Obj:
    """Reference to an owner whose texts are no longer than what names something."""
    return {k: v[:_NAME_LENGTH] if isinstance(v, str) else v for k, v in texts.items()}


def _volume(volume: Obj) -> Obj | None:
    """The PersistentVolumeClaim of a volume; None of one without."""
    if claim := volume.get("persistentVolumeClaim"):
        return {"persistentVolumeClaim": picked(claim, _VOLUME_CLAIM)}
    return {"name": volume["name"], "ephemeral": {}} if "ephemeral" in volume else None


def _shunning(affinity: Obj) -> Obj | None:
    """Required anti-affinity between pods, which binds others too."""
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    required = (affinity.get("podAntiAffinity") or {}).get(field)
    return {"podAntiAffinity": {field: required}} if required else None


def _stub(request: Obj, size: int) -> Obj:
    """Rest of a request that is not read: its class, and the reason."""

    def of(body: Obj) -> Obj:
        return {**picked(body, ("name", "deviceClassName")), TOO_LARGE: size}

    stub = picked(request, ("name",))
    if "exactly" in request:
        stub["exactly"] = of(request["exactly"])
    if "firstAvailable" in request:
        stub["firstAvailable"] = [of(each) for each in request["firstAvailable"]]
    return stub


def _is_prepared(device: Obj) -> bool:
    return all(c.get("reason") in {PREPARED, MADE} for c in device.get("conditions") or ())


def _interned(value: Any) -> Any:
    """``value``, no string itself, with each of its strings kept once, whatever else has it."""
    if isinstance(value, list):
        return [sys.intern(v) if type(v) is str else _interned(v) for v in value]
    if isinstance(value, dict):
        return {key: sys.intern(v) if type(v) is str else _interned(v) for key, v in value.items()}
    return value


def _named(metadata: Obj, fields: Iterable[str]) -> Obj:
    """``fields`` of an object's metadata, its names kept once."""
    kept = picked(metadata, fields)
    for field in ("name", "namespace", "uid"):
        if field in kept:
            kept[field] = sys.intern(kept[field])
    return kept
