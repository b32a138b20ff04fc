"""PersistentVolumeClaims, PersistentVolumes and StorageClasses as values."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Any, TypeVar

import msgspec

from dra.common.cache import BoundedCache
from dra.common.quantity import QuantityError, parse_quantity
from dra.common.resources import Obj, ObjectKey, at
from dra.pods.nodefit import NodeFacts
from dra.pods.pods import Pod
from dra.pods.selectors import Labels, LabelSelector, matches_terms, read_label_selector

BOUND = "pv.kubernetes.io/bind-completed"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
CLASS = "volume.beta.kubernetes.io/storage-class"
Place = tuple[str, str]
"""A label of nodes and one of its values."""

_NO_PROVISIONER = ("", "kubernetes.io/no-provisioner")


@dataclass(frozen=True, slots=True)
class Wish:
    """Properties by which volumes and claims are matched: those wished for, or those of a volume.

    ``size``: bytes. ``modes``: access modes. ``mode``: the volume mode.
    """

    class_name: str
    size: int
    modes: frozenset[str]
    mode: str
    attributes_class: str


@dataclass(frozen=True, slots=True)
class VolumeClaim:
    """A PersistentVolumeClaim. ``volume``: its volume's name, "" before there is one.

    ``bound``: the binding is complete, both ways. ``selected_node``: where a volume is being made.
    ``owner``: UID of its controlling owner.
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

    ``places``: each of its nodes has one of these labels; None where ``terms`` are not that simple.
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
    """True if ``claim`` may be bound to ``volume``, wherever the volume is."""
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


class OpenVolumes:
    """Volumes that are looked up by node."""

    def __init__(self, volumes: Iterable[Volume]) -> None:
        self._anywhere: list[Volume] = []
        self._in: dict[Place, list[Volume]] = {}
        for volume in sorted(volumes, key=_order):
            if volume.places is None:
                self._anywhere.append(volume)
            for place in volume.places or ():
                self._in.setdefault(place, []).append(volume)
        self._keys = {key for key, _ in self._in}

    def on(self, node: NodeFacts) -> Iterator[Volume]:
        """The volumes that reach ``node``, by size and then by name."""
        if not self._anywhere and not self._keys:
            return iter(())
        here = ((key, node.labels.get(key)) for key in self._keys)
        found = [self._in.get((key, value), []) for key, value in here if value is not None]
        return (v for v in merge(self._anywhere, *found, key=_order) if reaches(v, node))


def reaches(volume: Volume, node: NodeFacts) -> bool:
    """True if the node affinity of a volume allows ``node``."""
    return volume.terms is None or matches_terms(volume.terms, node.labels, "")


def _order(volume: Volume) -> tuple[int, str]:
    return volume.wish.size, volume.name


_REMEMBERED = 64
"""Most different wishes of claims for which the open volumes are remembered."""

_K = TypeVar("_K", bound=Hashable)


class Volumes:
    """All ``claims``, ``volumes`` and ``classes`` that are known; only its methods change them.

    ``listed`` is set once all were listed; before, nobody may ask. ``version`` grows with each
    change.
    """

    def __init__(self) -> None:
        self.listed = False
        self.version = 0
        self.claims: dict[ObjectKey, VolumeClaim] = {}
        self.volumes: dict[str, Volume] = {}
        self.classes: dict[str, StorageClass] = {}
        # Names of volumes: those without a claim by class, the others by their claim.
        self._of_class: dict[str, set[str]] = {}
        self._meant: dict[ObjectKey, set[str]] = {}
        self._open: BoundedCache[Hashable, OpenVolumes] = BoundedCache(_REMEMBERED)

    def claims_of(self, pod: Pod) -> Iterator[VolumeClaim]:
        """The claims of a pod that exist."""
        found = (self.claims.get((pod.key[0], name)) for name, _ in pod.volume_claims)
        return (claim for claim in found if claim is not None)

    def is_late(self, claim: VolumeClaim) -> bool:
        """True if ``claim`` gets its volume only once the node of its pod is known."""
        known = self.classes.get(claim.wish.class_name)
        return not claim.bound and not claim.volume and known is not None and known.waits

    def are_being_made(self, pod: Pod) -> bool:
        """True if a volume is being made for a claim of ``pod``."""
        if not pod.volume_claims:
            return False
        return any(c.selected_node for c in self.claims_of(pod) if self.is_late(c))

    def meant_for(self, claim: VolumeClaim) -> list[Volume]:
        """The volumes that are reserved for ``claim``, by size and then by name."""
        there = (self.volumes[name] for name in self._meant.get(claim.key, ()))
        found = (v for v in there if v.wish.class_name == claim.wish.class_name)
        return sorted((v for v in found if suits(v, claim)), key=lambda v: (v.wish.size, v.name))

    def open_to(self, claim: VolumeClaim) -> OpenVolumes:
        """The volumes without a claim that ``claim`` may be bound to."""
        selected = None if claim.selector is None else msgspec.json.encode(claim.selector)
        return self._open.get((claim.wish, selected), lambda: OpenVolumes(self._suiting(claim)))

    def breadth(self, claim: VolumeClaim) -> int:
        """Upper bound on the comparisons that show which volumes are open to ``claim``."""
        parts = 3 + (claim.selector.parts if claim.selector is not None else 0)
        return parts * len(self._of_class.get(claim.wish.class_name, ()))

    def _suiting(self, claim: VolumeClaim) -> Iterator[Volume]:
        there = (self.volumes[n] for n in self._of_class.get(claim.wish.class_name, ()))
        return (volume for volume in there if suits(volume, claim))

    def set_claim(self, claim: VolumeClaim) -> bool:
        """Take a claim that was added or changed; False when it is known so already."""
        if self.claims.get(claim.key) == claim:
            return False
        self.claims[claim.key] = claim
        self.version += 1
        return True

    def set_volume(self, volume: Volume) -> bool:
        """Take a volume that was added or changed; False when it is known so already."""
        if self.volumes.get(volume.name) == volume:
            return False
        self.remove_volume(volume.name)
        self.volumes[volume.name] = volume
        if volume.claim is None:
            self._of_class.setdefault(volume.wish.class_name, set()).add(volume.name)
            self._open.clear()
        else:
            self._meant.setdefault(volume.claim, set()).add(volume.name)
        self.version += 1
        return True

    def set_class(self, known: StorageClass) -> bool:
        """Take a class that was added or changed; False when it is known so already."""
        if self.classes.get(known.name) == known:
            return False
        self.classes[known.name] = known
        self.version += 1
        return True

    def remove_claim(self, key: ObjectKey) -> None:
        """Forget a claim."""
        self.claims.pop(key, None)
        self.version += 1

    def remove_volume(self, name: str) -> None:
        """Forget a volume."""
        volume = self.volumes.pop(name, None)
        if volume is not None and volume.claim is None:
            _discard(self._of_class, volume.wish.class_name, name)
            self._open.clear()
        elif volume is not None and volume.claim is not None:
            _discard(self._meant, volume.claim, name)
        self.version += 1

    def remove_class(self, name: str) -> None:
        """Forget a class."""
        self.classes.pop(name, None)
        self.version += 1


def _discard(index: dict[_K, set[str]], key: _K, name: str) -> None:
    index[key].discard(name)
    if not index[key]:
        del index[key]
