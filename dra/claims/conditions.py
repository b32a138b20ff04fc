"""Conditions: of the devices of a claim, and of a pod whose claims wait.

The Ready condition in ``status.devices`` of a claim is written by the node and read by the
controller, which writes the other one.

``Ready`` is True with the reason ``Prepared``, or False with ``PrepareFailedPermanently``,
``PrepareFailing`` or a :class:`dra.gpu.reasons.GpuReason`. Those for which kube-scheduler waits are
in :mod:`dra.claims.binding`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from dra.common.resources import at

READY = "Ready"
PREPARED = "Prepared"
MADE = "Made"
"""The slice is there, whether or not kubelet has asked for it."""

PREPARE_FAILED = "PrepareFailedPermanently"
"""The node cannot prepare the device, and will not be able to before somebody does something."""

PREPARE_FAILING = "PrepareFailing"
"""The node has failed several times to prepare the device, and goes on trying."""


def claims_allocated(driver: str) -> str:
    """The condition of a pod: False with the reason while claims wait, True once they do not.

    A pod that never waited for long has none.
    """
    return f"{driver}/ClaimsAllocated"


def failed_prepare(
    claim: Mapping[str, Any], *, driver: str, reasons: Container[str] = (PREPARE_FAILED,)
) -> str:
    """Message of a claim's node that it cannot prepare it for one of ``reasons``; else empty.

    Without ``reasons`` the node never can. ``claim`` is the object as JSON. Only devices that are
    allocated to it now count.
    """
    results = at(claim, "status", "allocation", "devices", "results")
    held = {(r["driver"], r["pool"], r["device"]) for r in results}
    for device in at(claim, "status", "devices"):
        if device["driver"] != driver or (driver, device["pool"], device["device"]) not in held:
            continue
        for condition in at(device, "conditions"):
            if condition["type"] == READY and condition.get("reason") in reasons:
                return str(condition.get("message") or "the node gave no reason")
    return ""
