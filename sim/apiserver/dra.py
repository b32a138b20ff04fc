"""Kinds of resource.k8s.io, and the rules that users, allocators and drivers are likely to break.

Selectors, tolerations and numbers of a request are for schedulers to judge.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj, at
from sim.apiserver.errors import Cause, forbidden, invalid, not_supported, required, too_many
from sim.apiserver.fields import check_name
from sim.apiserver.kinds import Environment, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_BINDING_GATE = "DRADeviceBindingConditions"
_BINDING = ("bindingConditions", "bindingFailureConditions")
_GATED_DEVICE_FIELDS = {
    "DRAPartitionableDevices": ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
    "DRADeviceTaints": ("taints",),
    _BINDING_GATE: (*_BINDING, "bindsToNode"),
    "Kubernetes 1.37": ("nodeAllocatableResources",),
}
_MODES = ("All", "ExactCount")
_ONE_KIND = "exactly one of `exactly` or `firstAvailable` is required"
_IDENTITY = ("driver", "pool", "device")
_DATA_BYTES = 10 * 1024


def _immutable(path: str, new: Any, old: Any) -> list[Cause]:
    return [] if new == old else [invalid(path, new, "field is immutable")]


def _at_most(limit: int, items: Any, path: str) -> list[Cause]:
    return [too_many(path, len(items), limit)] if len(items) > limit else []


def _distinct(names: Iterable[Any], path: str) -> Iterator[Cause]:
    seen = set()
    for index, name in enumerate(names):
        if name in seen:
            yield Cause("FieldValueDuplicate", f"{path}[{index}]", name)
        seen.add(name)


# --- claims -------------------------------------------------------------------------------------
def _default_requests(spec: Obj) -> None:
    for request in spec.setdefault("devices", {}).get("requests", []):
        for wanted in [request.get("exactly"), *request.get("firstAvailable", [])]:
            if wanted is not None and (
                wanted.setdefault("allocationMode", "ExactCount") == "ExactCount"
            ):
                wanted["count"] = wanted.get("count") or 1


def _default_claim(claim: Obj, _: Environment) -> None:
    _default_requests(claim.setdefault("spec", {}))
    status = claim.setdefault("status", {})
    if "allocation" in status:
        status["allocation"].setdefault("devices", {})


def _default_template(template: Obj, _: Environment) -> None:
    _default_requests(template.setdefault("spec", {}).setdefault("spec", {}))


def _check_claim(claim: Obj, old: Obj | None) -> list[Cause]:
    if old is not None:
        return _immutable("spec", claim["spec"], old["spec"])
    return list(_check_requests(claim["spec"]["devices"], "spec.devices"))


def _check_template(template: Obj, old: Obj | None) -> list[Cause]:
    if old is not None:
        return _immutable("spec", template["spec"], old["spec"])
    return list(_check_requests(template["spec"]["spec"]["devices"], "spec.spec.devices"))


def _check_requests(devices: Obj, inside: str) -> Iterator[Cause]:
    requests = devices.get("requests", [])
    yield from _at_most(32, requests, f"{inside}.requests")
    yield from _distinct([request.get("name") for request in requests], f"{inside}.requests")
    for index, request in enumerate(requests):
        path = f"{inside}.requests[{index}]"
        wanted = {f"{path}.exactly": request["exactly"]} if "exactly" in request else {}
        alternatives = request.get("firstAvailable", [])
        if not wanted and not alternatives:
            yield required(path, _ONE_KIND)
        elif wanted and alternatives:
            yield invalid(path, None, f"{_ONE_KIND}, but multiple fields are set")
        wanted |= {f"{path}.firstAvailable[{at}]": each for at, each in enumerate(alternatives)}
        for where, each in wanted.items():
            if not each.get("deviceClassName"):
                yield required(f"{where}.deviceClassName")
            if each["allocationMode"] not in _MODES:
                yield not_supported(f"{where}.allocationMode", each["allocationMode"], _MODES)
    known = _request_names(devices)
    for index, config in enumerate(devices.get("config", [])):
        for position, name in enumerate(config.get("requests", [])):
            if name not in known:
                path = f"{inside}.config[{index}].requests[{position}]"
                yield invalid(path, name, "must be the name of a request in the claim")


def _request_names(devices: Obj) -> set[str]:
    """Names for results and configurations to refer to: `request` or `request/subrequest`."""
    known = set()
    for request in devices.get("requests", []):
        name = request.get("name", "")
        known |= {name, *(f"{name}/{s.get('name', '')}" for s in request.get("firstAvailable", []))}
    return known


def _device_id(entry: Obj) -> tuple[str, ...]:
    return tuple(entry.get(field, "") for field in (*_IDENTITY, "shareID"))


def _results(status: Obj) -> list[Obj]:
    results: list[Obj] = at(status, "allocation", "devices", "results", default=[])
    return results


def _prepare_claim_status(new: Obj, old: Obj, env: Environment) -> None:
    """Drops the devices of an allocation that is gone, and what a closed gate is for."""
    status = new.setdefault("status", {})
    for result in _results(status) if _BINDING_GATE not in env.gates else ():
        for field in _BINDING:
            result.pop(field, None)
    gone = {*map(_device_id, _results(old["status"]))} - {*map(_device_id, _results(status))}
    devices = [d for d in status.pop("devices", []) if _device_id(d) not in gone]
    if devices:
        status["devices"] = devices


def _check_claim_status(new: Obj, old: Obj) -> Iterator[Cause]:
    """Checks a status; an allocation may come and go but never change."""
    status, before = new["status"], old.get("status", {})
    allocation, results = status.get("allocation"), _results(status)
    path = "status.allocation"
    if allocation is not None and "allocation" in before:
        yield from _immutable(path, allocation, before["allocation"])
    else:
        yield from _at_most(32, results, f"{path}.devices.results")
        known = _request_names(new["spec"]["devices"])
        for index, result in enumerate(results):
            where = f"{path}.devices.results[{index}]"
            if (name := result.get("request", "")) not in known:
                yield invalid(f"{where}.request", name, "must be the name of a request")
            yield from (
                required(f"{where}.{field}") for field in _IDENTITY if not result.get(field)
            )
    reserved, path = status.get("reservedFor", []), "status.reservedFor"
    yield from _at_most(256, reserved, path)
    if reserved and allocation is None:
        yield forbidden(path, "may not be specified when `allocated` is not set")
    elif "deletionTimestamp" in new["metadata"] and any(
        entry not in before.get("reservedFor", []) for entry in reserved
    ):
        yield forbidden(path, "new entries may not be added while `deletionTimestamp` is set")
    devices, path = status.get("devices", []), "status.devices"
    yield from _distinct(map(_device_id, devices), path)
    for index, device in enumerate(devices):
        if _device_id(device) not in set(map(_device_id, results)):
            identity = "/".join(filter(None, _device_id(device)))
            text = "must be an allocated device in the claim"
            yield invalid(f"{path}[{index}]", identity, text)
        if len(json.dumps(device.get("data"))) > _DATA_BYTES:
            yield Cause("FieldValueTooLong", f"{path}[{index}].data")


# --- slices -------------------------------------------------------------------------------------
_WHERE = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_LISTS = ("ints", "bools", "strings", "versions")
_VALUE_BYTES = 64


def _default_slice(obj: Obj, env: Environment) -> None:
    """Drops fields behind closed gates, and stamps taints."""
    spec = obj.setdefault("spec", {})
    if "DRAPartitionableDevices" not in env.gates:
        spec.pop("sharedCounters", None)
        spec.pop("perDeviceNodeSelection", None)
    closed = [f for gate, fs in _GATED_DEVICE_FIELDS.items() if gate not in env.gates for f in fs]
    for device in spec.get("devices", []):
        for field in closed:
            device.pop(field, None)
        for taint in device.get("taints", []):
            taint.setdefault("timeAdded", env.timestamp())


def _check_slice_update(obj: Obj, old: Obj | None) -> Iterator[Cause]:
    if old is not None:
        for fields in (("pool", "name"), ("driver",), ("nodeName",)):
            new, before = (at(each, "spec", *fields, default=None) for each in (obj, old))
            yield from _immutable(".".join(("spec", *fields)), new, before)
    yield from check_slice(obj["spec"])


def check_slice(spec: Obj) -> Iterator[Cause]:
    """The rules of a slice's spec, and the limits of its lists."""
    for fields in (("driver",), ("pool", "name"), ("pool", "resourceSliceCount")):
        if not at(spec, *fields, default=None):
            yield required(".".join(("spec", *fields)))
    if len(given := [f"`{field}`" for field in _WHERE if field in spec]) != 1:
        text = "exactly one of " + ", ".join(f"`{field}`" for field in _WHERE) + " is required"
        yield invalid("spec", ", ".join(given), text) if given else required("spec", text)
    devices, counters = spec.get("devices", []), spec.get("sharedCounters", [])
    if devices and counters:
        yield invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    limited = any(d.get("taints") or d.get("consumesCounters") or _has_lists(d) for d in devices)
    yield from _at_most(64 if limited else 128, devices, "spec.devices")
    yield from _distinct([device.get("name") for device in devices], "spec.devices")
    for index, device in enumerate(devices):
        yield from _check_device(device, f"spec.devices[{index}]")
    yield from _check_counters(counters, "spec.sharedCounters", 8, "name")


