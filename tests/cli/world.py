"""A cluster of constructed objects: nodes with GPUs, classes, pods with claims, a leader."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from api.crds import mignode_definition
from dra.claims.classes import generated_classes
from dra.common.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    EVENTS,
    LEASES,
    MIG_NODES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Obj,
    Resource,
)
from dra.gpu.inventory import AllocatorKind, Gpu
from dra.gpu.mignode import to_mignode
from dra.kube.client import KubeApi
from dra.kube.errors import AlreadyExistsError, ObjectNotFoundError
from dra.kube.lease import LEADERS, leader_lease
from dra.kube.timing import rfc3339
from tests.controller.helpers.objects import (
    DRIVER,
    FINALIZER,
    allocated,
    claim,
    gpu,
    inventory,
    node,
    pod,
    request,
)

NAMESPACE = "mig-dra-driver"
LEASE_SECONDS = 3600
"""Of a controller that leads; it does not expire while a slow machine runs a test."""
_EMPTIED = (
    EVENTS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    RESOURCE_CLAIM_TEMPLATES,
    DEVICE_CLASSES,
    LEASES,
    MIG_NODES,
    NODES,
)


def _labels(component: str) -> dict[str, str]:
    told = {"name": "dra-driver-nvidia-mig", "instance": "mig", "component": component}
    return {f"app.kubernetes.io/{key}": text for key, text in told.items()}


_definition = functools.cache(mignode_definition)


class World:
    """What a test puts into the cluster. Everything is gone after :meth:`close`."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self.api = KubeApi.connect(str(kubeconfig), user_agent="test")
        for resource, body in (
            (CUSTOM_RESOURCE_DEFINITIONS, _definition()),
            (NAMESPACES, {"metadata": {"name": NAMESPACE}}),
        ):
            try:
                self.api.create(resource, body)
            except AlreadyExistsError:
                continue

    def close(self) -> None:
        for resource in _EMPTIED:
            for obj in self.api.list(resource).items:
                self._remove(resource, obj)
        self.api.close()

    def _remove(self, resource: Resource, obj: Obj) -> None:
        name, namespace = obj["metadata"]["name"], obj["metadata"].get("namespace", "")
        try:
            if obj["metadata"].get("finalizers"):
                body = {"metadata": {"finalizers": None}}
                self.api.patch(resource, name, body, namespace=namespace)
            self.api.delete(resource, name, namespace=namespace, grace_seconds=0)
        except ObjectNotFoundError:
            return

    def add_node(
        self,
        name: str,
        *gpus: Gpu,
        ready: bool = True,
        allocator: AllocatorKind = AllocatorKind.CONTROLLER,
        **fields: Any,
    ) -> None:
        """A Node with its MigNode; ``fields`` are those of ``objects.node``."""
        body = node(name, **fields)
        if not ready:
            body["status"]["conditions"][0]["status"] = "False"
        self._with_status(NODES, body)
        self.add_mignode(name, *gpus, allocator=allocator)

    def add_mignode(self, name: str, *gpus: Gpu, **fields: Any) -> None:
        body = to_mignode(inventory(name, *(gpus or (gpu(node=name),)), **fields))
        self._with_status(MIG_NODES, body)

    def fall_silent(self, name: str, *, minutes: int) -> None:
        """The plugin's last heartbeat is so long ago."""
        status = self.api.get(MIG_NODES, name)["status"]
        last = rfc3339(datetime.now(UTC) - timedelta(minutes=minutes))
        wanted = {**status, "lastHeartbeatTime": last}
        self.set_status(MIG_NODES, {"metadata": {"name": name}}, wanted)

    def say_not_ready(self, name: str, message: str) -> None:
        """The plugin has said that it does not serve."""
        found = self.api.get(MIG_NODES, name)
        condition = {**found["status"]["conditions"][0], "status": "False", "message": message}
        self.set_status(MIG_NODES, found, {**found["status"], "conditions": [condition]})

    def add_template(self, name: str, *requests: Obj) -> None:
        spec = claim(name, *requests)["spec"]
        metadata = {"name": name, "namespace": "default"}
        self.api.create(RESOURCE_CLAIM_TEMPLATES, {"metadata": metadata, "spec": {"spec": spec}})

    def add_bare_node(self, name: str, **fields: Any) -> None:
        """A Node without a MigNode."""
        self._with_status(NODES, node(name, **fields))

    def replace_gpus(self, name: str, *gpus: Gpu, **fields: Any) -> None:
        """What the plugin says now; ``fields`` are those of an Inventory."""
        made = replace(inventory(name, *gpus), **fields)
        self.set_status(MIG_NODES, {"metadata": {"name": name}}, to_mignode(made)["status"])

    def unlead(self) -> None:
        """The controller is gone."""
        self.api.delete(LEASES, leader_lease(DRIVER), namespace=LEADERS)

    def add_plugin(self, node_name: str, *, ready: bool, **fields: Any) -> None:
        """A pod of the plugin's DaemonSet; ``fields`` as of ``add_component``."""
        image = "example/kubelet-plugin:0.1.0"
        name = f"plugin-{node_name}"
        made = self.add_component("kubelet-plugin", name, image=image, node=node_name, **fields)
        condition = {"type": "Ready", "status": "True" if ready else "False"}
        self.set_status(PODS, made, {"phase": "Running", "conditions": [condition]})

    def add_component(
        self,
        component: str,
        name: str,
        *,
        namespace: str = NAMESPACE,
        image: str = "example/controller:0.1.0",
        node: str = "",
        args: Sequence[str] = (),
    ) -> Obj:
        """A pod of the chart."""
        body = pod(name, nodeName=node)
        body["spec"]["containers"][0] |= {"image": image, "args": [*args]}
        body["metadata"] |= {"namespace": namespace, "labels": _labels(component)}
        return self.api.create(PODS, body)

    def add_classes(self, *profiles: str) -> None:
        """What the controller generates for the profiles."""
        for body in generated_classes(DRIVER, profiles):
            self.api.create(DEVICE_CLASSES, body)

    def add_class(self, name: str, expression: str) -> None:
        spec = {"selectors": [{"cel": {"expression": expression}}]}
        self.api.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": spec})

    def lead(self, *, seconds_ago: float = 0.0, holder: str = "controller-0") -> None:
        """A controller that has renewed its lease so long ago."""
        renewed = datetime.fromtimestamp(datetime.now(UTC).timestamp() - seconds_ago, UTC)
        body = {
            "metadata": {"name": leader_lease(DRIVER), "namespace": LEADERS},
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            },
        }
        self.api.create(LEASES, body)

    def add_claim(self, name: str, *requests: Obj, **fields: Any) -> Obj:
        return self.api.create(RESOURCE_CLAIMS, claim(name, *requests, **fields))

    def add_pod(self, name: str, *claims: str, running: bool = False, **spec: Any) -> Obj:
        """A pod that refers to claims by name; a running one has reserved them."""
        body = self.api.create(PODS, pod(name, *claims, **spec))
        if running:
            self.set_status(PODS, body, {"phase": "Running"})
            for each in claims:
                self.reserve(each, body)
        return body

    def reserve(self, claim_name: str, pod_object: Obj) -> None:
        body = self.api.get(RESOURCE_CLAIMS, claim_name, namespace="default")
        consumer = {
            "resource": "pods",
            "name": pod_object["metadata"]["name"],
            "uid": pod_object["metadata"]["uid"],
        }
        self.set_status(RESOURCE_CLAIMS, body, {**body["status"], "reservedFor": [consumer]})

    def hold(
        self, name: str, node_name: str, device: str, *, pod_name: str = "", **config: Any
    ) -> Obj:
        """A claim that is allocated, and, if named, the pod that runs with it.

        ``config`` are fields of its opaque configuration.
        """
        body = self.add_claim(name, request("r", "mig.dra.dev"))
        status = allocated(body, node_name, device)["status"]
        if config:
            parameters = {"apiVersion": "mig.dra.dev/v1alpha1", **config}
            opaque = {"driver": DRIVER, "parameters": parameters}
            status["allocation"]["devices"]["config"] = [{"source": "FromClaim", "opaque": opaque}]
        body = self.set_status(RESOURCE_CLAIMS, body, status)
        if pod_name:
            self.add_pod(pod_name, name, running=True, nodeName=node_name)
        return body

    def set_finalizers(self, claim_name: str, *finalizers: str) -> None:
        """Give a claim finalizers; ours, unless some are named."""
        body = {"metadata": {"finalizers": [*finalizers] or [FINALIZER]}}
        self.api.patch(RESOURCE_CLAIMS, claim_name, body, namespace="default")

    def set_status(self, resource: Resource, body: Obj, status: Obj) -> Obj:
        found = self.api.get(
            resource, body["metadata"]["name"], namespace=body["metadata"].get("namespace", "")
        )
        return self.api.replace(resource, {**found, "status": status}, subresource="status")

    def tell(self, about: Obj, reason: str, message: str, *, source: str = DRIVER) -> None:
        """An event of today about a pod or a claim."""
        metadata = about["metadata"]
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "metadata": {"generateName": "e-", "namespace": metadata["namespace"]},
            "involvedObject": {
                "kind": about["kind"],
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "reason": reason,
            "message": message,
            "type": "Warning",
            "source": {"component": source},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        self.api.create(EVENTS, body)

    def _with_status(self, resource: Resource, body: Obj) -> None:
        bare = {k: v for k, v in body.items() if k != "status"}
        self.api.create(resource, bare)
        self.set_status(resource, body, body["status"])
