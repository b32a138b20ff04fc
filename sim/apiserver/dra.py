"""Kinds of resource.k8s.io: defaults, and what allocators and drivers may not write.

Requests, and the limits of slices, are for a real API server to judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dra.common.resources import Obj, at
from sim.apiserver.errors import Cause, forbidden, invalid, required
from sim.apiserver.kinds import Environment, Kind, default_spec

if TYPE_CHECKING:
    from collections.abc import Iterator


_BINDING_GATE = "DRADeviceBindingConditions"
_BINDING = ("bindingConditions", "bindingFailureConditions")
_GATED_DEVICE_FIELDS = {
    "DRAPartitionableDevices": ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
    "DRADeviceTaints": ("taints",),
    _BINDING_GATE: (*_BINDING, "bindsToNode"),
    "Kubernetes 1.37": ("nodeAllocatableResources",),
}
_IDENTITY = ("driver", "pool", "device", "shareID")


def _immutable(path: str, new: Any, old: Any) -> list[Cause]:
    return [] if new == old else [invalid(path, new, "field is immutable")]


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
    for index, request in enumerate(devices.get("requests", [])):
        if ("exactly" in request) == bool(request.get("firstAvailable")):
            text = "exactly one of `exactly` or `firstAvailable` is required"
            yield required(f"{inside}.requests[{index}]", text)


def _results(status: Obj) -> dict[tuple[str, ...], Obj]:
    """Results of an allocation by the identity of their devices."""
    results: list[Obj] = at(status, "allocation", "devices", "results", default=[])
    return {_identity(result): result for result in results}


def _identity(entry: Obj) -> tuple[str, ...]:
    return tuple(entry.get(field, "") for field in _IDENTITY)


def _prepare_claim_status(new: Obj, old: Obj, env: Environment) -> None:
    """Drops the devices of an allocation that is gone, and what a closed gate is for."""
    status = new.setdefault("status", {})
    results = _results(status)
    for result in results.values() if _BINDING_GATE not in env.gates else ():
        for field in _BINDING:
            result.pop(field, None)
    gone = _results(old["status"]).keys() - results.keys()
    devices = [d for d in status.pop("devices", []) if _identity(d) not in gone]
    if devices:
        status["devices"] = devices


def _check_claim_status(new: Obj, old: Obj) -> Iterator[Cause]:
    """Checks a status; an allocation may come and go but never change."""
    status, before = new["status"], old.get("status", {})
    allocation = status.get("allocation")
    if allocation is not None and "allocation" in before:
        yield from _immutable("status.allocation", allocation, before["allocation"])
    reserved, path = status.get("reservedFor", []), "status.reservedFor"
    if reserved and allocation is None:
        yield forbidden(path, "may not be specified when `allocated` is not set")
    elif "deletionTimestamp" in new["metadata"] and any(
        entry not in before.get("reservedFor", []) for entry in reserved
    ):
        yield forbidden(path, "new entries may not be added while `deletionTimestamp` is set")
    results = _results(status)
    for index, device in enumerate(status.get("devices", [])):
        if _identity(device) not in results:
            identity = "/".join(filter(None, _identity(device)))
            text = "must be an allocated device in the claim"
            yield invalid(f"status.devices[{index}]", identity, text)


# --- slices -------------------------------------------------------------------------------------
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


def _check_slice(obj: Obj, old: Obj | None) -> Iterator[Cause]:
    # Kubernetes 1.34 took both, and the plugin tries which of the two a server is.
    if at(obj, "spec", "devices") and at(obj, "spec", "sharedCounters"):
        yield invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    for fields in (("pool", "name"), ("driver",), ("nodeName",)) if old is not None else ():
        new, before = (at(each, "spec", *fields, default=None) for each in (obj, old or {}))
        yield from _immutable(".".join(("spec", *fields)), new, before)


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
    ("resource.k8s.io", "deviceclasses"): Kind(default=default_spec, bumps_generation=True),
    ("resource.k8s.io", "resourceslices"): Kind(
        default=_default_slice,
        check=_check_slice,
        bumps_generation=True,
        selectable=("spec.nodeName", "spec.driver"),
    ),
}
