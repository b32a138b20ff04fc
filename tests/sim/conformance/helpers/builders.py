"""The objects that the cases are about, as small as they can be."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]

DRA = "/apis/resource.k8s.io/v1"
DRIVER = "mig.dra.dev"


def config_map(name: str, **data: str) -> Obj:
    whole: Obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    return whole | ({"data": data} if data else {})


def pod(name: str, **spec: Any) -> Obj:
    """A pod that no scheduler touches."""
    containers = [{"name": "main", "image": "example.com/none:1"}]
    whole = {"schedulerName": "nobody", "containers": containers} | spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": whole}


def claim(name: str, *requests: Obj) -> Obj:
    wanted = list(requests) or [request("r0")]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": wanted}},
    }


def request(name: str, **exactly: Any) -> Obj:
    return {"name": name, "exactly": {"deviceClassName": DRIVER} | exactly}


def result(device: str = "gpu-0-mig-1g5gb-19-0", **fields: Any) -> Obj:
    return {"request": "r0", "driver": DRIVER, "pool": "node-a", "device": device} | fields


def node_selector(name: str = "node-a") -> Obj:
    return {
        "nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}
        ]
    }


def allocation(*results: Obj, **fields: Any) -> Obj:
    return {
        "devices": {"results": list(results) or [result()]},
        "nodeSelector": node_selector(),
        "allocationTimestamp": "2026-11-21T03:31:30Z",
    } | fields


def device_status(device: str = "gpu-0-mig-1g5gb-19-0", **fields: Any) -> Obj:
    return {"driver": DRIVER, "pool": "node-a", "device": device} | fields


def condition(kind: str = "Ready", **fields: Any) -> Obj:
    return {
        "type": kind,
        "status": "True",
        "reason": "Prepared",
        "message": "",
        "lastTransitionTime": "2026-11-21T03:31:30Z",
    } | fields


def resource_slice(name: str, *devices: Obj, **spec: Any) -> Obj:
    whole: Obj = {
        "driver": DRIVER,
        "nodeName": "node-a",
        "pool": {"name": "node-a", "generation": 1, "resourceSliceCount": 1},
    }
    if devices:
        whole["devices"] = list(devices)
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": whole | spec,
    }


def device(name: str = "gpu-0", **fields: Any) -> Obj:
    return {"name": name} | fields
