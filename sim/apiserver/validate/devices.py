"""Rules shared by the kinds of resource.k8s.io: names, selectors, opaque configs, lists."""

from __future__ import annotations

import json
import re
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
from sim.apiserver.validate.cel import complaint_about

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

OPAQUE_LENGTH = 10 * 1024
_EXPRESSION_LENGTH = 10 * 1024
_POOL_NAME_LENGTH = 253
_IDENTIFIER_LENGTH = 32
_SELECTORS = 32
BINDING_LISTS = ("bindingConditions", "bindingFailureConditions")
_BINDING_CONDITIONS = 4
_EFFECTS = ("NoExecute", "NoSchedule", "None")


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
    limit: int,
    check: Callable[[Any, str], Sequence[Cause]],
    *,
    key: Callable[[Any], Hashable] | None = None,
) -> list[Cause]:
    """Checks a list: its length, every item, and that `key` (if given) is distinct."""
    if 0 <= limit < len(items):
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


def check_driver(name: str, path: str) -> list[Cause]:
    """Checks a driver name: a DNS subdomain of at most 63 characters, in any case."""
    if not name:
        return [required(path)]
    causes = [too_long(path, 63)] if len(name) > names.DNS_LABEL_LENGTH else []
    complaint = names.dns_subdomain(name.lower())
    return [*causes, invalid(path, name, complaint)] if complaint else causes


def check_pool(name: str, path: str) -> list[Cause]:
    """Checks a pool name: DNS subdomains separated by slashes, at most 253 characters."""
    if not name:
        return [required(path)]
    causes = [too_long(path, _POOL_NAME_LENGTH)] if len(name) > _POOL_NAME_LENGTH else []
    return causes + [
        invalid(path, part, complaint)
        for part in name.split("/")
        if (complaint := names.dns_subdomain(part))
    ]


def check_label(name: str, path: str) -> list[Cause]:
    """Checks the name of a device, request, counter or counter set: a DNS label."""
    if not name:
        return [required(path)]
    complaint = names.dns_label(name)
    return [invalid(path, name, complaint)] if complaint else []


def check_qualified(name: str, path: str) -> list[Cause]:
    """Checks an attribute's name: a C identifier with an optional domain."""
    domain, slash, identifier = name.rpartition("/")
    causes: list[Cause] = []
    if slash and not domain:
        causes.append(invalid(path, "", "the domain must not be empty"))
    elif slash:
        causes += check_driver(domain, path)
    if slash and not identifier:
        return [*causes, invalid(path, "", "the name must not be empty")]
    if len(identifier) > _IDENTIFIER_LENGTH:
        causes.append(too_long(path, _IDENTIFIER_LENGTH))
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", identifier):
        text = (
            "a valid C identifier must start with alphabetic character or '_', followed by a "
            "string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or "
            "'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
        )
        causes.append(invalid(path, identifier, text))
    return causes


def check_selectors(selectors: list[Obj], path: str) -> list[Cause]:
    """Checks that every selector is a CEL expression that compiles."""
    return check_items(selectors, path, _SELECTORS, _check_selector)


def _check_selector(selector: Obj, path: str) -> list[Cause]:
    if "cel" not in selector:
        return [required(f"{path}.cel")]
    expression = selector["cel"].get("expression", "")
    inside = f"{path}.cel.expression"
    if len(expression) > _EXPRESSION_LENGTH:
        return [too_long(inside, _EXPRESSION_LENGTH)]
    complaint = complaint_about(expression)
    return [invalid(inside, expression, complaint)] if complaint else []


def check_opaque(config: Obj, path: str) -> list[Cause]:
    """Checks a driver's own configuration: the driver, and an object of at most 10 KiB."""
    if "opaque" not in config:
        return [required(f"{path}.opaque")]
    opaque = config["opaque"]
    causes = check_driver(opaque.get("driver", ""), f"{path}.opaque.driver")
    parameters = opaque.get("parameters")
    return causes + check_raw(parameters, f"{path}.opaque.parameters", OPAQUE_LENGTH)


def check_raw(value: Any, path: str, limit: int) -> list[Cause]:
    """Checks a free JSON object: there, an object, and within `limit` bytes."""
    if value is None:
        return [required(path)]
    if len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()) > limit:
        return [too_long(path, limit)]
    if not isinstance(value, dict):
        return [invalid(path, "<value omitted>", "must be a valid JSON object")]
    return []


def _check_label_key(name: str, path: str) -> list[Cause]:
    complaint = names.qualified_name(name)
    return [invalid(path, name, complaint)] if complaint else []


def check_taint(taint: Obj, path: str) -> list[Cause]:
    """Checks a device's taint."""
    causes = _check_label_key(taint.get("key", ""), f"{path}.key")
    if complaint := names.label_value(taint.get("value", "")):
        causes.append(invalid(f"{path}.value", taint["value"], complaint))
    if not taint.get("effect"):
        causes.append(required(f"{path}.effect"))
    elif taint["effect"] not in _EFFECTS:
        causes.append(not_supported(f"{path}.effect", taint["effect"], _EFFECTS))
    return causes


def check_binding(entry: Obj, path: str) -> list[Cause]:
    """Checks the binding conditions of a device, or of the allocation of one: both or none."""
    causes: list[Cause] = []
    given: dict[str, list[str]] = {field: entry.get(field) or [] for field in BINDING_LISTS}
    for field, conditions in given.items():
        causes += check_items(
            conditions,
            f"{path}.{field}",
            _BINDING_CONDITIONS,
            _check_label_key,
            key=lambda name: name,
        )
    wanted, failing = BINDING_LISTS
    for index, condition in enumerate(given[failing]):
        if condition in given[wanted]:
            text = f"{failing} must not overlap with {wanted}"
            causes.append(invalid(f"{path}.{failing}[{index}]", condition, text))
    for field, other in ((wanted, failing), (failing, wanted)):
        if given[other] and not given[field]:
            text = f"{field} are required to use {other}"
            causes.append(invalid(f"{path}.{field}", [], text))
    return causes


def refuse_admin_access(path: str) -> Cause:
    """Says that the namespace does not allow admin access."""
    return forbidden(
        path,
        "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label "
        "on the containing namespace",
    )