def _has_lists(device: Obj) -> bool:
    return any(name in a for a in device.get("attributes", {}).values() for name in _LISTS)


def _check_device(device: Obj, path: str) -> Iterator[Cause]:
    yield from check_name("label", device.get("name", ""), f"{path}.name")
    attributes, capacity = device.get("attributes", {}), device.get("capacity", {})
    values = sum(sum(len(a.get(n, [])) for n in _LISTS) or 1 for a in attributes.values())
    for count, limit in ((len(attributes) + len(capacity), 32), (values, 48)):
        if count > limit:
            text = f"the number of attributes, capacities and their values must not exceed {limit}"
            yield invalid(path, count, text)
    for name, attribute in attributes.items():
        where = f"{path}.attributes[{name}]"
        yield from check_name("identifier", name.rpartition("/")[2], f"{path}.attributes")
        if len(attribute) != 1:
            yield invalid(where, attribute or "", "exactly one value must be specified")
        if len(attribute.get("string", "").encode()) > _VALUE_BYTES:
            yield Cause("FieldValueTooLong", f"{where}.string")
    for field, other in (_BINDING, _BINDING[::-1]):
        yield from _at_most(4, device.get(field, []), f"{path}.{field}")
        if device.get(other) and not device.get(field):
            yield invalid(f"{path}.{field}", [], f"{field} are required to use {other}")
    yield from _at_most(16, device.get("taints", []), f"{path}.taints")
    consumed = device.get("consumesCounters", [])
    yield from _check_counters(consumed, f"{path}.consumesCounters", 2, "counterSet")


