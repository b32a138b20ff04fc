"""ResourceSlices as NVIDIA's DRA driver writes them, composed from its sources."""

from __future__ import annotations

from typing import Any

from dra.common.resources import RESOURCE_SLICES, Obj

DRIVER = "gpu.nvidia.com"


def attributes(kind: str, **more: str) -> Obj:
    given = {"type": kind, "productName": "NVIDIA H100 80GB HBM3", "architecture": "Hopper", **more}
    return {name: {"string": value} for name, value in given.items()}


def counters(*memory_slices: int) -> list[Obj]:
    used = {f"memory-slice-{n}": {"value": "1"} for n in memory_slices}
    return [{"counterSet": "gpu-0-counter-set", "counters": used}]


def gpu(number: int = 0, *, partitionable: bool = False) -> Obj:
    made: Obj = {
        "name": f"gpu-{number}",
        "attributes": attributes("gpu", uuid=f"GPU-{number}"),
        "capacity": {"memory": {"value": "81559Mi"}},
    }
    return made | ({"consumesCounters": counters(*range(8))} if partitionable else {})


def found_mig(start: int = 0) -> Obj:
    """A MIG device that was there when the driver started."""
    return {
        "name": f"gpu-0-mig-1g10gb-19-{start}",
        "attributes": attributes("mig", profile="1g.10gb", parentUUID="GPU-0", uuid=f"MIG-{start}"),
        "capacity": {"memory": {"value": "9984Mi"}, f"memorySlice{start}": {"value": "1"}},
    }


def future_mig(start: int = 0, *, dropped: bool = False) -> Obj:
    """A MIG device to be made on demand; of one ``dropped``, the server kept no counters."""
    made: Obj = {
        "name": f"gpu-0-mig-1g10gb-19-{start}",
        "attributes": attributes("mig", profile="1g.10gb", parentUUID="GPU-0"),
        "capacity": {"memory": {"value": "9984Mi"}},
    }
    return made | ({} if dropped else {"consumesCounters": counters(start)})


def resource_slice(
    node: str, *devices: Obj, name: str = "", driver: str = DRIVER, count: int = 1
) -> Obj:
    spec: dict[str, Any] = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": count},
        "devices": [*devices],
    }
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": {"name": name or f"{node}-{driver}-x"},
        "spec": spec,
    }


def counter_slice(node: str, *, name: str = "", count: int = 2) -> Obj:
    """The slice of shared counters, which from Kubernetes 1.35 on holds no device."""
    made = resource_slice(node, name=name or f"{node}-{DRIVER}-counters", count=count)
    del made["spec"]["devices"]
    each = {f"memory-slice-{n}": {"value": "1"} for n in range(8)}
    made["spec"]["sharedCounters"] = [{"name": "gpu-0-counter-set", "counters": each}]
    return made
