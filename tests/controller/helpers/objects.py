"""Kubernetes objects and states for the tests of the controller."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from controller.cluster.cluster import Cluster
from dra.cel.kinds import Kinds
from dra.cel.selectors import Selectors
from dra.common.resources import Obj
from dra.gpu.geometry import Geometry, Placement
from dra.gpu.inventory import AllocatorKind, ClaimRef, Gpu, Instance, InstanceState, Inventory
from dra.gpu.mignode import to_mignode
from tests.dra.gpus import A100
from tests.helpers.fields import checked

DRIVER = "mig.dra.dev"
FINALIZER = "mig.dra.dev/allocation"

_versions = itertools.count(1)


def gpu(
    minor: int = 0,
    node: str = "node-a",
    *,
    geometry: Geometry | None = A100,
    mig: bool = True,
    instances: tuple[Instance, ...] = (),
    **fields: Any,
) -> Gpu:
    """An A100; without MIG mode it is to be had whole."""
    return Gpu(
        minor=minor,
        uuid=f"GPU-{node}-{minor}",
        product_name="NVIDIA A100-SXM4-40GB",
        architecture="Ampere",
        cuda_compute_capability="8.0",
        pci_bus_id=f"0000:{minor:02x}:00.0",
        memory_mib=40960,
        multiprocessors=108,
        mig_enabled=mig,
        mig_pending=mig,
        geometry=geometry if mig else None,
        instances=instances,
        **fields,
    )


def inventory(
    node: str, *gpus: Gpu, allocator: AllocatorKind = AllocatorKind.CONTROLLER
) -> Inventory:
    """A node's GPUs; one A100 unless given."""
    return Inventory(
        node,
        f"{node}-pool",
        DRIVER,
        gpus=gpus or (gpu(node=node),),
        allocator=allocator,
        driver_version="570.86.10",
        cuda_driver_version="12.8",
    )


def mignode(node: str, *gpus: Gpu, allocator: AllocatorKind = AllocatorKind.CONTROLLER) -> Obj:
    """The MigNode of such a node."""
    return versioned(to_mignode(inventory(node, *gpus, allocator=allocator)))


def instance(profile: str, start: int, *, uid: str = "", state: str = "prepared") -> Instance:
    """An instance on an A100, held by the claim ``default/c-<uid>`` when a UID is given."""
    known = A100.by_name(profile)
    assert known is not None
    return Instance(
        Placement(start, known.memory_slices),
        InstanceState(state),
        profile_id=known.id,
        profile=profile,
        claim=ClaimRef("default", f"c-{uid}", uid) if uid else None,
    )


def node(
    name: str,
    *,
    cpu: str = "8",
    memory: str = "32Gi",
    labels: dict[str, str] | None = None,
    **spec: Any,
) -> Obj:
    """A ready Node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": checked("V1NodeSpec", spec),
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def device_class(name: str, expression: str, **spec: Any) -> Obj:
    """A DeviceClass with one selector."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {
            "selectors": [{"cel": {"expression": expression}}],
            **checked("V1DeviceClassSpec", spec),
        },
    }


def request(
    name: str = "r", device_class: str = "mig-1g.5gb", *selectors: str, **exactly: Any
) -> Obj:
    """A request for devices of a class."""
    body: Obj = {"deviceClassName": device_class, **checked("V1ExactDeviceRequest", exactly)}
    if selectors:
        body["selectors"] = [{"cel": {"expression": s}} for s in selectors]
    return {"name": name, "exactly": body}


def first_available(name: str, *subrequests: tuple[str, str, Obj]) -> Obj:
    """A request with alternatives: name, class and further fields of each, best first."""
    return {
        "name": name,
        "firstAvailable": [{"name": n, "deviceClassName": c, **more} for n, c, more in subrequests],
    }


def claim(
    name: str, *requests: Obj, constraints: list[Obj] | None = None, config: list[Obj] | None = None
) -> Obj:
    """A ResourceClaim to be created; one 1g.5gb unless requests are given."""
    devices: Obj = {"requests": list(requests) or [request()]}
    if constraints:
        devices["constraints"] = constraints
    if config:
        devices["config"] = config
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": devices},
    }


def pod(name: str, *claims: str, cpu: str = "100m", **spec: Any) -> Obj:
    """A pod to be created that refers to claims by their names; its container uses all of them."""
    used: Obj = {"claims": [{"name": name} for name in claims]} if claims else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "containers": [
                {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}, **used}}
            ],
            "resourceClaims": [{"name": c, "resourceClaimName": c} for c in claims],
            **checked("V1PodSpec", spec),
        },
    }


def versioned(obj: Obj) -> Obj:
    """The object as an API server would return it: with a UID and a newer resourceVersion."""
    metadata = {
        "uid": f"uid-{obj['metadata']['name']}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        **obj["metadata"],
        "resourceVersion": str(next(_versions)),
    }
    return {**obj, "metadata": metadata}


def copied(obj: Obj) -> Obj:
    """Another object of the same content, as whoever asks an API server gets it."""
    found: Obj = msgspec.json.decode(msgspec.json.encode(obj))
    return found


def allocated(obj: Obj, node: str, *devices: str, finalizer: bool = True) -> Obj:
    """A claim with an allocation of ours to its requests in turn."""
    names = [r["name"] for r in obj["spec"]["devices"]["requests"]]
    results = [
        {"request": n, "driver": DRIVER, "pool": f"{node}-pool", "device": d}
        for n, d in zip(itertools.cycle(names), devices, strict=False)
    ]
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    metadata = dict(obj["metadata"])
    if finalizer:
        metadata["finalizers"] = [FINALIZER]
    return {
        **obj,
        "metadata": metadata,
        "status": {
            "allocation": {
                "allocationTimestamp": "2026-01-01T00:00:00Z",
                "devices": {"results": results},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]},
            }
        },
    }


def cluster(*nodes: str) -> Cluster:
    """An index with the given nodes, each with one empty A100."""
    known = Cluster(DRIVER, FINALIZER, Kinds(Selectors()))
    for name in nodes:
        known.set_node(node(name))
        known.set_mignode(mignode(name))
    return known


def filled(minor: int, *starts: int, name: str = "node-a") -> Gpu:
    """An A100 with 1g.5gb instances at some memory slices."""
    return gpu(minor, name, instances=tuple(instance("1g.5gb", s) for s in starts))


def with_gpus(*gpus: Gpu, name: str = "node-a") -> Cluster:
    """An index with one node that has these GPUs."""
    known = cluster(name)
    known.set_mignode(mignode(name, *gpus))
    return known


def opaque(policy: str, *requests: str, **placement: Any) -> Obj:
    """A configuration that names a placement policy, and what else of the placement."""
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "placement": {"policy": policy, **placement},
    }
    found: Obj = {"opaque": {"driver": DRIVER, "parameters": parameters}}
    return found | ({"requests": list(requests)} if requests else {})
