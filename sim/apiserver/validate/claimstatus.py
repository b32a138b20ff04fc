"""Rules of claim status: what an allocator and a node driver write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj
from sim.apiserver.refusals import names
from sim.apiserver.refusals.causes import (
    Cause,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)
from sim.apiserver.validate.claims import (
    CONFIGS,
    check_reference,
    check_references,
    request_names,
)
from sim.apiserver.validate.devices import (
    OPAQUE_LENGTH,
    check_binding,
    check_driver,
    check_items,
    check_label,
    check_opaque,
    check_pool,
    check_raw,
    device_id,
    immutable,
    refuse_admin_access,
)
from sim.apiserver.validate.nodeselector import check_node_selector

if TYPE_CHECKING:
    from collections.abc import Callable

_RESULTS = 32
_RESERVATIONS = 256
_CONDITIONS = 8
_REASON_LENGTH = 1024
_MESSAGE_LENGTH = 32768


def check_claim_status(new: Obj, old: Obj, *, admin_allowed: bool) -> list[Cause]:
    """Checks a status update; an allocation may come and go but never change."""
    status, before = new["status"], old.get("status", {})
    known = request_names(new["spec"].get("devices", {}))
    allocation = status.get("allocation")
    results = (allocation or {}).get("devices", {}).get("results", [])
    causes: list[Cause] = []
    if not admin_allowed and "allocation" not in before:
        for index, result in enumerate(results):
            if result.get("adminAccess"):
                at = f"status.allocation.devices.results[{index}].adminAccess"
                causes.append(refuse_admin_access(at))
                break
    causes += _check_reservations(new, before)
    allocated = {device_id(result) for result in results}
    causes += check_items(
        status.get("devices", []),
        "status.devices",
        -1,
        lambda device, at: _check_device(device, at, allocated),
        key=lambda device: "/".join(filter(None, device_id(device))),
    )
    if allocation is not None and "allocation" in before:
        causes += immutable("status.allocation", allocation, before["allocation"])
    elif allocation is not None:
        causes += _check_allocation(allocation, "status.allocation", known)
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


def _check_allocation(allocation: Obj, path: str, known: set[str]) -> list[Cause]:
    devices, inside = allocation.get("devices", {}), f"{path}.devices"
    causes = check_items(
        devices.get("results", []),
        f"{inside}.results",
        _RESULTS,
        lambda result, at: _check_result(result, at, known),
    )
    causes += check_items(
        devices.get("config", []),
        f"{inside}.config",
        2 * CONFIGS,
        lambda config, at: _check_config(config, at, known),
    )
    if "nodeSelector" in allocation:
        causes += check_node_selector(allocation["nodeSelector"], f"{path}.nodeSelector")
    return causes


def _check_result(result: Obj, path: str, known: set[str]) -> list[Cause]:
    causes = check_reference(result.get("request", ""), f"{path}.request", known)
    causes += check_binding(result, path)
    return causes + _check_identity(result, path)


def _check_identity(entry: Obj, path: str) -> list[Cause]:
    causes = check_driver(entry.get("driver", ""), f"{path}.driver")
    causes += check_pool(entry.get("pool", ""), f"{path}.pool")
    return causes + check_label(entry.get("device", ""), f"{path}.device")


def _check_config(config: Obj, path: str, known: set[str]) -> list[Cause]:
    source = config.get("source", "")
    causes = []
    if not source:
        causes.append(required(f"{path}.source"))
    elif source not in ("FromClaim", "FromClass"):
        causes.append(not_supported(f"{path}.source", source, ("FromClaim", "FromClass")))
    causes += check_references(config.get("requests", []), f"{path}.requests", known)
    return causes + check_opaque(config, path)


def _check_device(device: Obj, path: str, allocated: set[Any]) -> list[Cause]:
    causes = _check_identity(device, path)
    if device_id(device) not in allocated:
        identity = "/".join(filter(None, device_id(device)))
        causes.append(invalid(path, identity, "must be an allocated device in the claim"))
    conditions = device.get("conditions", [])
    if len(conditions) > _CONDITIONS:
        causes.append(too_many(f"{path}.conditions", len(conditions), _CONDITIONS))
    causes += check_conditions(conditions, f"{path}.conditions")
    if "data" in device:
        causes += check_raw(device["data"], f"{path}.data", OPAQUE_LENGTH)
    return causes


def check_conditions(conditions: list[Obj], path: str) -> list[Cause]:
    """Checks metav1.Conditions: complete, well-formed, one of each type."""
    causes = check_items(conditions, path, -1, _check_condition)
    seen: set[str] = set()
    for index, condition in enumerate(conditions):
        kind = condition.get("type", "")
        if kind in seen:
            causes.append(duplicate(f"{path}[{index}].type", kind))
        seen.add(kind)
    return causes


def _check_condition(condition: Obj, path: str) -> list[Cause]:
    causes = []
    rules: dict[str, Callable[[str], str | None]] = {
        "type": names.qualified_name,
        "reason": _reason,
    }
    if condition.get("status") not in ("True", "False", "Unknown"):
        causes.append(
            not_supported(
                f"{path}.status", condition.get("status", ""), ("False", "True", "Unknown")
            )
        )
    if not condition.get("lastTransitionTime"):
        causes.append(required(f"{path}.lastTransitionTime", "must be set"))
    for field, rule in rules.items():
        value = condition.get(field, "")
        if not value:
            causes.append(required(f"{path}.{field}", "must be set" if field == "type" else ""))
        elif complaint := rule(value):
            causes.append(invalid(f"{path}.{field}", value, complaint))
    if len(condition.get("message", "")) > _MESSAGE_LENGTH:
        causes.append(too_long(f"{path}.message", _MESSAGE_LENGTH))
    return causes


def _reason(text: str) -> str | None:
    body = text.replace("_", "").replace(",", "").replace(":", "")
    if len(text) <= _REASON_LENGTH and text[0].isalpha() and body.isalnum() and body.isascii():
        return None
    return (
        "a condition reason must start with alphabetic character, optionally followed by a string "
        "of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'"
    )
