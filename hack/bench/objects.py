"""Objects of the benchmarks: nodes of eight GPUs, and pods with a claim for one slice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dra.common.resources import NODES, PODS, RESOURCE_CLAIMS, Obj, Resource
from dra.gpu.geometry import Geometry, Placement, Profile
from dra.gpu.inventory import Gpu, Inventory
from dra.gpu.names import DEFAULT_DRIVER, class_name, finalizer
from sim.nvml.products import load_product

FINALIZER = finalizer(DEFAULT_DRIVER)
"""The controller's finalizer on claims, and the name of its scheduling gate."""

GPUS_PER_NODE = 8

REQUEST = "r"
"""The name of the only request of a claim."""

MIXES: Mapping[str, tuple[float, ...]] = {
    "uniform": (1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6),
    "skewsmall": (0.30, 0.25, 0.20, 0.10, 0.10, 0.05),
    "skewbig": (0.05, 0.10, 0.10, 0.20, 0.25, 0.30),
    "bimodal": (0.30, 0.15, 0.05, 0.05, 0.15, 0.30),
}
"""Shares of 1g, 1g with double memory, 2g, 3g, 4g and 7g."""


def geometry(product: str) -> Geometry:
    """The plain profiles (no ``+me`` and the like) of one of the simulator's products."""
    loaded = load_product(product)
    return Geometry(
        tuple(
            Profile(
                id=p.id,
                name=p.name,
                compute_slices=p.slice_count,
                memory_mib=p.memory_mib,
                multiprocessors=p.multiprocessors,
                placements=tuple(Placement(s, p.size) for s in p.starts),
            )
            for p in loaded.gi_profiles
            if "+" not in p.name and "-" not in p.name
        )
    )


def sizes(geometry: Geometry) -> dict[str, int]:
    """Profile name to memory slices, in the order of ``MIXES``: by compute, then memory."""
    ordered = sorted(geometry.profiles, key=lambda p: (p.compute_slices, p.memory_slices))
    return {p.name: p.memory_slices for p in ordered}


def inventory(node: str, shape: Geometry) -> Inventory:
    """Eight empty A100 of 80 GB with the profiles of ``shape``."""
    gpus = tuple(
        Gpu(
            minor=minor,
            uuid=f"GPU-{node}-{minor}",
            product_name="NVIDIA A100-SXM4-80GB",
            pci_bus_id=f"0000:{7 + 8 * minor:02x}:00.0",
            memory_mib=81920,
            multiprocessors=108,
            mig_enabled=True,
            mig_pending=True,
            geometry=shape,
        )
        for minor in range(GPUS_PER_NODE)
    )
    return Inventory(node, f"{node}-gpus", DEFAULT_DRIVER, gpus, driver_version="570.86.15")


def node(name: str) -> Obj:
    """A ready Node with room for more pods than slices."""
    resources = {"cpu": "256", "memory": "2Ti", "pods": "512"}
    ready = {"type": "Ready", "status": "True", "reason": "Bench", "message": "no kubelet"}
    return {
        "apiVersion": NODES.api_version,
        "kind": NODES.kind,
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": resources, "allocatable": resources, "conditions": [ready]},
    }


def claim_spec(profile: str) -> dict[str, Any]:
    """The ``spec`` of a claim for one slice of ``profile``."""
    request = {"name": REQUEST, "exactly": {"deviceClassName": class_name(profile)}}
    return {"devices": {"requests": [request]}}


def claim(name: str, profile: str) -> Obj:
    """A claim for one slice of ``profile``."""
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": claim_spec(profile),
    }


def pod(name: str, **source: str) -> Obj:
    """A pod with one claim by ``resourceClaimName`` or ``resourceClaimTemplateName``."""
    uses = [{"name": "gpu"}]
    resources = {"requests": {"cpu": "100m", "memory": "1Gi"}, "claims": uses}
    spec: dict[str, Any] = {
        "containers": [{"name": "c", "image": "none", "resources": resources}],
        "resourceClaims": [{"name": "gpu", **source}],
        "terminationGracePeriodSeconds": 0,
    }
    return {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def as_stored(resource: Resource, body: Obj, version: int) -> Obj:
    """``body``, of ``resource``, as an API server sends it, with what pods usually have besides.

    Nothing of the answer is shared with other objects, as after decoding JSON.
    """
    metadata = {
        "uid": f"{version:08x}-7d5a-4b1e-9c55-0242ac120002",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"app.kubernetes.io/name": "trainer", "team": "vision", "job": f"job-{version}"},
        "annotations": {"example.com/note": "one of many"},
        "managedFields": [_managed("kubectl-create"), _managed("kube-controller-manager")],
        **body["metadata"],
        "resourceVersion": str(version),
    }
    stored = {**body, "metadata": metadata}
    if resource is PODS:
        spec = body["spec"]
        dressed = [{**c, **_CONTAINER} for c in spec["containers"]]
        stored["spec"] = {**_POD_SPEC, **spec, "containers": dressed}
        stored["status"] = {"phase": "Pending", "conditions": _CONDITIONS, **body.get("status", {})}
    decoded: Obj = json.loads(json.dumps(stored))
    return decoded


def _managed(manager: str) -> Obj:
    fields: Obj = {f"f:field-{n}": {"f:a": {}, "f:b": {}} for n in range(8)}
    return {"manager": manager, "operation": "Update", "fieldsV1": {"f:spec": fields}}


_MOUNT = {"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
_CONTAINER: dict[str, Any] = {
    "command": ["python", "train.py", "--epochs", "90"],
    "env": [{"name": f"SETTING_{n}", "value": f"value of setting {n}"} for n in range(10)],
    "volumeMounts": [{**_MOUNT, "readOnly": True}],
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "IfNotPresent",
}
_POD_SPEC: dict[str, Any] = {
    "volumes": [{"name": "kube-api-access", "projected": {"sources": [{"configMap": {}}]}}],
    "tolerations": [
        {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute"}
        for why in ("not-ready", "unreachable")
    ],
    "serviceAccountName": "default",
    "schedulerName": "default-scheduler",
    "priority": 0,
}
_CONDITIONS = [
    {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
]
