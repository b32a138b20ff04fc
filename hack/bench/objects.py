"""Nodes of eight GPUs, and pods with a claim for one slice, as objects to create."""

from __future__ import annotations

from typing import Any

from dra.geometry import Geometry
from dra.inventory import Gpu, Inventory
from dra.kube.resources import NODES, PODS, RESOURCE_CLAIMS, Obj
from dra.names import DEFAULT_DRIVER, class_name

FINALIZER = f"{DEFAULT_DRIVER}/allocation"
"""The controller's finalizer on claims, and the name of its scheduling gate."""

GPUS_PER_NODE = 8


def inventory(node: str, shape: Geometry) -> Inventory:
    """Eight empty A100 of 80 GB with the profiles of ``shape``."""
    gpus = tuple(
        Gpu(
            minor=minor,
            uuid=f"GPU-{node}-{minor}",
            product_name="NVIDIA A100-SXM4-80GB",
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
    request = {"name": "r", "exactly": {"deviceClassName": class_name(profile)}}
    return {"devices": {"requests": [request]}}


def claim(name: str, profile: str) -> Obj:
    """A claim for one slice of ``profile``."""
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": claim_spec(profile),
    }


def pod(name: str, *, gated: bool = False, **source: str) -> Obj:
    """A pod with one claim; ``source`` is ``resourceClaimName`` or ``resourceClaimTemplateName``.

    ``gated``: it waits for the controller to lift its gate.
    """
    uses = [{"name": "gpu"}]
    resources = {"requests": {"cpu": "100m", "memory": "1Gi"}, "claims": uses}
    spec: dict[str, Any] = {
        "containers": [{"name": "c", "image": "none", "resources": resources}],
        "resourceClaims": [{"name": "gpu", **source}],
        "terminationGracePeriodSeconds": 0,
    }
    if gated:
        spec["schedulingGates"] = [{"name": FINALIZER}]
    return {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }
