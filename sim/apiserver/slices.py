"""Rules of resource slices: identity, devices, counters, and the limits of each."""

from __future__ import annotations

import re

from dra.common.resources import Obj, at
from sim.apiserver import fields as names
from sim.apiserver.claims import check_items, immutable
from sim.apiserver.errors import Cause
from sim.apiserver.fields import invalid, not_supported, required, too_long, too_many

_DEVICES = 128
_DEVICES_WITH_TAINTS_OR_COUNTERS = 64
_COUNTER_SETS = 8
_COUNTERS = 32
_CONSUMED_SETS = 2
_ATTRIBUTES = 32
_ATTRIBUTE_VALUES = 48
_VALUE_LENGTH = 64
_TAINTS = 16
_BINDING_CONDITIONS = 4
BINDING_LISTS = ("bindingConditions", "bindingFailureConditions")
_EFFECTS = ("NoExecute", "NoSchedule", "None")
_WHERE = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_LISTS = ("ints", "bools", "strings", "versions")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_NUMBER = r"(0|[1-9]\d*)"
_PRE = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_PRE}(\.{_PRE})*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?"
)


def check_slice(spec: Obj, old: Obj | None) -> list[Cause]:
    """Checks a slice; `old` is the spec that it replaces."""
    causes = [] if spec.get("driver") else [required("spec.driver")]
    causes += _check_pool(spec.get("pool", {}))
    if old is not None:
        for fields in (("pool", "name"), ("driver",), ("nodeName",)):
            new, before = (at(each, *fields, default=None) for each in (spec, old))
            causes += immutable(".".join(("spec", *fields)), new, before)
    given = [f"`{field}`" for field in _WHERE if field in spec]
    choice = "exactly one of " + ", ".join(f"`{field}`" for field in _WHERE) + " is required"
    if not given:
        causes.append(required("spec", choice))
    elif len(given) > 1:
        text = f"{choice}, but multiple fields are set"
        causes.append(invalid("spec", "{" + ", ".join(given) + "}", text))
    if "sharedCounters" in spec and "devices" in spec:
        text = "only one of `sharedCounters` or `devices` is allowed"
        causes.append(invalid("spec", "", text))
    devices = spec.get("devices", [])
    limited = any(d.get("taints") or d.get("consumesCounters") or _has_lists(d) for d in devices)
    causes += check_items(
        devices,
        "spec.devices",
        _DEVICES_WITH_TAINTS_OR_COUNTERS if limited else _DEVICES,
        _check_device,
        key=lambda device: device.get("name"),
    )
    return causes + check_items(
        spec.get("sharedCounters", []),
        "spec.sharedCounters",
        _COUNTER_SETS,
        lambda counters, at: _check_counters(counters, at, "name"),
        key=lambda counters: counters.get("name"),
    )


def _check_pool(pool: Obj) -> list[Cause]:
    causes = [] if pool.get("name") else [required("spec.pool.name")]
    count, generation = pool.get("resourceSliceCount", 0), pool.get("generation", 0)
    if count <= 0:
        path = "spec.pool.resourceSliceCount"
        causes.append(invalid(path, count, "must be greater than zero"))
    if generation < 0:
        text = "must be greater than or equal to zero"
        causes.append(invalid("spec.pool.generation", generation, text))
    return causes


def _has_lists(device: Obj) -> bool:
    return any(name in a for a in device.get("attributes", {}).values() for name in _LISTS)


def _check_device(device: Obj, path: str) -> list[Cause]:
    causes = _check_label(device.get("name", ""), f"{path}.name")
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    total = len(attributes) + len(capacity)
    if total > _ATTRIBUTES:
        text = f"the total number of attributes and capacities must not exceed {_ATTRIBUTES}"
        causes.append(invalid(path, total, text))
    values = sum(sum(len(a.get(n, [])) for n in _LISTS) or 1 for a in attributes.values())
    if values > _ATTRIBUTE_VALUES:
        text = f"the total number of attribute values must not exceed {_ATTRIBUTE_VALUES}"
        causes.append(invalid(path, values, text))
    for name, attribute in attributes.items():
        causes += _check_qualified(name, f"{path}.attributes")
        causes += _check_attribute(attribute, f"{path}.attributes[{name}]")
    for name in capacity:
        causes += _check_qualified(name, f"{path}.capacity")
    for field, other in (BINDING_LISTS, BINDING_LISTS[::-1]):
        if len(device.get(field, [])) > _BINDING_CONDITIONS:
            count = len(device[field])
            causes.append(too_many(f"{path}.{field}", count, _BINDING_CONDITIONS))
        if device.get(other) and not device.get(field):
            text = f"{field} are required to use {other}"
            causes.append(invalid(f"{path}.{field}", [], text))
    causes += check_items(device.get("taints", []), f"{path}.taints", _TAINTS, _check_taint)
    return causes + check_items(
        device.get("consumesCounters", []),
        f"{path}.consumesCounters",
        _CONSUMED_SETS,
        lambda counters, at: _check_counters(counters, at, "counterSet"),
        key=lambda counters: counters.get("counterSet"),
    )


def _check_label(name: str, path: str) -> list[Cause]:
    if not name:
        return [required(path)]
    complaint = names.dns_label(name)
    return [invalid(path, name, complaint)] if complaint else []


def _check_qualified(name: str, path: str) -> list[Cause]:
    """Checks an attribute's name: a C identifier, of at most 32 characters, with a domain."""
    identifier = name.rpartition("/")[2]
    if _IDENTIFIER.fullmatch(identifier):
        return []
    text = (
        "a valid C identifier must start with alphabetic character or '_', followed by a "
        "string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or "
        "'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
    )
    return [invalid(path, identifier, text)]


def _check_attribute(attribute: Obj, path: str) -> list[Cause]:
    causes = []
    for field in ("string", "version"):
        value = attribute.get(field, "")
        if field == "version" and field in attribute and not _SEMVER.fullmatch(value):
            detail = "must be a string compatible with semver.org spec 2.0.0"
            causes.append(invalid(f"{path}.version", value, detail))
        if len(value.encode()) > _VALUE_LENGTH:
            causes.append(too_long(f"{path}.{field}", _VALUE_LENGTH))
    if len(attribute) != 1:
        causes.append(invalid(path, attribute or "", "exactly one value must be specified"))
    return causes


def _check_taint(taint: Obj, path: str) -> list[Cause]:
    causes = []
    if complaint := names.qualified_name(taint.get("key", "")):
        causes.append(invalid(f"{path}.key", taint.get("key", ""), complaint))
    if complaint := names.label_value(taint.get("value", "")):
        causes.append(invalid(f"{path}.value", taint["value"], complaint))
    if taint.get("effect") not in _EFFECTS:
        causes.append(not_supported(f"{path}.effect", taint.get("effect", ""), _EFFECTS))
    return causes


def _check_counters(entry: Obj, path: str, name: str) -> list[Cause]:
    causes = _check_label(entry.get(name, ""), f"{path}.{name}")
    counters = entry.get("counters", {})
    if not counters:
        return [*causes, required(f"{path}.counters")]
    if len(counters) > _COUNTERS:
        return [*causes, too_many(f"{path}.counters", len(counters), _COUNTERS)]
    for counter in counters:
        causes += _check_label(counter, f"{path}.counters")
    return causes
