"""Nodes without a kubelet, and pods that any node can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dra.common.resources import Obj
from hack.cluster.api import Api
from hack.cluster.containerd import IMAGE
from hack.cluster.kubelet import is_ready
from sim.processes import wait_for


def add_fake_node(
    api: Api, name: str, *, cpu: str = "8", labels: dict[str, str] | None = None
) -> None:
    """Makes a node that is ready and takes pods, which then stay pending on it for ever."""
    labels = {"kubernetes.io/hostname": name, **(labels or {})}
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    resources = {"cpu": cpu, "memory": "32Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "Fake", "message": "no kubelet"}
    status = {"capacity": resources, "allocatable": resources, "conditions": [ready]}
    api.patch("Node", name, {"status": status}, subresource="status")
    wait_for(f"fake node {name} without taints", lambda: is_ready(api.get("Node", name)))


def pod(
    name: str,
    commands: Mapping[str, Sequence[str]],
    *,
    cpu: str = "10m",
    claims: Mapping[str, dict[str, str]] | None = None,
    **spec: Any,
) -> Obj:
    """A pod on the host's network.

    Args:
        name: of the pod, in namespace default.
        commands: container name to its command.
        cpu: what each container requests.
        claims: pod-level claim name to `{"resourceClaimTemplateName": ...}` or
            `{"resourceClaimName": ...}`; every container uses all of them.
        spec: further fields of the pod's spec.
    """
    named = claims or {}
    containers = [
        {
            "name": container,
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": list(command),
            "resources": {"requests": {"cpu": cpu}, "claims": [{"name": each} for each in named]},
        }
        for container, command in commands.items()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": containers,
            "resourceClaims": [{"name": each, **source} for each, source in named.items()],
            **spec,
        },
    }
