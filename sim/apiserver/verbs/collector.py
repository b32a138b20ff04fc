"""Garbage collection and the emptying of namespaces: a stand-in for kube-controller-manager.

It acts on the same objects in the same way, only at once: dependents go when their last owner is
gone, foreground deletion waits for blocking dependents, orphans lose the reference.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from dra.common.resources import Obj
from sim.apiserver.refusals import errors
from sim.apiserver.verbs import deletion
from sim.apiserver.verbs.deletion import FOREGROUND, ORPHAN, DeleteOptions
from sim.apiserver.verbs.incoming import Target

if TYPE_CHECKING:
    from sim.apiserver.schema.resources import Catalogue, Family
    from sim.apiserver.storage.store import Change, Record
    from sim.apiserver.verbs.registry import Registry

log = logging.getLogger(__name__)

_NAMESPACES: Family = ("", "namespaces")
_SETTLE_SECONDS = 0.02


class Collector:
    """Watches every change and deletes what no owner holds any more."""

    def __init__(self, registry: Registry, catalogue: Catalogue) -> None:
        self._registry = registry
        self._catalogue = catalogue
        self._pending = asyncio.Event()
        self._close = registry.store.listen(self._see)

    def _see(self, change: Change) -> None:
        metadata = change.new.obj["metadata"]
        if (
            change.type == "DELETED"
            or "deletionTimestamp" in metadata
            or metadata.get("ownerReferences")
        ):
            self._pending.set()

    async def run(self) -> None:
        """Collects until cancelled."""
        try:
            while True:
                await self._pending.wait()
                # A moment for writers that create owner and dependent one after the other.
                await asyncio.sleep(_SETTLE_SECONDS)
                self._pending.clear()
                try:
                    self._collect()
                except Exception:
                    log.exception("garbage collection failed; it goes on with the next change")
        finally:
            self._close()

    def _collect(self) -> None:
        store = self._registry.store
        records = [
            (family, record)
            for family in list(store.families())
            for record in store.records(family)
        ]
        alive = {record.obj["metadata"]["uid"]: record for _, record in records}
        dependents: dict[str, list[tuple[Family, Record]]] = {}
        for family, record in records:
            for owner in record.obj["metadata"].get("ownerReferences", []):
                dependents.setdefault(owner["uid"], []).append((family, record))
        for family, record in records:
            metadata = record.obj["metadata"]
            if "deletionTimestamp" in metadata:
                finalizers = metadata.get("finalizers", [])
                mine = dependents.get(metadata["uid"], [])
                if ORPHAN in finalizers:
                    self._orphan(family, record, mine)
                elif FOREGROUND in finalizers:
                    self._delete_in_foreground(family, record, mine)
                elif family == _NAMESPACES:
                    self._empty_namespace(record)
            elif metadata.get("ownerReferences"):
                self._judge(family, record, alive)

    def _judge(self, family: Family, record: Record, alive: dict[str, Record]) -> None:
        """Deletes an object none of whose owners is there."""
        metadata = record.obj["metadata"]
        namespace = metadata.get("namespace", "")
        for owner in metadata["ownerReferences"]:
            kind = self._catalogue.of_kind(owner["apiVersion"].rpartition("/")[0], owner["kind"])
            if kind is None:
                return
            found = alive.get(owner["uid"])
            lies_in = found.obj["metadata"].get("namespace", "") if found else ""
            if found is not None and lies_in in ("", namespace):
                return
        self._delete(family, record, DeleteOptions(uid=metadata["uid"], propagation="Background"))

    def _orphan(
        self, family: Family, record: Record, dependents: list[tuple[Family, Record]]
    ) -> None:
        uid = record.obj["metadata"]["uid"]
        for theirs, dependent in dependents:
            obj = dependent.copy()
            owners = [o for o in obj["metadata"]["ownerReferences"] if o["uid"] != uid]
            if owners:
                obj["metadata"]["ownerReferences"] = owners
            else:
                del obj["metadata"]["ownerReferences"]
            self._write(theirs, obj)
        self._drop_finalizer(family, record, ORPHAN)

    def _delete_in_foreground(
        self, family: Family, record: Record, dependents: list[tuple[Family, Record]]
    ) -> None:
        uid = record.obj["metadata"]["uid"]
        blocking = False
        for theirs, dependent in dependents:
            metadata = dependent.obj["metadata"]
            owner = next(o for o in metadata["ownerReferences"] if o["uid"] == uid)
            blocking = blocking or bool(owner.get("blockOwnerDeletion"))
            if "deletionTimestamp" not in metadata:
                self._delete(theirs, dependent, DeleteOptions(uid=metadata["uid"]))
        if not blocking:
            self._drop_finalizer(family, record, FOREGROUND)

    def _empty_namespace(self, record: Record) -> None:
        name, store = record.obj["metadata"]["name"], self._registry.store
        rest = 0
        for family in list(store.families()):
            for inside in store.records(family, name):
                rest += 1
                if "deletionTimestamp" not in inside.obj["metadata"]:
                    self._delete(family, inside, DeleteOptions(grace_seconds=0))
        if rest:
            self._pending.set()
            if any(store.records(family, name) for family in list(store.families())):
                return
        namespace = record.copy()
        namespace["spec"] = {}
        if not namespace["metadata"].get("finalizers"):
            store.remove(_NAMESPACES, namespace)

    def _delete(self, family: Family, record: Record, options: DeleteOptions) -> None:
        metadata = record.obj["metadata"]
        resource = self._catalogue.of_family(family)
        target = Target(resource, metadata.get("namespace", ""), metadata["name"])
        with contextlib.suppress(errors.ApiError):
            deletion.delete(self._registry, target, options)

    def _drop_finalizer(self, family: Family, record: Record, finalizer: str) -> None:
        obj = record.copy()
        metadata = obj["metadata"]
        metadata["finalizers"] = [f for f in metadata["finalizers"] if f != finalizer]
        if not metadata["finalizers"]:
            del metadata["finalizers"]
            self._registry.store.remove(family, obj)
        else:
            self._write(family, obj)

    def _write(self, family: Family, obj: Obj) -> None:
        self._registry.store.put(family, obj)
