"""A running API server stand-in, and objects for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dra.common.resources import (
    DEVICE_CLASSES,
    EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Obj,
    Resource,
)
from dra.kube.client import KubeApi
from dra.kube.errors import ConflictError, ObjectNotFoundError
from tests.helpers.fields import checked
from tests.sim.apiserver.running import running_server

DRIVER = "mig.dra.dev"
CLASS = "mig-1g.5gb"
KINDS = (
    EVENTS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
    NODES,
    DEVICE_CLASSES,
)
"""What tests make, in the order in which it is removed."""


@contextmanager
def api_server(directory: Path) -> Iterator[KubeApi]:
    with running_server(directory) as server:
        api = KubeApi.connect(str(server.kubeconfig), user_agent="test")
        yield api
        api.close()


def wipe(api: KubeApi, resources: Sequence[Resource] = KINDS) -> None:
    """Leave nothing of a test; finalizers do not hold anything."""
    for resource in resources:
        for obj in api.list(resource).items:
            name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
            try:
                if obj["metadata"].get("finalizers"):
                    body = {"metadata": {"finalizers": None}}
                    api.patch(resource, name, body, namespace=namespace)
                api.delete(resource, name, namespace=namespace, grace_seconds=0)
            except (ObjectNotFoundError, ConflictError):
                continue


def holds_for(seconds: float, probe: Callable[[], bool]) -> bool:
    """Whether ``probe`` stays true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not probe():
            return False
        time.sleep(0.02)
    return True


def pod(name: str, *, claim: Obj | None = None, node: str = "", **spec: Any) -> Obj:
    """A pod with one container; ``claim`` is an entry of spec.resourceClaims without its name."""
    container: Obj = {"name": "main", "image": "app", "resources": {}}
    body: Obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], **checked("V1PodSpec", spec)},
    }
    if claim is not None:
        container["resources"] = {"claims": [{"name": "slice"}]}
        body["spec"]["resourceClaims"] = [{"name": "slice", **claim}]
    if node:
        body["spec"]["nodeName"] = node
    return body


def claim_spec(class_name: str = CLASS) -> Obj:
    return {"devices": {"requests": [{"name": "r0", "exactly": {"deviceClassName": class_name}}]}}


def create_template(api: KubeApi, name: str = "one", **metadata: Any) -> Obj:
    return api.create(
        RESOURCE_CLAIM_TEMPLATES,
        {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"metadata": metadata, "spec": claim_spec()},
        },
    )


def create_claim(api: KubeApi, name: str, **metadata: Any) -> Obj:
    body = {
        "metadata": {"name": name, "namespace": "default", **checked("V1ObjectMeta", metadata)},
        "spec": claim_spec(),
    }
    return api.create(RESOURCE_CLAIMS, body)


def create_class(api: KubeApi, name: str = CLASS) -> Obj:
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    body = {"metadata": {"name": name}, "spec": {"selectors": [selector]}}
    return api.create(DEVICE_CLASSES, body)


def create_node(api: KubeApi, name: str, *, cpu: str = "4", **spec: Any) -> Obj:
    api.create(
        NODES,
        {"metadata": {"name": name, "labels": {"name": name}}, "spec": checked("V1NodeSpec", spec)},
    )
    status = {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}}
    return api.patch(NODES, name, {"status": status}, subresource="status")


def allocate(
    api: KubeApi, claim: str, node: str, *, consumers: tuple[Obj, ...] = (), timestamp: bool = True
) -> Obj:
    """Write an allocation as a third party does; ``consumers`` are pods to reserve it for."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    result: Obj = {
        "request": "r0",
        "driver": DRIVER,
        "pool": node,
        "device": "gpu-0-mig-1g5gb-19-0",
    }
    allocation: Obj = {
        "nodeSelector": {"nodeSelectorTerms": [term]},
        "devices": {"results": [result]},
    }
    if timestamp:
        allocation["allocationTimestamp"] = "2026-01-01T00:00:00Z"
    status: Obj = {"allocation": allocation}
    if consumers:
        status["reservedFor"] = [
            {"resource": "pods", "name": c["metadata"]["name"], "uid": c["metadata"]["uid"]}
            for c in consumers
        ]
    return api.patch(
        RESOURCE_CLAIMS, claim, {"status": status}, namespace="default", subresource="status"
    )


def get_pod(api: KubeApi, name: str) -> Obj:
    return api.get(PODS, name, namespace="default")


def get_claim(api: KubeApi, name: str) -> Obj:
    return api.get(RESOURCE_CLAIMS, name, namespace="default")


def phase(api: KubeApi, name: str) -> str:
    return str(get_pod(api, name).get("status", {}).get("phase", ""))


def gone(get: Callable[[], object]) -> bool:
    try:
        get()
    except ObjectNotFoundError:
        return True
    return False
