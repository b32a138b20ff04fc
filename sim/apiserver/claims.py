"""Rules of claims that our programs can break: limits, and what a status may say.

A user's request is checked for its shape only: what it selects is for schedulers to judge.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj
from sim.apiserver.errors import Cause
from sim.apiserver.fields import (
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


_REQUESTS = 32
_CONFIGS = 32
_FIRST_AVAILABLE = 8
_RESULTS = 32
_RESERVATIONS = 256
_CONDITIONS = 8
_OPAQUE_LENGTH = 10 * 1024
_MESSAGE_LENGTH = 32768
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]{0,1022}[A-Za-z0-9_])?")
_REASON_SYNTAX = (
    "a condition reason must start with alphabetic character, optionally followed by a string "
    "of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'"
)
_ONE_KIND = "exactly one of `exactly` or `firstAvailable` is required"
_REFERENCE = (
    "must be the name of a request in the claim or the name of a request and a subrequest "
    "separated by '/'"
)


def device_id(entry: Obj) -> tuple[str, str, str, str]:
    """(driver, pool, device, share) of an allocation result or a device status."""
    return (
        entry.get("driver", ""),
        entry.get("pool", ""),
        entry.get("device", ""),
        entry.get("shareID", ""),
    )


def immutable(path: str, new: Any, old: Any) -> list[Cause]:
    """Refuses a change."""
    return [] if new == old else [invalid(path, new, "field is immutable")]


def check_items(
    items: list[Any],
    path: str,
    limit: int | None,
    check: Callable[[Any, str], Sequence[Cause]],
    *,
    key: Callable[[Any], Hashable] | None = None,
) -> list[Cause]:
    """Checks a list: its length, every item, and that `key` (if given) is distinct."""
    if limit is not None and len(items) > limit:
        return [too_many(path, len(items), limit)]
    causes: list[Cause] = []
    for index, item in enumerate(items):
        causes += check(item, f"{path}[{index}]")
    if key is not None:
        seen: set[Hashable] = set()
        for index, item in enumerate(items):
            if key(item) in seen:
                causes.append(duplicate(f"{path}[{index}]", key(item)))
            seen.add(key(item))
    return causes


# --- what is asked for --------------------------------------------------------------------------
def check_claim_spec(spec: Obj, path: str) -> list[Cause]:
    """Checks the spec of a claim or of a template."""
    devices = spec.get("devices", {})
    known = _request_names(devices)
    inside = f"{path}.devices"
    causes = check_items(
        devices.get("requests", []),
        f"{inside}.requests",
        _REQUESTS,
        _check_request,
        key=lambda request: request.get("name"),
    )
    return causes + check_items(
        devices.get("config", []),
        f"{inside}.config",
        _CONFIGS,
        lambda config, at: _check_config(config, at, known),
    )


def check_device_class(spec: Obj) -> list[Cause]:
    """Checks the configurations of a class."""
    return check_items(spec.get("config", []), "spec.config", _CONFIGS, _check_opaque)


def _request_names(devices: Obj) -> set[str]:
    """Every name by which requests can be referred to: `request`, `request/subrequest`."""
    known = set()
    for request in devices.get("requests", []):
        name = request.get("name", "")
        known.add(name)
        known |= {f"{name}/{sub.get('name', '')}" for sub in request.get("firstAvailable", [])}
    return known


def _check_reference(name: str, path: str, known: set[str]) -> list[Cause]:
    return [] if name in known else [invalid(path, name, _REFERENCE)]


def _check_request(request: Obj, path: str) -> list[Cause]:
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable", [])
    if exactly is None and not alternatives:
        return [required(path, _ONE_KIND)]
    if exactly is not None and alternatives:
        return [invalid(path, None, f"{_ONE_KIND}, but multiple fields are set")]
    if exactly is not None:
        return _check_wanted(exactly, f"{path}.exactly")
    return check_items(alternatives, f"{path}.firstAvailable", _FIRST_AVAILABLE, _check_wanted)


def _check_wanted(wanted: Obj, path: str) -> list[Cause]:
    causes: list[Cause] = []
    if not wanted.get("deviceClassName"):
        causes.append(required(f"{path}.deviceClassName"))
    mode, count = wanted.get("allocationMode", ""), wanted.get("count", 0)
    if mode not in ("All", "ExactCount"):
        causes.append(not_supported(f"{path}.allocationMode", mode, ("All", "ExactCount")))
    elif mode == "All" and count:
        text = "must not be specified when allocationMode is 'All'"
        causes.append(invalid(f"{path}.count", count, text))
    elif mode == "ExactCount" and count <= 0:
        causes.append(invalid(f"{path}.count", count, "must be greater than zero"))
    return causes


def _check_config(config: Obj, path: str, known: set[str]) -> list[Cause]:
    causes = _check_opaque(config, path)
    for index, name in enumerate(config.get("requests", [])):
        causes += _check_reference(name, f"{path}.requests[{index}]", known)
    return causes


def _check_opaque(config: Obj, path: str) -> list[Cause]:
    """Checks a driver's own configuration: the driver, and an object of at most 10 KiB."""
    if "opaque" not in config:
        return [required(f"{path}.opaque")]
    opaque = config["opaque"]
    causes = [] if opaque.get("driver") else [required(f"{path}.opaque.driver")]
    return causes + _check_raw(opaque.get("parameters"), f"{path}.opaque.parameters")


