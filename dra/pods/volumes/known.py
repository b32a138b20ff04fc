"""Volumes, their claims and classes, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dra.common.resources import ObjectKey
from dra.pods.pods import Pod
from dra.pods.volumes.values import StorageClass, Volume, VolumeClaim


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
        self._of_class: dict[str, set[str]] = {}

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

    def of_class(self, name: str) -> Iterator[Volume]:
        """The volumes of a class, by size and then by name."""
        found = (self._volumes[volume] for volume in self._of_class.get(name, ()))
        return iter(sorted(found, key=lambda v: (v.wish.size, v.name)))

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
        self._of_class.setdefault(volume.wish.class_name, set()).add(volume.name)
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
        if volume is not None:
            names = self._of_class[volume.wish.class_name]
            names.discard(name)
            if not names:
                del self._of_class[volume.wish.class_name]
        self.version += 1

    def remove_class(self, name: str) -> None:
        """A class is gone."""
        self._classes.pop(name, None)
        self.version += 1