def _check_counters(sets: list[Obj], path: str, limit: int, name: str) -> Iterator[Cause]:
    yield from _at_most(limit, sets, path)
    yield from _distinct([entry.get(name) for entry in sets], path)
    for index, entry in enumerate(sets):
        where = f"{path}[{index}]"
        yield from check_name("label", entry.get(name, ""), f"{where}.{name}")
        counters = entry.get("counters", {})
        if not counters:
            yield required(f"{where}.counters")
        yield from _at_most(32, counters, f"{where}.counters")
        for counter in counters:
            yield from check_name("label", counter, f"{where}.counters")


def _default_spec(obj: Obj, _: Environment) -> None:
    obj.setdefault("spec", {})


DRA_KINDS: dict[tuple[str, str], Kind] = {
    ("resource.k8s.io", "resourceclaims"): Kind(
        default=_default_claim,
        begin=lambda claim, _: claim.update(status={}),
        check=_check_claim,
        prepare_status=_prepare_claim_status,
        check_status=_check_claim_status,
        status_carries_metadata=False,
    ),
    ("resource.k8s.io", "resourceclaimtemplates"): Kind(
        default=_default_template, check=_check_template
    ),
    ("resource.k8s.io", "deviceclasses"): Kind(default=_default_spec, bumps_generation=True),
    ("resource.k8s.io", "resourceslices"): Kind(
        default=_default_slice,
        check=_check_slice_update,
        bumps_generation=True,
        selectable=("spec.nodeName", "spec.driver"),
    ),
}
