"""Entries of ``status.devices`` of a claim: our devices, their conditions and data."""

from __future__ import annotations

from typing import Any

from dra.claims.claims import Claim
from dra.claims.conditions import PREPARE_FAILED, PREPARED, READY
from dra.common.resources import Obj
from dra.gpu.reasons import GpuReason
from kubeletplugin.gpus.health.device_health import DeviceProblem
from kubeletplugin.journal.entries import Entry, State

_MOST_TEXT = 1000


def prepared_device(driver: str, entry: Entry, problem: DeviceProblem | None) -> Obj:
    """The device of an entry, ready unless it has a problem; its condition has no time yet."""
    if problem is not None:
        condition = _condition("False", problem.reason, problem.message)
    elif entry.state is State.LOST:
        condition = _condition("False", GpuReason.SLICE_LOST, entry.note)
    else:
        condition = _condition("True", PREPARED, "made, and its CDI spec written")
    return {
        "driver": driver,
        "pool": entry.pool,
        "device": entry.device,
        "conditions": [condition],
        "data": _data(entry),
    }


def failed_devices(
    driver: str, claim: Claim, *, pool: str, message: str, reason: str = PREPARE_FAILED
) -> list[Obj]:
    """The devices that a claim was given in ``pool``, as not prepared for ``reason``."""
    condition = _condition("False", reason, message)
    ours = claim.allocation.of_driver(driver) if claim.allocation else ()
    return [
        {"driver": driver, "pool": d.pool, "device": d.device, "conditions": [condition]}
        for d in ours
        if d.pool == pool
    ]


def with_time(device: Obj, shown: Obj | None, moment: str) -> Obj:
    """The device, its condition with the time since when its status is what it is.

    ``shown`` is the device as the claim shows it, ``moment`` the time now (RFC 3339).
    """
    condition = {**device["conditions"][0], "lastTransitionTime": moment}
    for old in (shown or {}).get("conditions", ()):
        if old["type"] == condition["type"] and old["status"] == condition["status"]:
            condition["lastTransitionTime"] = old["lastTransitionTime"]
    return {**device, "conditions": [condition]}


def _data(entry: Entry) -> dict[str, Any]:
    """Data of a device in the status, beside its name; placement in memory slices."""
    if entry.placement is None:
        return {"uuid": entry.gpu}
    return {
        "profile": entry.profile,
        "parentUUID": entry.gpu,
        "migUUID": entry.mig_uuid,
        "placement": {"start": entry.placement.start, "size": entry.placement.size},
        "gpuInstanceID": entry.gi_id,
        "computeInstanceID": entry.ci_id,
    }


def _condition(status: str, reason: str, message: str) -> Obj:
    return {"type": READY, "status": status, "reason": reason, "message": message[:_MOST_TEXT]}
