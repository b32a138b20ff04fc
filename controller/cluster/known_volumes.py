"""Volumes of the mirrored cluster, and the labels of its namespaces.

Both are mirrored where the controller may read them; without, kube-scheduler's refusals tell.
"""

from __future__ import annotations

from controller.cluster.effects import Effects
from controller.cluster.watchers import Watchers
from dra.common.resources import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    Obj,
    ObjectKey,
    Resource,
    at,
)
from dra.pods.residents import Hosts
from dra.pods.volumes import read_storage_class, read_volume, read_volume_claim

VOLUMES = (PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES)
"""Resources to be listed before anything of them counts."""


class KnownVolumes:
    """Keeps ``hosts`` up to what volumes, their claims and classes, and namespaces say."""

    def __init__(self, hosts: Hosts, watchers: Watchers, effects: Effects) -> None:
        self._volumes = hosts.volumes
        self._residents = hosts.residents
        self._watchers = watchers
        self._effects = effects
        self._lacking = {*VOLUMES}

    def note_listed(self, resource: Resource) -> None:
        """All objects of a resource are known from now on."""
        self._lacking.discard(resource)
        if not self._lacking and not self._volumes.listed:
            self._volumes.listed = True
            self._wake()

    def set_claim(self, obj: Obj) -> None:
        """A PersistentVolumeClaim was added or changed."""
        claim = read_volume_claim(obj)
        if self._volumes.set_claim(claim):
            self._effects.pods.update(self._watchers.of_volume_claim(claim.key))

    def remove_claim(self, key: ObjectKey) -> None:
        """A PersistentVolumeClaim is gone."""
        self._volumes.remove_claim(key)
        self._effects.pods.update(self._watchers.of_volume_claim(key))

    def set_volume(self, obj: Obj) -> None:
        """A PersistentVolume was added or changed."""
        if self._volumes.set_volume(read_volume(obj)):
            self._wake()

    def remove_volume(self, name: str) -> None:
        """A PersistentVolume is gone."""
        self._volumes.remove_volume(name)
        self._wake()

    def set_class(self, obj: Obj) -> None:
        """A StorageClass was added or changed."""
        if self._volumes.set_class(read_storage_class(obj)):
            self._wake()

    def remove_class(self, name: str) -> None:
        """A StorageClass is gone."""
        self._volumes.remove_class(name)
        self._wake()

    def set_namespace(self, obj: Obj) -> None:
        """A Namespace was added or changed."""
        if self._residents.set_namespace(
            obj["metadata"]["name"], at(obj, "metadata", "labels", default={})
        ):
            self._effects.room_anywhere = True

    def remove_namespace(self, name: str) -> None:
        """A Namespace is gone."""
        self._residents.set_namespace(name, None)

    def _wake(self) -> None:
        self._effects.pods.update(self._watchers.of_volumes())
