"""Entries of ``status.devices`` of a claim: our devices, their conditions and data."""

from __future__ import annotations

from typing import Any

from dra.claims.claims import Claim
from dra.claims.conditions import MADE, PREPARE_FAILED, PREPARED, READY, UNASKED, Binding
from dra.common.resources import Obj
from dra.gpu.reasons import GpuReason
from kubeletplugin.gpus.health.device_health import DeviceProblem
from kubeletplugin.journal.entries import Entry, State

_MOST_TEXT = 1000


def present_device(
    driver: str,
    entry: Entry,
    problem: DeviceProblem | None,
    binding: Binding | None = None,
    *,
    overdue: bool = False,
) -> Obj:
    """The device of an entry; its conditions have no time yet.

    It says whether the device is ready. One that kubelet has not asked for yet says nothing of it
    unless that is ``overdue``. ``binding`` are the conditions for which kube-scheduler waits.
    """
    conditions = [] if entry.early and not overdue else [_readiness(entry, problem)]
    if binding is not None and entry.state in {State.CI_CREATED, State.PREPARED}:
        conditions += [
            _condition(name, "True", MADE, "the slice is there") for name in binding.made
        ]
    return {
        "driver": driver,
        "pool": entry.pool,
        "device": entry.device,
        **({"shareID": entry.share_id} if entry.share_id else {}),
        "conditions": conditions,
        "data": _data(entry),
    }


def failed_devices(
    driver: str, claim: Claim, *, pool: str, message: str, reason: str = PREPARE_FAILED
) -> list[Obj]:
    """The devices that a claim was given in ``pool``, as not prepared for ``reason``."""
    condition = _condition(READY, "False", reason, message)
    ours = claim.allocation.of_driver(driver) if claim.allocation else ()
    return [
        {
            "driver": driver,
            "pool": d.pool,
            "device": d.device,
            **({"shareID": d.share_id} if d.share_id else {}),
            "conditions": [condition],
        }
        for d in ours
        if d.pool == pool
    ]


def refused_device(driver: str, device: str, binding: Binding, *, pool: str, message: str) -> Obj:
    """A device whose slice could not be made, for kube-scheduler, which waits for it."""
    return {
        "driver": driver,
        "pool": pool,
        "device": device,
        "conditions": [
            _condition(name, "True", GpuReason.CREATION_FAILED, message) for name in binding.failed
        ],
    }


def with_time(device: Obj, shown: Obj | None, moment: str) -> Obj:
    """The device, its conditions with the times since when their statuses are what they are.

    ``shown`` is the device as the claim shows it, ``moment`` the time now (RFC 3339).
    """
    times = {
        (c["type"], c["status"]): c["lastTransitionTime"]
        for c in (shown or {}).get("conditions", ())
    }
    conditions = [
        {**c, "lastTransitionTime": times.get((c["type"], c["status"]), moment)}
        for c in device["conditions"]
    ]
    return {**device, "conditions": conditions}


def _readiness(entry: Entry, problem: DeviceProblem | None) -> Obj:
    if entry.early:
        return _condition(READY, "False", UNASKED, "made; kubelet has not asked for it yet")
    if problem is not None:
        return _condition(READY, "False", problem.reason, problem.message)
    if entry.state is State.LOST:
        return _condition(READY, "False", GpuReason.SLICE_LOST, entry.note)
    return _condition(READY, "True", PREPARED, "made, and its CDI spec written")


def _data(entry: Entry) -> dict[str, Any]:
    """Data of a device in the status, beside its name; placement in memory slices."""
    if entry.placement is None:
        return {"uuid": entry.gpu, **_share(entry)}
    return {
        "profile": entry.profile,
        "parentUUID": entry.gpu,
        "migUUID": entry.mig_uuid,
        "placement": {"start": entry.placement.start, "size": entry.placement.size},
        "gpuInstanceID": entry.gi_id,
        "computeInstanceID": entry.ci_id,
        **_share(entry),
    }


def _share(entry: Entry) -> dict[str, Any]:
    if entry.share is None:
        return {}
    return {"share": {"memoryMiB": entry.share.memory_mib, "cores": entry.share.cores}}


def _condition(kind: str, status: str, reason: str, message: str) -> Obj:
    return {"type": kind, "status": status, "reason": reason, "message": message[:_MOST_TEXT]}
