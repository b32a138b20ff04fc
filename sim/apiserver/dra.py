"""Kinds of resource.k8s.io: claims, templates, device classes and resource slices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dra.common.resources import Obj, at
from sim.apiserver import claims, slices
from sim.apiserver.claims import device_id, immutable
from sim.apiserver.kinds import Environment, Kind, text_at
from sim.apiserver.slices import BINDING_LISTS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sim.apiserver.errors import Cause


_BINDING_GATE = "DRADeviceBindingConditions"


def _default_requests(spec: Obj) -> None:
    for request in spec.setdefault("devices", {}).get("requests", []):
        for wanted in [request.get("exactly"), *request.get("firstAvailable", [])]:
            if wanted is None:
                continue
            if wanted.setdefault("allocationMode", "ExactCount") == "ExactCount":
                wanted["count"] = wanted.get("count") or 1


class ClaimKind(Kind):
    """Claims: an immutable spec, and a status that carries no metadata."""

    status_carries_metadata = False

    def default(self, obj: Obj, env: Environment) -> None:
        """Completes the requests, and always shows a status."""
        _default_requests(obj.setdefault("spec", {}))
        status = obj.setdefault("status", {})
        if "allocation" in status:
            status["allocation"].setdefault("devices", {})

    def prepare_create(self, obj: Obj, env: Environment) -> None:
        """Begins with an empty status."""
        obj["status"] = {}

    def prepare_status(self, new: Obj, old: Obj, env: Environment) -> None:
        """Drops the devices of an allocation that is gone, and what a closed gate is for."""
        status = new.setdefault("status", {})
        results = _results(status)
        if _BINDING_GATE not in env.gates:
            for result in results:
                for field in BINDING_LISTS:
                    result.pop(field, None)
        kept = {device_id(result) for result in results}
        gone = {device_id(result) for result in _results(old["status"])} - kept
        devices = [d for d in status.get("devices", []) if device_id(d) not in gone]
        if devices:
            status["devices"] = devices
        else:
            status.pop("devices", None)

    def check_create(self, obj: Obj, env: Environment) -> Iterable[Cause]:
        """Checks the requests."""
        return claims.check_claim_spec(obj["spec"], "spec")

    def check_update(self, new: Obj, old: Obj, env: Environment) -> Iterable[Cause]:
        """Refuses any change of the spec."""
        return immutable("spec", new["spec"], old["spec"])

    def check_status(self, new: Obj, old: Obj, env: Environment) -> Iterable[Cause]:
        """Checks allocation, reservations and device states."""
        return claims.check_claim_status(new, old)


def _results(status: Obj) -> list[Obj]:
    results: list[Obj] = at(status, "allocation", "devices", "results", default=[])
    return results


class ClaimTemplateKind(Kind):
    """Templates: immutable."""

    def default(self, obj: Obj, env: Environment) -> None:
        """Completes the requests."""
        _default_requests(obj.setdefault("spec", {}).setdefault("spec", {}))

    def check_create(self, obj: Obj, env: Environment) -> Iterable[Cause]:
        """Checks the claim spec within."""
        return claims.check_claim_spec(obj["spec"]["spec"], "spec.spec")

    def check_update(self, new: Obj, old: Obj, env: Environment) -> Iterable[Cause]:
        """Refuses any change of the spec."""
        return immutable("spec", new["spec"], old["spec"])


class DeviceClassKind(Kind):
    """Device classes."""

    bumps_generation = True

    def default(self, obj: Obj, env: Environment) -> None:
        """Shows a spec always."""
        obj.setdefault("spec", {})

    def check_create(self, obj: Obj, env: Environment) -> Iterable[Cause]:
        """Checks the configurations."""
        return claims.check_device_class(obj["spec"])


class SliceKind(Kind):
    """Resource slices: gates drop fields silently, driver and pool never change."""

    bumps_generation = True
    selectable = frozenset(["spec.nodeName", "spec.driver"])

    def default(self, obj: Obj, env: Environment) -> None:
        """Drops fields behind closed gates; stamps taints."""
        spec = obj.setdefault("spec", {})
        if "DRAPartitionableDevices" not in env.gates:
            spec.pop("sharedCounters", None)
            spec.pop("perDeviceNodeSelection", None)
        for device in spec.get("devices", []):
            for gate, fields in _GATED_DEVICE_FIELDS.items():
                if gate not in env.gates:
                    for field in fields:
                        device.pop(field, None)
            for taint in device.get("taints", []):
                taint.setdefault("timeAdded", env.timestamp())

    def check_create(self, obj: Obj, env: Environment) -> Iterable[Cause]:
        """Checks the whole spec."""
        return slices.check_slice(obj["spec"], None)

    def check_update(self, new: Obj, old: Obj, env: Environment) -> Iterable[Cause]:
        """Checks the whole spec and what may not change."""
        return slices.check_slice(new["spec"], old["spec"])

    def fields(self, obj: Obj) -> Obj:
        """Gives node and driver."""
        return {path: text_at(obj, path) for path in self.selectable}


_GATED_DEVICE_FIELDS = {
    "DRAPartitionableDevices": ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
    "DRADeviceTaints": ("taints",),
    _BINDING_GATE: (*BINDING_LISTS, "bindsToNode"),
}

DRA_KINDS: dict[tuple[str, str], Kind] = {
    ("resource.k8s.io", "resourceclaims"): ClaimKind(),
    ("resource.k8s.io", "resourceclaimtemplates"): ClaimTemplateKind(),
    ("resource.k8s.io", "deviceclasses"): DeviceClassKind(),
    ("resource.k8s.io", "resourceslices"): SliceKind(),
}
