"""Volumes, their claims and classes, and namespaces as they are stored: the part that is read."""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec

from api.decoding import decodable
from dra.common.cache import decoded_weight
from dra.common.parts import ABSENT, Owner, Part, controllers, cut, decode, present, text_of
from dra.common.resources import Obj
from dra.pods.volumes import BOUND, CLASS, SELECTED_NODE

CLAIM_BYTES = 4 * 2**10
"""Upper bound, roughly, on the memory of the selector of a PersistentVolumeClaim."""

VOLUME_BYTES = 64 * 2**10
"""Upper bound, roughly, on the memory of the labels of a volume, and of its node affinity."""

_MOST_MODES = 8
_SELECTS_NOTHING = {"matchExpressions": [{"key": "too-large", "operator": "In", "values": []}]}
_NO_NODE: Obj = {"required": {"nodeSelectorTerms": []}}


class _Notes(msgspec.Struct, omit_defaults=True):
    bound: str | None = msgspec.field(name=BOUND, default=None)
    class_name: str | None = msgspec.field(name=CLASS, default=None)
    selected_node: str | None = msgspec.field(name=SELECTED_NODE, default=None)


class _Metadata(Part):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    annotations: _Notes | None = None
    labels: msgspec.Raw = ABSENT
    owner_references: list[Owner] | None = None

    @property
    def kept(self) -> Obj:
        """Identity, annotations that are read, and the time of deletion if there is one."""
        notes: Obj = msgspec.to_builtins(self.annotations or _Notes())
        return {
            "name": self.name,
            **({"namespace": self.namespace} if self.namespace else {}),
            "uid": self.uid,
            "resourceVersion": self.resource_version,
            **present({"deletionTimestamp": self.deletion_timestamp}),
            **({"annotations": {k: cut(v) for k, v in notes.items()}} if notes else {}),
        }


class _Phase(Part):
    phase: str = ""


class _Storage(TypedDict, total=False):
    storage: str


class _Requests(TypedDict, total=False):
    requests: _Storage


class _Both(Part):
    access_modes: list[str] | None = None
    storage_class_name: str | None = None
    volume_mode: str | None = None
    volume_attributes_class_name: str | None = None

    @property
    def kept(self) -> Obj:
        """Fields that claims and volumes both have."""
        names = {
            "storageClassName": self.storage_class_name,
            "volumeMode": self.volume_mode,
            "volumeAttributesClassName": self.volume_attributes_class_name,
        }
        found = {field: cut(text) for field, text in names.items() if text is not None}
        modes = sorted({*map(cut, self.access_modes or ())})[:_MOST_MODES]
        return {"accessModes": modes, **found}


class _ClaimSpec(_Both):
    resources: _Requests | None = None
    selector: msgspec.Raw = ABSENT
    volume_name: str | None = None


@decodable
class _Claim(Part):
    metadata: _Metadata
    spec: _ClaimSpec = msgspec.field(default_factory=_ClaimSpec)
    status: _Phase | None = None


def keep_volume_claim(raw: msgspec.Raw) -> Obj:
    """The part of a PersistentVolumeClaim that is read; a selector too large selects nothing."""
    claim = msgspec.json.decode(raw, type=_Claim)
    spec, metadata = claim.spec.kept, claim.metadata.kept
    if owners := controllers(claim.metadata.owner_references):
        metadata["ownerReferences"] = owners
    storage = ((claim.spec.resources or {}).get("requests") or {}).get("storage")
    if storage is not None:
        spec["resources"] = {"requests": {"storage": cut(storage)}}
    if claim.spec.volume_name is not None:
        spec["volumeName"] = cut(claim.spec.volume_name)
    if selector := text_of(claim.spec.selector):
        is_large = decoded_weight(selector) > CLAIM_BYTES
        spec["selector"] = _SELECTS_NOTHING if is_large else decode(selector)
    return {"metadata": metadata, "spec": spec, "status": _phase(claim.status)}


class _ClaimRef(TypedDict, total=False):
    namespace: str
    name: str
    uid: str


class _VolumeSpec(_Both):
    capacity: _Storage | None = None
    node_affinity: msgspec.Raw = ABSENT
    claim_ref: _ClaimRef | None = None


@decodable
class _Volume(Part):
    metadata: _Metadata
    spec: _VolumeSpec = msgspec.field(default_factory=_VolumeSpec)
    status: _Phase | None = None


def keep_volume(raw: msgspec.Raw) -> Obj:
    """The part of a PersistentVolume that is read.

    A node affinity that is too large allows no node, and labels that are too large are left out.
    """
    volume = msgspec.json.decode(raw, type=_Volume)
    spec, metadata = volume.spec.kept, volume.metadata.kept
    labels, affinity = text_of(volume.metadata.labels), text_of(volume.spec.node_affinity)
    if labels and decoded_weight(labels) <= VOLUME_BYTES:
        metadata["labels"] = decode(labels)
    if affinity:
        is_large = decoded_weight(affinity) > VOLUME_BYTES
        spec["nodeAffinity"] = _NO_NODE if is_large else decode(affinity)
    spec |= present({"capacity": volume.spec.capacity, "claimRef": volume.spec.claim_ref})
    return {"metadata": metadata, "spec": spec, "status": _phase(volume.status)}


def _phase(status: _Phase | None) -> Obj:
    return {"phase": status.phase} if status is not None and status.phase else {}


@decodable
class _StorageClass(Part):
    metadata: _Metadata
    provisioner: str | None = None
    volume_binding_mode: str | None = None
    allowed_topologies: Any = None


def keep_storage_class(raw: msgspec.Raw) -> Obj:
    """The part of a StorageClass that is read."""
    found = msgspec.json.decode(raw, type=_StorageClass)
    fields = {
        "provisioner": found.provisioner,
        "volumeBindingMode": found.volume_binding_mode,
        "allowedTopologies": found.allowed_topologies,
    }
    return {"metadata": found.metadata.kept, **present(fields)}


class _Namespaced(TypedDict, total=False):
    name: str
    uid: str
    resourceVersion: str
    labels: dict[str, str]


@decodable
class _Namespace(Part):
    metadata: _Namespaced


def keep_namespace(raw: msgspec.Raw) -> Obj:
    """The part of a Namespace that is read."""
    return {"metadata": msgspec.json.decode(raw, type=_Namespace).metadata}
