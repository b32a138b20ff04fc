"""Binding conditions of a pod's claims, as the dynamicresources plugin of 1.36 reads them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from dra.common.resources import Obj, at


class BindingFailedError(Exception):
    """The pod is not bound to the devices of a claim: a failure condition, or no time is left."""


def waits_for(claim: Obj) -> bool:
    """True if a device of the claim has binding conditions."""
    return any(True for _ in _awaited(claim))


def are_ready(claims: Sequence[Obj], *, now: datetime, seconds: float) -> bool:
    """True if all binding conditions are True; an allocation may wait for that many seconds.

    Raises:
        BindingFailedError: says of which claim.
    """
    for claim in claims:
        if not _is_ready(claim):
            if _is_overdue(claim, now=now, seconds=seconds):
                name = claim["metadata"]["name"]
                raise BindingFailedError(f"device binding timeout: claim={name}")
            return False
    return True


def is_given_up(claim: Obj, *, now: datetime, seconds: float) -> bool:
    """True if the allocated claim will not become ready: it is to be allocated anew."""
    try:
        are_ready([claim], now=now, seconds=seconds)
    except BindingFailedError:
        return True
    return False


def _is_ready(claim: Obj) -> bool:
    if at(claim, "status", "allocation", default=None) is None:
        return False
    for result in _awaited(claim):
        conditions = _conditions(claim, result)
        if conditions is None:
            return False
        for name in at(result, "bindingFailureConditions"):
            found = conditions.get(name, {})
            if found.get("status") == "True":
                raise BindingFailedError(
                    f"device binding failed: claim={claim['metadata']['name']}, "
                    f"reason={found.get('reason')}, message={found.get('message')!r}"
                )
        if any(conditions.get(n, {}).get("status") != "True" for n in result["bindingConditions"]):
            return False
    return True


def _is_overdue(claim: Obj, *, now: datetime, seconds: float) -> bool:
    stamp = at(claim, "status", "allocation", "allocationTimestamp", default="")
    if not stamp or not waits_for(claim):
        return False
    return datetime.fromisoformat(stamp) + timedelta(seconds=seconds) < now


def _awaited(claim: Obj) -> Iterator[Obj]:
    results = at(claim, "status", "allocation", "devices", "results")
    yield from (result for result in results if at(result, "bindingConditions"))


def _conditions(claim: Obj, result: Obj) -> dict[str, Obj] | None:
    """The conditions of an allocated device by type; None if nothing is said of it."""
    wanted = [result[field] for field in ("driver", "pool", "device")]
    for device in at(claim, "status", "devices"):
        if [device[field] for field in ("driver", "pool", "device")] == wanted:
            return {c["type"]: c for c in at(device, "conditions")}
    return None
