"""Rules of resource slices: pool, node, devices, counters."""

from __future__ import annotations

import re

from dra.common.resources import Obj, at
from sim.apiserver.refusals import names
from sim.apiserver.refusals.causes import Cause, invalid, required, too_long, too_many
from sim.apiserver.validate.devices import (
    check_binding,
    check_driver,
    check_items,
    check_label,
    check_pool,
    check_qualified,
    check_taint,
    immutable,
)
from sim.apiserver.validate.nodeselector import check_node_selector

_DEVICES = 128
_DEVICES_WITH_TAINTS_OR_COUNTERS = 64
_COUNTER_SETS = 8
_COUNTERS = 32
_CONSUMED_SETS = 2
_ATTRIBUTES = 32
_ATTRIBUTE_VALUES = 48
_VALUE_LENGTH = 64
_TAINTS = 16
_WHERE = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_LISTS = ("ints", "bools", "strings", "versions")
_NUMBER = r"(0|[1-9]\d*)"
_PRE = r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_PRE}(\.{_PRE})*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?"
)


def check_slice(spec: Obj, old: Obj | None) -> list[Cause]:
    """Checks a slice; `old` is the spec that it replaces."""
    causes = check_driver(spec.get("driver", ""), "spec.driver")
    causes += _check_pool(spec.get("pool", {}))
    if old is not None:
        for fields in (("pool", "name"), ("driver",), ("nodeName",)):
            new, before = (at(each, *fields, default=None) for each in (spec, old))
            causes += immutable(".".join(("spec", *fields)), new, before)
    causes += _check_where(spec, "spec", _WHERE)
    if "nodeSelector" in spec:
        terms = spec["nodeSelector"].get("nodeSelectorTerms", [])
        if len(terms) != 1:
            path = "spec.nodeSelector.nodeSelectorTerms"
            causes.append(invalid(path, terms, "must have exactly one node selector term"))
    if "sharedCounters" in spec and "devices" in spec:
        text = "only one of `sharedCounters` or `devices` is allowed"
        causes.append(invalid("spec", "", text))
    devices = spec.get("devices", [])
    limited = any(d.get("taints") or d.get("consumesCounters") or _has_lists(d) for d in devices)
    causes += check_items(
        devices,
        "spec.devices",
        _DEVICES_WITH_TAINTS_OR_COUNTERS if limited else _DEVICES,
        lambda device, at: _check_device(
            device, at, per_device=bool(spec.get("perDeviceNodeSelection"))
        ),
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
    causes = check_pool(pool.get("name", ""), "spec.pool.name")
    count, generation = pool.get("resourceSliceCount", 0), pool.get("generation", 0)
    if count <= 0:
        path = "spec.pool.resourceSliceCount"
        causes.append(invalid(path, count, "must be greater than zero"))
    if generation < 0:
        text = "must be greater than or equal to zero"
        causes.append(invalid("spec.pool.generation", generation, text))
    return causes


def _check_where(entry: Obj, path: str, fields: tuple[str, ...]) -> list[Cause]:
    causes: list[Cause] = []
    given = []
    for field in fields:
        if field not in entry:
            continue
        value, at = entry[field], f"{path}.{field}"
        if field == "nodeSelector":
            causes += check_node_selector(value, at)
        elif field == "nodeName":
            if not value:
                text = "must be either unset or set to a non-empty string"
                causes.append(invalid(at, value, text))
                continue
            if complaint := names.dns_subdomain(value):
                causes.append(invalid(at, value, complaint))
        elif value is not True:
            causes.append(invalid(at, value, "must be either unset or set to true"))
            continue
        given.append(f"`{field}`")
    choice = "exactly one of " + ", ".join(f"`{field}`" for field in fields) + " is required"
    if not given:
        causes.append(required(path, choice))
    elif len(given) > 1:
        text = f"{choice}, but multiple fields are set"
        causes.append(invalid(path, "{" + ", ".join(given) + "}", text))
    return causes


def _has_lists(device: Obj) -> bool:
    return any(name in a for a in device.get("attributes", {}).values() for name in _LISTS)


def _check_device(device: Obj, path: str, *, per_device: bool) -> list[Cause]:
    causes = check_label(device.get("name", ""), f"{path}.name")
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
        causes += check_qualified(name, f"{path}.attributes")
        causes += _check_attribute(attribute, f"{path}.attributes[{name}]")
    for name in capacity:
        causes += check_qualified(name, f"{path}.capacity")
    causes += check_binding(device, path)
    causes += check_items(device.get("taints", []), f"{path}.taints", _TAINTS, check_taint)
    causes += check_items(
        device.get("consumesCounters", []),
        f"{path}.consumesCounters",
        _CONSUMED_SETS,
        lambda counters, at: _check_counters(counters, at, "counterSet"),
        key=lambda counters: counters.get("counterSet"),
    )
    where = ("nodeName", "nodeSelector", "allNodes")
    if per_device:
        causes += _check_where(device, path, where)
    elif any(field in device for field in where):
        text = (
            "`nodeName`, `nodeSelector` and `allNodes` can only be set if "
            "`perDeviceNodeSelection` is set to true in the ResourceSlice spec"
        )
        causes.append(invalid(path, None, text))
    return causes


def _check_attribute(attribute: Obj, path: str) -> list[Cause]:
    causes = []
    for text_field in ("string", "version"):
        texts = [attribute[text_field]] if text_field in attribute else []
        for value in texts:
            if text_field == "version" and not _SEMVER.fullmatch(value):
                detail = "must be a string compatible with semver.org spec 2.0.0"
                causes.append(invalid(f"{path}.version", value, detail))
            if len(value.encode()) > _VALUE_LENGTH:
                causes.append(too_long(f"{path}.{text_field}", _VALUE_LENGTH))
    if len(attribute) != 1:
        value = attribute or ""
        causes.append(invalid(path, value, "exactly one value must be specified"))
    return causes


def _check_counters(entry: Obj, path: str, name: str) -> list[Cause]:
    causes = check_label(entry.get(name, ""), f"{path}.{name}")
    counters = entry.get("counters", {})
    if not counters:
        return [*causes, required(f"{path}.counters")]
    if len(counters) > _COUNTERS:
        return [*causes, too_many(f"{path}.counters", len(counters), _COUNTERS)]
    for counter in counters:
        causes += check_label(counter, f"{path}.counters")
    return causes
