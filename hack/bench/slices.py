"""A node's placements as partitionable devices, for the scheduler's side of the comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dra.devices import VirtualSlice, slice_attributes, slice_capacity, virtual_slices
from dra.inventory import Inventory
from dra.kube.resources import RESOURCE_SLICES, Obj

_DEVICES = 64
"""The most devices in a slice that has devices that consume counters (resource.k8s.io/v1)."""


def partitionable(inventory: Inventory) -> list[Obj]:
    """ResourceSlices in the layout of Kubernetes 1.35 and later: counters, then devices."""
    counters = [
        {
            "name": _counter_set(gpu.minor),
            "counters": {
                "memory-slice-" + str(n): {"value": "1"}
                for n in range(gpu.geometry.memory_slices if gpu.geometry else 0)
            }
            | {"multiprocessors": {"value": str(gpu.multiprocessors)}},
        }
        for gpu in inventory.gpus
    ]
    found = [_device(s, inventory) for gpu in inventory.gpus for s in virtual_slices(gpu)]
    parts: list[Obj] = [{"sharedCounters": counters}]
    parts += [{"devices": found[at : at + _DEVICES]} for at in range(0, len(found), _DEVICES)]
    return [_slice(inventory, number, parts) for number in range(len(parts))]


def _slice(inventory: Inventory, number: int, parts: Sequence[Obj]) -> Obj:
    pool = {"name": inventory.pool, "generation": 1, "resourceSliceCount": len(parts)}
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": {"name": f"{number:05x}-{inventory.pool}"},
        "spec": {
            "driver": inventory.driver,
            "nodeName": inventory.node,
            "pool": pool,
            **parts[number],
        },
    }


def _device(piece: VirtualSlice, inventory: Inventory) -> dict[str, Any]:
    start, size = piece.placement.start, piece.placement.size
    taken = {f"memory-slice-{n}": {"value": "1"} for n in range(start, start + size)}
    taken["multiprocessors"] = {"value": str(piece.profile.multiprocessors)}
    return {
        "name": str(piece.device),
        "attributes": slice_attributes(piece.gpu, piece.profile, inventory),
        "capacity": slice_capacity(piece.profile),
        "consumesCounters": [
            {"counterSet": _counter_set(piece.gpu.minor), "counters": taken},
        ],
    }


def _counter_set(minor: int) -> str:
    return f"gpu-{minor}-counter-set"
