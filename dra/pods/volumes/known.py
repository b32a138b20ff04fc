"""Volumes, their claims and classes, by name."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TypeVar

import msgspec

from dra.common.cache import BoundedCache
from dra.common.resources import ObjectKey
from dra.pods.pods import Pod
from dra.pods.volumes.open_volumes import OpenVolumes
from dra.pods.volumes.values import StorageClass, Volume, VolumeClaim, suits

_REMEMBERED = 64
"""Wishes of claims of which it is remembered what is open to them."""

_K = TypeVar("_K", bound=Hashable)


class Volumes:
    """All that is known. Nothing is, and nobody may ask, before ``listed`` is set.

    ``version`` changes with whatever is known here.
    """

    def __init__(self) -> None:
        self.listed = False
        self.version = 0
        self._claims: dict[ObjectKey, VolumeClaim] = {}
        self._volumes: dict[str, Volume] = {}
        self._classes: dict[str, StorageClass] = {}
        # Those that nobody has by their class, the others by the claim that they are for.
        self._of_class: dict[str, set[str]] = {}
        self._meant: dict[ObjectKey, set[str]] = {}
        self._open: BoundedCache[Hashable, OpenVolumes] = BoundedCache(_REMEMBERED)

    @property
    def claims(self) -> Mapping[ObjectKey, VolumeClaim]:
        """Every known claim."""
        return self._claims

    @property
    def volumes(self) -> Mapping[str, Volume]:
        """Every known volume."""
        return self._volumes

    @property
    def classes(self) -> Mapping[str, StorageClass]:
        """Every known class."""
        return self._classes

    def claims_of(self, pod: Pod) -> Iterator[VolumeClaim]:
        """The claims of a pod that exist."""
        found = (self._claims.get((pod.key[0], name)) for name, _ in pod.volume_claims)
        return (claim for claim in found if claim is not None)

    def is_late(self, claim: VolumeClaim) -> bool:
        """True if ``claim`` gets its volume once it is known where its pod goes."""
        known = self._classes.get(claim.wish.class_name)
        return not claim.bound and not claim.volume and known is not None and known.waits

    def meant_for(self, claim: VolumeClaim) -> list[Volume]:
        """The volumes for which ``claim`` has been chosen already, by size and then by name."""
        there = (self._volumes[name] for name in self._meant.get(claim.key, ()))
        found = (v for v in there if v.wish.class_name == claim.wish.class_name)
        return sorted((v for v in found if suits(v, claim)), key=lambda v: (v.wish.size, v.name))

    def open_to(self, claim: VolumeClaim) -> OpenVolumes:
        """The volumes that nobody has and that ``claim`` may be bound to."""
        selected = None if claim.selector is None else msgspec.json.encode(claim.selector)
        return self._open.get((claim.wish, selected), lambda: OpenVolumes(self._suiting(claim)))

    def breadth(self, claim: VolumeClaim) -> int:
        """The number of comparisons that show which volumes are open to ``claim``, at the most."""
        parts = 3 + (claim.selector.parts if claim.selector is not None else 0)
        return parts * len(self._of_class.get(claim.wish.class_name, ()))

    def _suiting(self, claim: VolumeClaim) -> Iterator[Volume]:
        there = (self._volumes[n] for n in self._of_class.get(claim.wish.class_name, ()))
        return (volume for volume in there if suits(volume, claim))

    def set_claim(self, claim: VolumeClaim) -> bool:
        """A claim was added or changed; False when nothing did."""
        if self._claims.get(claim.key) == claim:
            return False
        self._claims[claim.key] = claim
        self.version += 1
        return True

    def set_volume(self, volume: Volume) -> bool:
        """A volume was added or changed; False when nothing did."""
        if self._volumes.get(volume.name) == volume:
            return False
        self.remove_volume(volume.name)
        self._volumes[volume.name] = volume
        if volume.claim is None:
            self._of_class.setdefault(volume.wish.class_name, set()).add(volume.name)
            self._open.clear()
        else:
            self._meant.setdefault(volume.claim, set()).add(volume.name)
        self.version += 1
        return True

    def set_class(self, known: StorageClass) -> bool:
        """A class was added or changed; False when nothing did."""
        if self._classes.get(known.name) == known:
            return False
        self._classes[known.name] = known
        self.version += 1
        return True

    def remove_claim(self, key: ObjectKey) -> None:
        """A claim is gone."""
        self._claims.pop(key, None)
        self.version += 1

    def remove_volume(self, name: str) -> None:
        """A volume is gone."""
        volume = self._volumes.pop(name, None)
        if volume is not None and volume.claim is None:
            _discard(self._of_class, volume.wish.class_name, name)
            self._open.clear()
        elif volume is not None and volume.claim is not None:
            _discard(self._meant, volume.claim, name)
        self.version += 1

    def remove_class(self, name: str) -> None:
        """A class is gone."""
        self._classes.pop(name, None)
        self.version += 1


def _discard(index: dict[_K, set[str]], key: _K, name: str) -> None:
    index[key].discard(name)
    if not index[key]:
        del index[key]
