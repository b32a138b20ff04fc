"""What the tests of permissions ask the API server for."""

from __future__ import annotations

from typing import Any

from dra.common.resources import Obj
from hack.cluster.api import Api, ApiError, collection

MIGNODES = collection("MigNode")
SLICES = collection("ResourceSlice")
CLAIMS = collection("ResourceClaim")
CLASSES = collection("DeviceClass")
PODS = collection("Pod")
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
DRIVER = "mig.dra.dev"


def allocation(node: str, device: str = "gpu-0-mig-1g5gb-19-0") -> Obj:
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    result = {"request": "slice", "driver": DRIVER, "pool": node, "device": device}
    return {
        "allocationTimestamp": "2026-01-01T00:00:00Z",
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
    }


def devices(claim: Obj) -> dict[str, Any]:
    """The request by which the plugin shows a claim's device."""
    result = claim["status"]["allocation"]["devices"]["results"][0]
    entry = {"driver": DRIVER, "pool": result["pool"], "device": result["device"]}
    entry["data"] = {"migUUID": "MIG-1"}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": claim["metadata"]["name"], "namespace": "default"},
        "status": {"devices": [entry]},
    }
    return {"body": body, "content": APPLY}


def status_of(claim: Obj, *, manager: str = "") -> str:
    where = f"{CLAIMS}/{claim['metadata']['name']}/status"
    return f"{where}?fieldManager={manager}&force=true" if manager else where


def refusal(api: Api, method: str, where: str, **request: Any) -> tuple[int, str]:
    """Status and text of the answer to a request that must be refused."""
    try:
        answer = api.request(method, where, **request)
    except ApiError as error:
        return error.status, str(error)
    raise AssertionError(f"{method} {where} was allowed: {answer}")


def device_class(name: str, expression: str, *, label: str = f"{DRIVER}/generated") -> Obj:
    """A DeviceClass that the label calls generated."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name, "labels": {label: "true"}},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }
