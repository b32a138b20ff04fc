"""Volumes, their claims and classes, and namespaces as they are stored: the part that is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dra.common.cache import decoded_weight
from dra.common.parts import ABSENT, cut, decode, shape, text_of
from dra.common.resources import (
    NAMESPACES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    Obj,
    Resource,
)
from dra.pods.volumes import BOUND, CLASS, SELECTED_NODE

CLAIM_BYTES = 4 * 2**10
"""Upper bound, roughly, on the memory of the selector of a PersistentVolumeClaim."""

VOLUME_BYTES = 64 * 2**10
"""Upper bound, roughly, on the memory of the labels of a volume, and of its node affinity."""

_MOST_MODES = 8
_SELECTS_NOTHING = {"matchExpressions": [{"key": "too-large", "operator": "In", "values": []}]}
_NO_NODE: Obj = {"required": {"nodeSelectorTerms": []}}
_METADATA = {
    **dict.fromkeys(("name", "namespace", "uid", "resourceVersion", "deletionTimestamp"), str),
    "annotations": {BOUND: str, CLASS: str, SELECTED_NODE: str},
}
_BOTH = {
    "accessModes": [str],
    **dict.fromkeys(("storageClassName", "volumeMode", "volumeAttributesClassName"), str),
}
_STATUS = {"phase": str}


def _decoder(**fields: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape(fields))


_CLAIM = _decoder(
    metadata={**_METADATA, "ownerReferences": [{"uid": str, "controller": bool}]},
    spec={
        **_BOTH,
        "resources": {"requests": {"storage": str}},
        "selector": msgspec.Raw,
        "volumeName": str,
    },
    status=_STATUS,
)
_VOLUME = _decoder(
    metadata={**_METADATA, "labels": msgspec.Raw},
    spec={
        **_BOTH,
        "capacity": {"storage": str},
        "nodeAffinity": msgspec.Raw,
        "claimRef": dict.fromkeys(("namespace", "name", "uid"), str),
    },
    status=_STATUS,
)
_STORAGE_CLASS = _decoder(
    metadata=_METADATA, provisioner=str, volumeBindingMode=str, allowedTopologies=Any
)
_NAMESPACE = _decoder(
    metadata={**dict.fromkeys(("name", "uid", "resourceVersion"), str), "labels": dict[str, str]}
)


def _keep_volume_claim(raw: msgspec.Raw) -> Obj:
    """The part of a PersistentVolumeClaim that is read; a selector too large selects nothing."""
    claim: Obj = cut(_CLAIM.decode(raw))
    metadata, spec = claim["metadata"], claim["spec"]
    owners = metadata.pop("ownerReferences", None) or ()
    if controllers := [each for each in owners if each.get("controller")]:
        metadata["ownerReferences"] = controllers
    spec["accessModes"] = sorted({*(spec.get("accessModes") or ())})[:_MOST_MODES]
    _bound(spec, "selector", CLAIM_BYTES, instead=_SELECTS_NOTHING)
    return claim


def _keep_volume(raw: msgspec.Raw) -> Obj:
    """The part of a PersistentVolume that is read.

    A node affinity that is too large allows no node, and labels that are too large are left out.
    """
    volume: Obj = cut(_VOLUME.decode(raw))
    _bound(volume["metadata"], "labels", VOLUME_BYTES, instead={})
    _bound(volume["spec"], "nodeAffinity", VOLUME_BYTES, instead=_NO_NODE)
    return volume


def _bound(holder: Obj, field: str, most: int, *, instead: Obj) -> None:
    """Decode a field, if there is one; ``instead``: its value if it would take too much memory."""
    if text := text_of(holder.pop(field, ABSENT)):
        holder[field] = decode(text) if decoded_weight(text) <= most else instead


def _keep_storage_class(raw: msgspec.Raw) -> Obj:
    """The part of a StorageClass that is read."""
    found: Obj = _STORAGE_CLASS.decode(raw)
    return found


def _keep_namespace(raw: msgspec.Raw) -> Obj:
    """The part of a Namespace that is read."""
    found: Obj = _NAMESPACE.decode(raw)
    return found


KEPT: Mapping[Resource, Callable[[msgspec.Raw], Obj]] = {
    PERSISTENT_VOLUME_CLAIMS: _keep_volume_claim,
    PERSISTENT_VOLUMES: _keep_volume,
    STORAGE_CLASSES: _keep_storage_class,
    NAMESPACES: _keep_namespace,
}
"""By resource, decoders of the part that is read."""
