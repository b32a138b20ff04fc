"""Conditions: of the devices of a claim, and of a pod whose claims wait.

The Ready condition in ``status.devices`` of a claim is written by the node and read by the
controller, which writes the pod's condition.

``Ready`` is True with the reason ``Prepared``, or False with ``PrepareFailedPermanently``,
``PrepareFailing`` or a :class:`dra.gpu.inventory.GpuReason`. kube-scheduler waits for others:
``SliceMade`` and ``CreationFailed``.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra.common.resources import Obj, at
from dra.gpu.inventory import GpuReason

READY = "Ready"
PREPARED = "Prepared"
MADE = "Made"
"""The slice exists, whether or not kubelet has asked for it."""

AS_THEY_SHOULD_BE: list[Obj] = []
"""Kept of the devices in a claim's status if all are prepared."""

PREPARE_FAILED = "PrepareFailedPermanently"
"""The node cannot prepare the device, and will not be able to before somebody intervenes."""

PREPARE_FAILING = "PrepareFailing"
"""The node has failed several times to prepare the device, and goes on trying."""


def claims_allocated(driver: str) -> str:
    """Type of a pod's condition: False with the reason while claims wait, True afterwards.

    A pod that never waited for long has none.
    """
    return f"{driver}/ClaimsAllocated"


SENT = "SentToScheduler"
"""End of the type of a pod's condition: True once it was sent to kube-scheduler.

Its message is the node that was nominated for the pod; empty where none has room.
"""


def sent_to(pod: Mapping[str, Any], *, driver: str) -> str | None:
    """Node for which a pod, as JSON, was sent to kube-scheduler, "" for none; None if not sent."""
    sent = (c for c in _conditions(pod) if c["type"] == f"{driver}/{SENT}")
    return next((c.get("message") or "" for c in sent), None)


def is_refused(pod: Mapping[str, Any]) -> bool:
    """True if kube-scheduler has found no node for a pod, as JSON, the last time."""
    return any(
        (c["type"], c.get("reason")) == ("PodScheduled", "Unschedulable") for c in _conditions(pod)
    )


def _conditions(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*at(pod, "status", "conditions")]


def failed_prepare(
    claim: Mapping[str, Any], *, driver: str, reasons: Container[str] = (PREPARE_FAILED,)
) -> str:
    """Message of a node that it cannot prepare a claim, for one of ``reasons``; empty without one.

    By default ``reasons`` means that the node never can. ``claim`` is the object as JSON. Only
    devices that are allocated to it now count.
    """
    for condition in _readiness(claim, driver):
        if condition.get("reason") in reasons:
            return str(condition.get("message") or "the node gave no reason")
    return ""


def was_asked_for(claim: Mapping[str, Any], *, driver: str) -> bool:
    """True if the status of a claim, as JSON, says that kubelet has asked for its devices."""
    return is_as_it_should_be(claim) or any(True for _ in _readiness(claim, driver))


def is_as_it_should_be(claim: Mapping[str, Any]) -> bool:
    """True if all devices in the status of a claim, as it is kept, are prepared."""
    return at(claim, "status", "devices", default=None) is AS_THEY_SHOULD_BE


def _readiness(claim: Mapping[str, Any], driver: str) -> Iterator[Mapping[str, Any]]:
    """The Ready conditions of the devices of ``driver`` that are allocated to a claim now."""
    devices = at(claim, "status", "devices")
    results = at(claim, "status", "allocation", "devices", "results") if devices else ()
    held = {(r["driver"], r["pool"], r["device"]) for r in results}
    for device in devices:
        if device["driver"] == driver and (driver, device["pool"], device["device"]) in held:
            yield from (c for c in at(device, "conditions") if c["type"] == READY)


SLICE_MADE = "SliceMade"
SLICE_NOT_MADE = GpuReason.CREATION_FAILED.value


@dataclass(frozen=True, slots=True)
class Binding:
    """Binding conditions of an allocated device.

    ``made``: all have to be True before a pod is bound. ``failed``: no pod is bound if one is True.
    """

    made: tuple[str, ...]
    failed: tuple[str, ...]


def binding_fields() -> dict[str, list[str]]:
    """Fields of a device, published or allocated, whose slice is made before a pod is bound."""
    return {"bindingConditions": [SLICE_MADE], "bindingFailureConditions": [SLICE_NOT_MADE]}


def awaited_devices(claim: Mapping[str, Any], *, driver: str, pool: str) -> dict[str, Binding]:
    """By name, the devices of ``pool`` that are allocated to the claim with binding conditions."""
    return {
        result["device"]: Binding(
            tuple(result["bindingConditions"]), tuple(at(result, "bindingFailureConditions"))
        )
        for result in at(claim, "status", "allocation", "devices", "results")
        if (result["driver"], result["pool"]) == (driver, pool) and at(result, "bindingConditions")
    }


def awaits_slices(claim: Mapping[str, Any], *, driver: str) -> bool:
    """True if kube-scheduler binds a pod of the claim only once slices of ``driver`` are made."""
    results = at(claim, "status", "allocation", "devices", "results")
    return any(r["driver"] == driver and at(r, "bindingConditions") for r in results)


def not_made(claim: Mapping[str, Any], *, driver: str) -> str:
    """Message of a node that it cannot make a slice that kube-scheduler waits for; else empty."""
    results = at(claim, "status", "allocation", "devices", "results")
    awaited = {(r["pool"], r["device"]) for r in results if at(r, "bindingFailureConditions")}
    for device in at(claim, "status", "devices") if awaited else ():
        if device["driver"] == driver and (device["pool"], device["device"]) in awaited:
            for condition in at(device, "conditions"):
                if (condition["type"], condition["status"]) == (SLICE_NOT_MADE, "True"):
                    return str(condition.get("message") or "the node gave no reason")
    return ""


def told_devices(
    claim: Mapping[str, Any], awaited: Mapping[str, Binding], *, driver: str, pool: str
) -> tuple[frozenset[str], frozenset[str]]:
    """The ``awaited`` devices that the claim's status reports as made, and those as failed.

    A device of which the status says neither is in neither set.
    """
    made, failed = set[str](), set[str]()
    for device in at(claim, "status", "devices"):
        binding = awaited.get(device["device"])
        if binding is None or (device["driver"], device["pool"]) != (driver, pool):
            continue
        true = {c["type"] for c in at(device, "conditions") if c["status"] == "True"}
        if true.intersection(binding.failed):
            failed.add(device["device"])
        elif true.issuperset(binding.made):
            made.add(device["device"])
    return frozenset(made), frozenset(failed)
