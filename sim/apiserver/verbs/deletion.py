"""Deletion: preconditions, grace, finalizers, propagation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj, at
from sim.apiserver.refusals import errors
from sim.apiserver.schema.normalise import rfc3339

if TYPE_CHECKING:
    from sim.apiserver.storage.store import Record
    from sim.apiserver.verbs.incoming import Target
    from sim.apiserver.verbs.registry import Registry

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
