"""Binding conditions (KEP-5007): kube-scheduler binds a pod once its devices have them.

A device that is published with them hands them to the allocations of it, where they stay. The node
of the device sets them in ``status.devices`` of the claim. kube-scheduler looks when it has
allocated and every 5 s from then on; a failure condition that is True, or its time limit, has it
take the allocation back (1.36, ``isClaimReadyForBinding`` in the dynamicresources plugin).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dra.common.resources import at
from dra.gpu.reasons import GpuReason

SLICE_MADE = "SliceMade"
SLICE_NOT_MADE = GpuReason.CREATION_FAILED.value


@dataclass(frozen=True, slots=True)
class Binding:
    """Conditions of one allocated device: those to be True, and those of which none may be."""

    made: tuple[str, ...]
    failed: tuple[str, ...]


def published_binding() -> dict[str, list[str]]:
    """Fields of a device of a ResourceSlice that is bound only once it was made."""
    return {"bindingConditions": [SLICE_MADE], "bindingFailureConditions": [SLICE_NOT_MADE]}


def awaited_devices(claim: Mapping[str, Any], *, driver: str, pool: str) -> dict[str, Binding]:
    """By name the devices of ``pool`` that the claim was given with binding conditions."""
    return {
        result["device"]: Binding(
            tuple(result["bindingConditions"]), tuple(at(result, "bindingFailureConditions"))
        )
        for result in at(claim, "status", "allocation", "devices", "results")
        if (result["driver"], result["pool"]) == (driver, pool) and at(result, "bindingConditions")
    }


def told_devices(
    claim: Mapping[str, Any], awaited: Mapping[str, Binding], *, driver: str, pool: str
) -> tuple[frozenset[str], frozenset[str]]:
    """Those of the ``awaited`` devices of which the claim's status says that they are made, or not.

    A device of which neither is said is in none.
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
