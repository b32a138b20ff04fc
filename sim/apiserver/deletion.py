"""Deletion, and the garbage collector that stands in for kube-controller-manager's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj, at
from sim.apiserver import errors
from sim.apiserver.requests import Target
from sim.apiserver.shapes import rfc3339

if TYPE_CHECKING:
    from sim.apiserver.registry import Registry
    from sim.apiserver.resources import Catalogue, Family
    from sim.apiserver.store import Change, Record


ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
_NAMESPACES = ("", "namespaces")
_RETURNS_OBJECT = {
    _NAMESPACES,
    ("", "pods"),
    ("", "services"),
    ("", "serviceaccounts"),
    ("resource.k8s.io", "deviceclasses"),
    ("resource.k8s.io", "resourceclaims"),
    ("resource.k8s.io", "resourceclaimtemplates"),
    ("resource.k8s.io", "resourceslices"),
}


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Options of a delete request; None means the kind's own way."""

    uid: str = ""
    resource_version: str = ""
    grace_seconds: int | None = None
    propagation: str = ""
    dry_run: bool = False


def parse_options(body: Any, query: dict[str, str]) -> DeleteOptions:
    """Reads DeleteOptions from the body, or from the query where the body is silent.

    Raises:
        ApiError: 400, they are malformed.
    """
    if body is not None and not isinstance(body, dict):
        raise errors.bad_request("the delete options are no object")
    options: Obj = body or {}
    preconditions = options.get("preconditions") or {}
    grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    propagation = options.get("propagationPolicy") or query.get("propagationPolicy", "")
    if options.get("orphanDependents"):
        propagation = "Orphan"
    if propagation not in ("", "Background", "Foreground", "Orphan"):
        raise errors.bad_request(f'invalid propagationPolicy "{propagation}"')
    try:
        seconds = None if grace is None else int(grace)
    except (TypeError, ValueError):
        raise errors.bad_request(f"gracePeriodSeconds {grace!r} is no number") from None
    return DeleteOptions(
        uid=preconditions.get("uid") or "",
        resource_version=preconditions.get("resourceVersion") or "",
        grace_seconds=seconds,
        propagation=propagation,
        dry_run="All" in (options.get("dryRun") or query.get("dryRun", "")),
    )


def delete(registry: Registry, target: Target, options: DeleteOptions) -> tuple[int, Record | Obj]:
    """Deletes or begins to; gives the HTTP code with the object, or with a Status if it is gone."""
    live = registry.get(target)
    _check_preconditions(target, live, options)
    obj = live.copy()
    metadata = obj["metadata"]
    _propagate(metadata, options)
    kind = registry.kind(target.resource)
    now = registry.env.now()
    begun = "deletionTimestamp" in metadata
    if begun and not _shorten(metadata, options, now):
        return 200, live
    if not begun:
        grace = kind.grace_seconds(obj, options.grace_seconds)
        if grace or kind.graceful or metadata.get("finalizers") or _is_held(target, obj):
            _begin(target, obj, grace, now)
    waits = bool(metadata.get("deletionGracePeriodSeconds"))
    if waits or metadata.get("finalizers") or _is_held(target, obj):
        return _keep(registry, target, obj, live, options)
    if kind.graceful:
        # Two steps, as with the real server: watchers see the mark before the deletion.
        _keep(registry, target, obj, live, options)
    return _remove(registry, target, obj, options)


def _begin(target: Target, obj: Obj, grace: int, now: datetime) -> None:
    metadata = obj["metadata"]
    metadata["deletionTimestamp"] = rfc3339(now + timedelta(seconds=grace))
    metadata["deletionGracePeriodSeconds"] = grace
    if "generation" in metadata:
        metadata["generation"] += 1
    if target.resource.family == _NAMESPACES:
        del metadata["deletionGracePeriodSeconds"]
        obj.setdefault("status", {})["phase"] = "Terminating"


def _shorten(metadata: Obj, options: DeleteOptions, now: datetime) -> bool:
    """Brings the end nearer; tells whether there is anything left to do now."""
    pending, asked = metadata.get("deletionGracePeriodSeconds", 0), options.grace_seconds
    if not pending:
        return True
    if asked is None or asked >= pending:
        return False
    due = datetime.fromisoformat(metadata["deletionTimestamp"])
    asked = max(asked, 0)
    metadata["deletionTimestamp"] = rfc3339(max(due + timedelta(seconds=asked - pending), now))
    metadata["deletionGracePeriodSeconds"] = asked
    return True


def _check_preconditions(target: Target, live: Record, options: DeleteOptions) -> None:
    metadata = live.obj["metadata"]
    for label, asked, have in (
        ("UID", options.uid, metadata["uid"]),
        ("ResourceVersion", options.resource_version, metadata["resourceVersion"]),
    ):
        if asked and asked != have:
            fate = "deleted and then recreated" if label == "UID" else "modified"
            why = (
                f"the {label} in the precondition ({asked}) does not match the {label} in record "
                f"({have}). The object might have been {fate}"
            )
            raise errors.conflict(target.resource, target.name, why)


def _propagate(metadata: Obj, options: DeleteOptions) -> None:
    """Translates the policy into the finalizers that the garbage collector acts on."""
    if not options.propagation:
        return
    wanted = {"Orphan": ORPHAN, "Foreground": FOREGROUND}.get(options.propagation)
    finalizers = [f for f in metadata.get("finalizers", []) if f not in (ORPHAN, FOREGROUND)]
    if wanted:
        finalizers.append(wanted)
    if finalizers:
        metadata["finalizers"] = finalizers
    else:
        metadata.pop("finalizers", None)


def _is_held(target: Target, obj: Obj) -> bool:
    return target.resource.family == _NAMESPACES and bool(at(obj, "spec", "finalizers"))


def _keep(
    registry: Registry, target: Target, obj: Obj, live: Record, options: DeleteOptions
) -> tuple[int, Record | Obj]:
    if options.dry_run or obj == live.obj:
        return 200, live
    return 200, registry.store.put(target.resource.family, obj)


def _remove(
    registry: Registry, target: Target, obj: Obj, options: DeleteOptions
) -> tuple[int, Record | Obj]:
    metadata = obj["metadata"]
    if not options.dry_run:
        record = registry.store.remove(target.resource.family, obj)
        if target.resource.family in _RETURNS_OBJECT:
            return 200, record
    return 200, errors.success(target.resource, target.name, metadata["uid"])


log = logging.getLogger(__name__)

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
            delete(self._registry, target, options)

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
