"""PersistentVolumeClaims, PersistentVolumes and StorageClasses as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra.common.quantity import QuantityError, parse_quantity
from dra.common.resources import Obj, ObjectKey, at
from dra.pods.labelselector import Labels, LabelSelector, read_label_selector

BOUND = "pv.kubernetes.io/bind-completed"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
CLASS = "volume.beta.kubernetes.io/storage-class"
Place = tuple[str, str]
"""A label of nodes and one of its values."""

_NO_PROVISIONER = ("", "kubernetes.io/no-provisioner")


@dataclass(frozen=True, slots=True)
class Wish:
    """The parts of a volume that have to suit a claim, and of a claim that a volume has to suit."""

    class_name: str
    size: int
    modes: frozenset[str]
    mode: str
    attributes_class: str


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    """A PersistentVolumeClaim. ``volume`` is its volume's name, "" before there is one.

    ``bound``: the binding is complete, both ways. ``selected_node``: where a volume is being made.
    """

    key: ObjectKey
    uid: str
    wish: Wish
    selector: LabelSelector | None
    volume: str
    bound: bool
    selected_node: str
    lost: bool
    deleting: bool
    owner: str

    @property
    def for_one_pod(self) -> bool:
        """True if one pod at a time may use it."""
        return "ReadWriteOncePod" in self.wish.modes


@dataclass(frozen=True, slots=True)
class Volume:
    """A PersistentVolume; ``terms`` are those of its node affinity, None where any node will do.

    Its nodes are in one of ``places``; None where that is not told so simply.
    """

    name: str
    wish: Wish
    labels: Labels
    terms: tuple[Mapping[str, Any], ...] | None
    places: tuple[Place, ...] | None
    claim: ObjectKey | None
    claim_uid: str
    available: bool
    deleting: bool


@dataclass(frozen=True, slots=True)
class StorageClass:
    """A StorageClass. ``waits``: a volume is bound once a pod's node is known.

    ``makes``: volumes are made on demand, where ``topologies`` allow.
    """

    name: str
    makes: bool
    waits: bool
    topologies: tuple[Obj, ...]


def read_volume_claim(obj: Obj) -> VolumeClaim:
    """The PersistentVolumeClaim in ``obj``."""
    metadata, spec = obj["metadata"], at(obj, "spec", default={})
    annotations = at(metadata, "annotations", default={})
    selector, volume = spec.get("selector"), spec.get("volumeName") or ""
    owners = (o["uid"] for o in at(metadata, "ownerReferences") if o.get("controller"))
    return VolumeClaim(
        key=(metadata["namespace"], metadata["name"]),
        uid=metadata["uid"],
        wish=_wish(spec, annotations, at(spec, "resources", "requests", "storage", default="0")),
        selector=None if selector is None else read_label_selector(selector),
        volume=volume,
        bound=bool(volume) and BOUND in annotations,
        selected_node=annotations.get(SELECTED_NODE, ""),
        lost=at(obj, "status", "phase", default="") == "Lost",
        deleting="deletionTimestamp" in metadata,
        owner=next(owners, ""),
    )


def read_volume(obj: Obj) -> Volume:
    """The PersistentVolume in ``obj``."""
    metadata, spec = obj["metadata"], at(obj, "spec", default={})
    required, claim = at(spec, "nodeAffinity", "required", default=None), spec.get("claimRef")
    terms = None if required is None else tuple(at(required, "nodeSelectorTerms"))
    return Volume(
        name=metadata["name"],
        wish=_wish(
            spec,
            at(metadata, "annotations", default={}),
            at(spec, "capacity", "storage", default="0"),
        ),
        labels=at(metadata, "labels", default={}),
        terms=terms,
        places=_places(terms),
        claim=(claim.get("namespace") or "", claim.get("name") or "") if claim else None,
        claim_uid=(claim or {}).get("uid") or "",
        available=at(obj, "status", "phase", default="") == "Available",
        deleting="deletionTimestamp" in metadata,
    )


def _places(terms: Sequence[Mapping[str, Any]] | None) -> tuple[Place, ...] | None:
    if terms is None or len(terms) != 1:
        return None
    for requirement in at(terms[0], "matchExpressions"):
        if requirement["operator"] == "In":
            values = dict.fromkeys(at(requirement, "values"))
            return tuple((requirement["key"], value) for value in values)
    return None


def read_storage_class(obj: Obj) -> StorageClass:
    """The StorageClass in ``obj``."""
    return StorageClass(
        name=obj["metadata"]["name"],
        makes=(obj.get("provisioner") or "") not in _NO_PROVISIONER,
        waits=obj.get("volumeBindingMode") == "WaitForFirstConsumer",
        topologies=tuple(at(obj, "allowedTopologies")),
    )


def suits(volume: Volume, claim: VolumeClaim) -> bool:
    """True if a claim may be bound to a volume, wherever it is."""
    wish, has = claim.wish, volume.wish
    if has.size < wish.size or has.mode != wish.mode or volume.deleting:
        return False
    if has.attributes_class != wish.attributes_class:
        return False
    if volume.claim is not None:
        return volume.claim == claim.key and volume.claim_uid in ("", claim.uid)
    selected = claim.selector is None or claim.selector.matches(volume.labels)
    return volume.available and selected and wish.modes <= has.modes


def _wish(spec: Obj, annotations: Labels, size: str) -> Wish:
    return Wish(
        class_name=annotations.get(CLASS, spec.get("storageClassName") or ""),
        size=_bytes(size),
        modes=frozenset(at(spec, "accessModes")),
        mode=spec.get("volumeMode") or "Filesystem",
        attributes_class=spec.get("volumeAttributesClassName") or "",
    )


def _bytes(quantity: str) -> int:
    try:
        return int(parse_quantity(quantity))
    except QuantityError:
        return 0
