"""Deletion, and the garbage collector that stands in for kube-controller-manager's.

Dependents go in the background, after their owner: the other ways are not here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj, at
from dra.kube.timing import rfc3339
from sim.apiserver import errors
from sim.apiserver.kinds import grace_seconds
from sim.apiserver.requests import Target

if TYPE_CHECKING:
    from sim.apiserver.registry import Registry
    from sim.apiserver.resources import Catalogue, Family
    from sim.apiserver.store import Change, Record


_NAMESPACES = ("", "namespaces")


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Options of a delete request; no grace seconds mean the kind's own."""

    uid: str = ""
    resource_version: str = ""
    grace_seconds: int | None = None
    dry_run: bool = False

    @classmethod
    def read(cls, body: Any, query: dict[str, str]) -> DeleteOptions:
        """Reads DeleteOptions from the body, or from the query where the body is silent.

        Raises:
            ApiError: 400, they are no object.
        """
        if body is not None and not isinstance(body, dict):
            raise errors.bad_request("the delete options are no object")
        options: Obj = {**query, **(body or {})}
        asked, grace = options.get("preconditions") or {}, options.get("gracePeriodSeconds")
        return cls(
            uid=asked.get("uid") or "",
            resource_version=asked.get("resourceVersion") or "",
            grace_seconds=None if grace is None else int(grace),
            dry_run="All" in (options.get("dryRun") or ""),
        )


def delete(registry: Registry, target: Target, options: DeleteOptions) -> Record:
    """Deletes or begins to; gives the object, as a real server does of pods and claims."""
    live = registry.get(target)
    _check_preconditions(target, live, options)
    obj, family, store = live.copy(), target.resource.family, registry.store
    metadata = obj["metadata"]
    graceful, now = registry.kind(target.resource).graceful, registry.env.now()
    if "deletionTimestamp" in metadata:
        if not _shorten(metadata, options.grace_seconds, now):
            return live
    else:
        grace = grace_seconds(obj, options.grace_seconds) if graceful else 0
        if graceful or _is_held(target, obj):
            _begin(target, obj, grace, now)
    is_held = bool(metadata.get("deletionGracePeriodSeconds")) or _is_held(target, obj)
    if options.dry_run:
        return live
    # A pod goes in two steps, as with the real server: watchers see the mark before the deletion.
    if (is_held or graceful) and obj != live.obj:
        live = store.put(family, obj)
    return live if is_held else store.remove(family, obj)


def _begin(target: Target, obj: Obj, grace: int, now: datetime) -> None:
    metadata = obj["metadata"]
    metadata["deletionTimestamp"] = rfc3339(now + timedelta(seconds=grace))
    metadata["deletionGracePeriodSeconds"] = grace
    if "generation" in metadata:
        metadata["generation"] += 1
    if target.resource.family == _NAMESPACES:
        del metadata["deletionGracePeriodSeconds"]
        obj.setdefault("status", {})["phase"] = "Terminating"


def _shorten(metadata: Obj, asked: int | None, now: datetime) -> bool:
    """Brings the end nearer; tells whether there is anything left to do now."""
    pending = metadata.get("deletionGracePeriodSeconds", 0)
    if not pending:
        return True
    if asked is None or asked >= pending:
        return False
    due = datetime.fromisoformat(metadata["deletionTimestamp"]) + timedelta(seconds=asked - pending)
    metadata["deletionTimestamp"] = rfc3339(max(due, now))
    metadata["deletionGracePeriodSeconds"] = max(asked, 0)
    return True


def _check_preconditions(target: Target, live: Record, options: DeleteOptions) -> None:
    metadata = live.obj["metadata"]
    for label, asked, have in (
        ("UID", options.uid, metadata["uid"]),
        ("ResourceVersion", options.resource_version, metadata["resourceVersion"]),
    ):
        if asked and asked != have:
            why = (
                f"the {label} in the precondition ({asked}) does not match the {label} in record "
                f"({have}). The object might have been modified, or deleted and then recreated"
            )
            raise errors.conflict(target.resource, target.name, why)


def _is_held(target: Target, obj: Obj) -> bool:
    is_namespace = target.resource.family == _NAMESPACES
    return bool(
        obj["metadata"].get("finalizers") or (is_namespace and at(obj, "spec", "finalizers"))
    )


log = logging.getLogger(__name__)

_SETTLE_SECONDS = 0.02


async def collect_garbage(registry: Registry, catalogue: Catalogue) -> None:
    """Deletes what no owner holds any more, after every change, until it is cancelled."""
    pending = asyncio.Event()

    def see(change: Change) -> None:
        metadata = change.new.obj["metadata"]
        before = change.old.obj["metadata"] if change.old else {}
        is_owned_anew = metadata.get("ownerReferences") != before.get("ownerReferences")
        if change.type == "DELETED" or "deletionTimestamp" in metadata or is_owned_anew:
            pending.set()

    registry.store.listen(see)
    while True:
        await pending.wait()
        # A moment for writers that create owner and dependent one after the other.
        await asyncio.sleep(_SETTLE_SECONDS)
        pending.clear()
        try:
            _collect(registry, catalogue)
        except Exception:
            log.exception("garbage collection failed; it goes on with the next change")


def _collect(registry: Registry, catalogue: Catalogue) -> None:
    store = registry.store
    records = [(f, record) for f in [*store.families()] for record in store.records(f)]
    alive = {record.obj["metadata"]["uid"]: record for _, record in records}
    for family, record in records:
        metadata = record.obj["metadata"]
        if "deletionTimestamp" not in metadata:
            if metadata.get("ownerReferences") and _is_orphan(catalogue, metadata, alive):
                _delete(registry, catalogue, family, record)
        elif family == _NAMESPACES:
            _empty_namespace(registry, catalogue, record)


def _is_orphan(catalogue: Catalogue, metadata: Obj, alive: dict[str, Record]) -> bool:
    """True if all owners are gone; an owner of a kind that is not served is taken for there."""
    for owner in metadata["ownerReferences"]:
        kind = catalogue.of_kind(owner["apiVersion"].rpartition("/")[0], owner["kind"])
        found = alive.get(owner["uid"])
        lies_in = found.obj["metadata"].get("namespace", "") if found else ""
        if kind is None or (found and lies_in in ("", metadata.get("namespace", ""))):
            return False
    return True


def _empty_namespace(registry: Registry, catalogue: Catalogue, record: Record) -> None:
    name, store = record.obj["metadata"]["name"], registry.store

    def inside() -> list[tuple[Family, Record]]:
        return [(f, each) for f in [*store.families()] for each in store.records(f, name)]

    for family, each in inside():
        if "deletionTimestamp" not in each.obj["metadata"]:
            _delete(registry, catalogue, family, each)
    if not inside() and not record.obj["metadata"].get("finalizers"):
        store.remove(_NAMESPACES, record.copy())


def _delete(registry: Registry, catalogue: Catalogue, family: Family, record: Record) -> None:
    metadata = record.obj["metadata"]
    resource = catalogue.of_family(family)
    target = Target(resource, metadata.get("namespace", ""), metadata["name"])
    with contextlib.suppress(errors.ApiError):
        delete(registry, target, DeleteOptions(uid=metadata["uid"]))
