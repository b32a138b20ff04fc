"""Trimming of volumes, their claims and classes, and namespaces: only what is read is mirrored."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from dra.common.cache import decoded_weight
from dra.common.resources import (
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    Obj,
    Resource,
    picked,
)
from dra.pods.volumes import BOUND, CLASS, SELECTED_NODE

_METADATA = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
_ANNOTATIONS = (BOUND, CLASS, SELECTED_NODE)
_BOTH = ("accessModes", "storageClassName", "volumeMode", "volumeAttributesClassName")
_CLAIM = (*_BOTH, "resources", "selector", "volumeName")
_VOLUME = (*_BOTH, "capacity", "nodeAffinity")
CLAIM_BYTES = 4 * 2**10
"""Upper bound, roughly, on the memory of one PersistentVolumeClaim's spec; most take 1 KiB."""

_SELECTS_NOTHING = {"matchExpressions": [{"key": "too-large", "operator": "In", "values": []}]}
_STORAGE_CLASS = ("provisioner", "volumeBindingMode", "allowedTopologies")


def _volume_claim(obj: Obj) -> Obj:
    metadata = _metadata(obj)
    owners = obj["metadata"].get("ownerReferences") or ()
    if controllers := [picked(o, ("uid", "controller")) for o in owners if o.get("controller")]:
        metadata["ownerReferences"] = controllers
    spec = picked(obj["spec"], _CLAIM)
    spec["accessModes"] = sorted({*spec.get("accessModes", ())})
    if decoded_weight(msgspec.json.encode(spec)) > CLAIM_BYTES:
        spec = picked(spec, (*_BOTH, "volumeName")) | {"selector": _SELECTS_NOTHING}
    return {"metadata": metadata, "spec": spec, "status": _phase(obj)}


def _volume(obj: Obj) -> Obj:
    metadata, spec = _metadata(obj), picked(obj["spec"], _VOLUME)
    if labels := obj["metadata"].get("labels"):
        metadata["labels"] = labels
    if claim := obj["spec"].get("claimRef"):
        spec["claimRef"] = picked(claim, ("namespace", "name", "uid"))
    return {"metadata": metadata, "spec": spec, "status": _phase(obj)}


def _storage_class(obj: Obj) -> Obj:
    return {"metadata": _metadata(obj), **picked(obj, _STORAGE_CLASS)}


def _namespace(obj: Obj) -> Obj:
    return {"metadata": picked(obj["metadata"], ("name", "uid", "resourceVersion", "labels"))}


def _metadata(obj: Obj) -> Obj:
    metadata = picked(obj["metadata"], _METADATA)
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