def _check_raw(value: Any, path: str) -> list[Cause]:
    if value is None:
        return [required(path)]
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if len(text.encode()) > _OPAQUE_LENGTH:
        return [too_long(path, _OPAQUE_LENGTH)]
    if not isinstance(value, dict):
        return [invalid(path, "<value omitted>", "must be a valid JSON object")]
    return []


# --- what an allocator and a node driver write --------------------------------------------------
def check_claim_status(new: Obj, old: Obj) -> list[Cause]:
    """Checks a status update; an allocation may come and go but never change."""
    status, before = new["status"], old.get("status", {})
    allocation = status.get("allocation")
    results = (allocation or {}).get("devices", {}).get("results", [])
    causes = _check_reservations(new, before)
    allocated = {device_id(result) for result in results}
    causes += check_items(
        status.get("devices", []),
        "status.devices",
        None,
        lambda device, at: _check_device(device, at, allocated),
        key=lambda device: "/".join(filter(None, device_id(device))),
    )
    if allocation is not None and "allocation" in before:
        causes += immutable("status.allocation", allocation, before["allocation"])
    elif allocation is not None:
        known = _request_names(new["spec"].get("devices", {}))
        causes += _check_allocation(allocation.get("devices", {}), known)
    return causes


def _check_reservations(claim: Obj, before: Obj) -> list[Cause]:
    status, path = claim["status"], "status.reservedFor"
    reservations = status.get("reservedFor", [])
    causes = check_items(
        reservations,
        path,
        _RESERVATIONS,
        lambda entry, at: [
            required(f"{at}.{field}")
            for field in ("resource", "name", "uid")
            if not entry.get(field)
        ],
        key=lambda entry: entry.get("uid"),
    )
    if reservations and "allocation" not in status:
        text = "may not be specified when `allocated` is not set"
        causes.append(forbidden(path, text))
    elif "deletionTimestamp" in claim["metadata"] and any(
        entry not in before.get("reservedFor", []) for entry in reservations
    ):
        text = (
            "new entries may not be added while `deallocationRequested` or `deletionTimestamp` "
            "are set"
        )
        causes.append(forbidden(path, text))
    return causes


def _check_allocation(devices: Obj, known: set[str]) -> list[Cause]:
    path = "status.allocation.devices"
    causes = check_items(
        devices.get("results", []),
        f"{path}.results",
        _RESULTS,
        lambda result, at: [
            *_check_reference(result.get("request", ""), f"{at}.request", known),
            *_check_identity(result, at),
        ],
    )
    return causes + check_items(
        devices.get("config", []),
        f"{path}.config",
        2 * _CONFIGS,
        lambda config, at: [
            *([] if config.get("source") else [required(f"{at}.source")]),
            *_check_config(config, at, known),
        ],
    )


def _check_identity(entry: Obj, path: str) -> list[Cause]:
    fields = ("driver", "pool", "device")
    return [required(f"{path}.{field}") for field in fields if not entry.get(field)]


def _check_device(device: Obj, path: str, allocated: set[Any]) -> list[Cause]:
    causes = _check_identity(device, path)
    if device_id(device) not in allocated:
        identity = "/".join(filter(None, device_id(device)))
        causes.append(invalid(path, identity, "must be an allocated device in the claim"))
    causes += check_items(
        device.get("conditions", []), f"{path}.conditions", _CONDITIONS, _check_condition
    )
    types: list[str] = [condition.get("type", "") for condition in device.get("conditions", [])]
    causes += [
        duplicate(f"{path}.conditions[{index}].type", kind)
        for index, kind in enumerate(types)
        if kind in types[:index]
    ]
    return causes + (_check_raw(device["data"], f"{path}.data") if "data" in device else [])


def _check_condition(condition: Obj, path: str) -> list[Cause]:
    fields = ("type", "reason", "lastTransitionTime")
    causes = [required(f"{path}.{field}") for field in fields if not condition.get(field)]
    reason = condition.get("reason", "")
    if reason and not _REASON.fullmatch(reason):
        causes.append(invalid(f"{path}.reason", reason, _REASON_SYNTAX))
    status, allowed = condition.get("status", ""), ("False", "True", "Unknown")
    if status not in allowed:
        causes.append(not_supported(f"{path}.status", status, allowed))
    if len(condition.get("message", "")) > _MESSAGE_LENGTH:
        causes.append(too_long(f"{path}.message", _MESSAGE_LENGTH))
    return causes
