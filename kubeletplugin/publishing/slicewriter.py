"""Writer of this node's ResourceSlices, which makes few writes.

Consumers use only the slices of a pool's highest generation, and only when all of them are there. A
change of a single slice is atomic and keeps the generation; any other change writes all slices with
the next generation.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from dra.common.resources import RESOURCE_SLICES, Obj
from dra.gpu.names import NVIDIA_DRIVER
from dra.kube.errors import ConflictError, ObjectNotFoundError
from dra.resourceslices.resourceslices import SliceLayout, is_own_name
from kubeletplugin.common import Common
from kubeletplugin.publishing.writer import Known, version_of

_log = logging.getLogger(__name__)


class DroppedFieldsError(Exception):
    """The API server dropped fields of a slice; ``taints``: it dropped only taints."""

    def __init__(self, name: str, *, taints: bool) -> None:
        what = "taints" if taints else "sharedCounters or consumesCounters"
        super().__init__(f"ResourceSlice {name} was stored without {what}")
        self.taints = taints


@dataclass(frozen=True, slots=True)
class _Found:
    """A slice as it is in the API server, without its content.

    ``version``: resourceVersion. ``generation``: the pool's. ``digest``: digest of the spec
    (``_digest``). ``offers``: it has devices or counters. ``owners``: ownerReferences.
    """

    name: str
    uid: str
    version: str
    generation: int
    digest: str
    offers: bool
    owners: Any


class SliceWriter:
    """Writes the slices of one driver on one node; all of them are taken for this program's.

    If the driver has the name of NVIDIA's DRA driver, slices with names unlike ours are left alone.
    ``owner``: returns the owner reference for the slices. ``known``: takes what is read or written.
    """

    def __init__(self, common: Common, *, owner: Callable[[], Obj], known: Known) -> None:
        options = common.options
        self._api = common.api
        self._driver = options.driver_name
        self._node = options.node_name
        self._selector = f"spec.nodeName={self._node},spec.driver={self._driver}"
        self._manager = options.field_manager
        self._owner = owner
        self._known = known
        self._stored: dict[str, str] = {}

    def write(self, layout: SliceLayout) -> Mapping[str, str]:
        """Write what differs; returns the resourceVersions of the slices by name.

        Raises:
            DroppedFieldsError: the server did not keep all of a slice.
            InvalidError: a slice exceeds a limit of the API.
            KubeError: a write failed; the slices may be an incomplete generation.
        """
        owner = self._owner()
        names = layout.names()
        found = {f.name: f for f in self._list()}
        generations = {f.generation for f in found.values()}
        generation = max(generations, default=0)
        # The server may store a spec changed; the digest of its version is remembered.
        changed = [
            index
            for index, name in enumerate(names)
            if name not in found
            or found[name].owners != [owner]
            or found[name].digest
            not in {digest := _digest(layout.spec(index, generation=0)), self._stored.get(digest)}
        ]
        obsolete = [f for name, f in found.items() if name not in names]
        versions = {name: f.version for name, f in found.items()}
        if not obsolete and not changed and len(generations) == 1:
            return versions
        if obsolete or len(changed) != 1 or generations != {generation} or len(found) < len(names):
            generation += 1
            changed = [*range(len(names))]
        for each in obsolete:
            self._delete(each)
            del versions[each.name]
        for index in changed:
            name = names[index]
            versions[name] = self._put(layout, index, generation, found.get(name), owner)
        _log.info(
            "generation %d of the pool: %d of %d ResourceSlices written, %d removed",
            generation,
            len(changed),
            len(names),
            len(obsolete),
        )
        return versions

    def withdraw(self) -> int:
        """Delete all slices of this node with devices or counters; returns how many.

        Raises:
            KubeError: a slice could not be deleted.
        """
        found = [f for f in self._list() if f.offers]
        for each in found:
            self._delete(each)
        return len(found)

    def _list(self) -> list[_Found]:
        try:
            listed = self._api.list(RESOURCE_SLICES, field_selector=self._selector)
        except ObjectNotFoundError:
            return []  # a server that has no such resource has none of ours
        ours = [obj for obj in listed.items if self.is_ours(obj["metadata"]["name"])]
        for obj in ours:
            self._known.take({"metadata": obj["metadata"]})
        return [_found(obj) for obj in ours]

    def is_ours(self, name: str) -> bool:
        """True unless a slice of that name may be another driver's with our driver's name."""
        own = is_own_name(name, driver=self._driver, node=self._node)
        return own or self._driver != NVIDIA_DRIVER

    def _put(
        self, layout: SliceLayout, index: int, generation: int, found: _Found | None, owner: Obj
    ) -> str:
        name = layout.names()[index]
        body: Obj = {
            "apiVersion": RESOURCE_SLICES.api_version,
            "kind": RESOURCE_SLICES.kind,
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": layout.spec(index, generation=generation),
        }
        if found is None:
            made = self._api.create(RESOURCE_SLICES, body, field_manager=self._manager)
        else:
            body["metadata"] |= {"resourceVersion": found.version, "uid": found.uid}
            made = self._api.replace(RESOURCE_SLICES, body, field_manager=self._manager)
        _check_kept(body, made)
        self._stored[_digest(body["spec"])] = _digest(made["spec"])
        return version_of(self._known.take({"metadata": made["metadata"]}))

    def _delete(self, found: _Found) -> None:
        try:
            self._api.delete(RESOURCE_SLICES, found.name, uid=found.uid)
        except ObjectNotFoundError:
            return
        except ConflictError:
            raise ConflictError(f"ResourceSlice {found.name} was made anew meanwhile") from None
        self._known.drop(found.name)


def _found(obj: Obj) -> _Found:
    metadata, spec = obj["metadata"], obj["spec"]
    return _Found(
        name=metadata["name"],
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        generation=spec["pool"].get("generation", 0),
        digest=_digest(spec),
        offers=bool(spec.get("devices") or spec.get("sharedCounters")),
        owners=metadata.get("ownerReferences"),
    )


def _digest(spec: Obj) -> str:
    """Digest of a spec, without the pool's generation and the times that the server adds."""
    pool = {**spec["pool"], "generation": 0}
    devices = [
        {**d, "taints": [{**t, "timeAdded": ""} for t in d["taints"]]} if "taints" in d else d
        for d in spec.get("devices", ())
    ]
    plain = {**spec, "pool": pool, "devices": devices}
    return hashlib.sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()


def _check_kept(sent: Obj, stored: Obj) -> None:
    name, wanted, kept = sent["metadata"]["name"], sent["spec"], stored["spec"]
    if bool(wanted.get("sharedCounters")) != bool(kept.get("sharedCounters")):
        raise DroppedFieldsError(name, taints=False)
    devices = {d["name"]: d for d in kept.get("devices", ())}
    for device in wanted.get("devices", ()):
        if device.get("consumesCounters") and not devices[device["name"]].get("consumesCounters"):
            raise DroppedFieldsError(name, taints=False)
    for device in wanted.get("devices", ()):
        if device.get("taints") and not devices[device["name"]].get("taints"):
            raise DroppedFieldsError(name, taints=True)
