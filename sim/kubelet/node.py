"""The Node object that a kubelet registers."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from dra.common.resources import NODES, Obj
from dra.kube.client import KubeApi
from dra.kube.errors import AlreadyExistsError
from dra.kube.timing import rfc3339

VERSION = "v1.36.2+sim"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True)
class NodeShape:
    """Resources and marks of the node. Taints are ``{key, value, effect}``."""

    name: str
    cpu: str = "8"
    memory: str = "32Gi"
    pods: str = "110"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()


def parse_taint(text: str) -> dict[str, str]:
    """``key[=value]:effect`` as in ``kubectl taint``.

    Raises:
        ValueError: another form.
    """
    pair, separator, effect = text.rpartition(":")
    key, _, value = pair.partition("=")
    if not separator or not key or effect not in {"NoSchedule", "PreferNoSchedule", "NoExecute"}:
        raise ValueError(f"taint {text!r} is not key[=value]:NoSchedule, :NoExecute, ...")
    return {"key": key, "effect": effect} | ({"value": value} if value else {})


def parse_labels(texts: Iterable[str]) -> dict[str, str]:
    """``key=value`` each.

    Raises:
        ValueError: another form.
    """
    labels = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise ValueError(f"label {text!r} is not key=value")
        labels[key] = value
    return labels


def register_node(api: KubeApi, shape: NodeShape, now: datetime, *, port: int) -> Obj:
    """Creates the Node, or sets labels and status of the one that exists; its taints stay.

    ``port`` is where this kubelet serves logs.
    """
    machine = platform.machine()
    labels = {
        "kubernetes.io/hostname": shape.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _ARCHITECTURES.get(machine, machine),
        **shape.labels,
    }
    spec = {"taints": [dict(taint) for taint in shape.taints]} if shape.taints else {}
    body = {
        "apiVersion": NODES.api_version,
        "kind": NODES.kind,
        "metadata": {"name": shape.name, "labels": labels},
        "spec": spec,
    }
    try:
        api.create(NODES, body)
    except AlreadyExistsError:
        api.patch(NODES, shape.name, {"metadata": {"labels": labels}})
    return api.patch(NODES, shape.name, {"status": _status(shape, now, port)}, subresource="status")


def _status(shape: NodeShape, now: datetime, port: int) -> Obj:
    resources = {"cpu": shape.cpu, "memory": shape.memory, "pods": shape.pods}
    at = rfc3339(now)
    pressures = ("MemoryPressure", "DiskPressure", "PIDPressure")
    conditions = [
        {"type": kind, "status": "False", "reason": f"KubeletHasNo{kind}"} for kind in pressures
    ]
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    return {
        "capacity": resources,
        "allocatable": resources,
        "addresses": [
            {"type": "InternalIP", "address": "127.0.0.1"},
            {"type": "Hostname", "address": shape.name},
        ],
        "conditions": [
            condition | {"lastTransitionTime": at, "lastHeartbeatTime": at}
            for condition in (*conditions, ready)
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        "nodeInfo": {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "bootID": "",
            "containerRuntimeVersion": "simulated://1",
            "kernelVersion": platform.release(),
            "kubeProxyVersion": "",
            "kubeletVersion": VERSION,
            "machineID": "",
            "operatingSystem": "linux",
            "osImage": "simulated node",
            "systemUUID": "",
        },
    }
