"""Deletion: preconditions, grace, finalizers, propagation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sim.apiserver import errors
from sim.apiserver.normalise import rfc3339

if TYPE_CHECKING:
    from sim.apiserver.registry import Registry, Target
    from sim.apiserver.store import Record

Obj = dict[str, Any]

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
_RETURNS_OBJECT = {
    ("", "namespaces"),
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
    """What a delete request asks for; None means the kind's own way."""

    uid: str = ""
    resource_version: str = ""
    grace_seconds: int | None = None
    propagation: str = ""
    dry_run: bool = False


def parse_options(body: Any, query: dict[str, str]) -> DeleteOptions:
    """Read DeleteOptions from the body, or from the query where the body is silent.

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
    """Delete or begin to; gives the HTTP code with the object, or with a Status if it is gone."""
    live = registry.get(target)
    _check_preconditions(target, live, options)
    obj = live.copy()
    metadata = obj["metadata"]
    _propagate(metadata, options)
    kind = registry.kind(target.resource)
    now = registry.env.now()
    if "deletionTimestamp" in metadata:
        pending = metadata.get("deletionGracePeriodSeconds", 0)
        asked = options.grace_seconds
        if pending and (asked is None or asked >= pending):
            return 200, live
        if pending:
            shortened = max(asked or 0, 0)
            was = datetime.fromisoformat(metadata["deletionTimestamp"])
            due = max(was + timedelta(seconds=shortened - pending), now)
            metadata["deletionTimestamp"] = rfc3339(due)
            metadata["deletionGracePeriodSeconds"] = shortened
            if shortened:
                return _keep(registry, target, obj, live, options)
    else:
        grace = kind.grace_seconds(obj, options.grace_seconds)
        held = bool(metadata.get("finalizers")) or _is_held_namespace(target, obj)
        if grace or held:
            metadata["deletionTimestamp"] = rfc3339(now + timedelta(seconds=grace))
            metadata["deletionGracePeriodSeconds"] = grace
            if "generation" in metadata:
                metadata["generation"] += 1
            if target.resource.family == ("", "namespaces"):
                metadata.pop("deletionGracePeriodSeconds")
                obj.setdefault("status", {})["phase"] = "Terminating"
            return _keep(registry, target, obj, live, options)
    if metadata.get("finalizers") or _is_held_namespace(target, obj):
        return _keep(registry, target, obj, live, options)
    return _remove(registry, target, obj, options)


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
    """Translate the policy into the finalizers that the garbage collector acts on."""
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


def _is_held_namespace(target: Target, obj: Obj) -> bool:
    return target.resource.family == ("", "namespaces") and bool(
        obj.get("spec", {}).get("finalizers")
    )


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
