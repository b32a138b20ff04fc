"""A full cluster as an API server lists it: nodes, MigNodes, and claims in use with their pods.

Every object carries what it carries in practice and the controller does not read: managed fields,
owners, labels, status by container and by device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from dra.claims.allocation import AllocatedDevice, write_allocation
from dra.claims.classes import generated_classes
from dra.common.resources import (
    DEVICE_CLASSES,
    MIG_NODES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    Obj,
    Resource,
)
from dra.gpu.geometry import Geometry, Placement, Profile
from dra.gpu.inventory import ClaimRef, Instance, InstanceState
from dra.gpu.mignode import to_mignode
from dra.gpu.names import DEFAULT_DRIVER, mig_device
from hack.bench.control import objects
from hack.bench.control.objects import GPUS_PER_NODE

VERSION = "1000000"
"""The resourceVersion of all lists."""

_NOW = "2026-01-01T00:00:00Z"


@dataclass(frozen=True)
class FullCluster:
    """``nodes`` of eight GPUs, with ``claims`` slices of the smallest profile spread over them.

    The objects of a resource are numbered from zero.
    """

    shape: Geometry
    nodes: int
    claims: int

    def sizes(self) -> Mapping[Resource, int]:
        """Number of objects of each resource."""
        return {
            DEVICE_CLASSES: len(self._classes),
            NODES: self.nodes,
            MIG_NODES: self.nodes,
            RESOURCE_CLAIMS: self.claims,
            PODS: self.claims,
        }

    def body(self, resource: Resource, number: int) -> Obj:
        """One object as the API server sends it."""
        made: dict[Resource, Callable[[int], Obj]] = {
            DEVICE_CLASSES: self._classes.__getitem__,
            NODES: lambda n: objects.node(_node(n)),
            MIG_NODES: self._mignode,
            RESOURCE_CLAIMS: self._claim,
            PODS: self._pod,
        }
        order = [*made].index(resource)
        return objects.as_stored(resource, made[resource](number), order * 100_000 + number + 1)

    @cached_property
    def _classes(self) -> list[Obj]:
        return list(generated_classes(DEFAULT_DRIVER, [p.name for p in self.shape.profiles]))

    @cached_property
    def _profile(self) -> Profile:
        return min(self.shape.profiles, key=lambda p: (p.memory_slices, p.compute_slices))

    @cached_property
    def _starts(self) -> tuple[Placement, ...]:
        """Starts of slices of the profile side by side, as many as a GPU has compute slices for."""
        return self._profile.placements[: self.shape.compute_slices // self._profile.compute_slices]

    def _where(self, claim: int) -> tuple[int, int, Placement]:
        """Node, GPU and placement of a claim; the emptiest GPU first."""
        rest, node = divmod(claim, self.nodes)
        start, minor = divmod(rest, GPUS_PER_NODE)
        return node, minor, self._starts[start]

    def _mignode(self, node: int) -> Obj:
        name = _node(node)
        held: dict[int, list[Instance]] = {}
        for claim in range(node, self.claims, self.nodes):
            _, minor, placement = self._where(claim)
            held.setdefault(minor, []).append(self._instance(claim, placement))
        inventory = objects.inventory(name, self.shape)
        gpus = tuple(replace(g, instances=tuple(held.get(g.minor, ()))) for g in inventory.gpus)
        return to_mignode(replace(inventory, gpus=gpus), transition_time=_NOW)

    def _instance(self, claim: int, placement: Placement) -> Instance:
        number = placement.start
        return Instance(
            placement,
            InstanceState.PREPARED,
            profile_id=self._profile.id,
            profile=self._profile.name,
            gpu_instance_id=7 + number,
            compute_instance_id=0,
            uuid=f"MIG-{claim:08x}-58a8-5e4d-9a6b-0a6a9a3d0b4e",
            claim=ClaimRef("team-a", _claim_name(claim), _uid(RESOURCE_CLAIMS, claim)),
        )

    def _claim(self, number: int) -> Obj:
        node, minor, placement = self._where(number)
        profile = self._profile
        device = str(mig_device(minor, profile.name, profile_id=profile.id, start=placement.start))
        pool = f"{_node(node)}-gpus"
        chosen = [AllocatedDevice("r", DEFAULT_DRIVER, pool, device)]
        pod = {"name": _pod_name(number), "uid": _uid(PODS, number)}
        owner = {"apiVersion": "v1", "kind": "Pod", **pod, "controller": True}
        ready = {"type": "Ready", "status": "True", "reason": "Prepared", "message": "slice made"}
        prepared = {
            "driver": DEFAULT_DRIVER,
            "pool": pool,
            "device": device,
            "conditions": [{**ready, "lastTransitionTime": _NOW}],
            "data": {"migUUID": f"MIG-{number:08x}-58a8-5e4d-9a6b-0a6a9a3d0b4e"},
        }
        return {
            **objects.claim(_claim_name(number), profile.name),
            "metadata": {
                "name": _claim_name(number),
                "generateName": f"{_pod_name(number)}-gpu-",
                "namespace": "team-a",
                "uid": _uid(RESOURCE_CLAIMS, number),
                "annotations": {"resource.kubernetes.io/pod-claim-name": "gpu"},
                "ownerReferences": [{**owner, "blockOwnerDeletion": True}],
                "finalizers": [objects.FINALIZER],
            },
            "status": {
                "allocation": write_allocation(chosen, _node(node), timestamp=_NOW),
                "reservedFor": [{"resource": "pods", **pod}],
                "devices": [prepared],
            },
        }

    def _pod(self, number: int) -> Obj:
        node, _, _ = self._where(number)
        body = objects.pod(_pod_name(number), resourceClaimTemplateName="slice")
        job = {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{number // 8}"}
        running = {"running": {"startedAt": _NOW}}
        container = {
            "name": "c",
            "state": running,
            "lastState": {},
            "ready": True,
            "restartCount": 0,
            "image": "none",
            "imageID": f"sha256:{number:064x}",
            "started": True,
        }
        return {
            **body,
            "metadata": {
                **body["metadata"],
                "namespace": "team-a",
                "uid": _uid(PODS, number),
                "ownerReferences": [{**job, "uid": _uid(PODS, number // 8), "controller": True}],
            },
            "spec": {**body["spec"], "nodeName": _node(node)},
            "status": {
                "phase": "Running",
                "startTime": _NOW,
                "podIP": f"10.0.{number // 250 % 250}.{number % 250}",
                "containerStatuses": [container],
                "resourceClaimStatuses": [
                    {"name": "gpu", "resourceClaimName": _claim_name(number)}
                ],
            },
        }


def _node(number: int) -> str:
    return f"node-{number:04}"


def _pod_name(number: int) -> str:
    return f"train-{number // 8}-{number:05}"


def _claim_name(number: int) -> str:
    return f"{_pod_name(number)}-gpu-{number % 9999:04}"


def _uid(resource: Resource, number: int) -> str:
    return f"{number:08x}-{len(resource.plural):04x}-4b1e-9c55-0242ac120002"
