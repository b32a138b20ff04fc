"""An API server with nodes, and controllers as processes beside it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from api.crds import mignode_definition
from dra.common.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    LEASES,
    MIG_NODES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    Obj,
)
from dra.gpu.inventory import Gpu
from dra.kube.client import KubeApi
from dra.kube.errors import ObjectNotFoundError
from dra.kube.lease import LEADERS
from tests.controller.helpers.objects import claim, mignode, node, pod
from tests.helpers.waiting import PATIENCE, wait_for
from tests.sim.standins import KINDS, wipe

NAMESPACE = "mig-dra-driver"


class Ground:
    """A running API server with our definition and namespace, and a claim controller."""

    def __init__(self, folder: Path) -> None:
        self.kubeconfig = folder / "kubeconfig"
        command = [sys.executable, "-m", "sim", "apiserver", "--kubeconfig-out"]
        self.server = subprocess.Popen([*command, str(self.kubeconfig)], stdout=subprocess.DEVNULL)
        wait_for("kubeconfig", self.kubeconfig.exists)
        self.api = KubeApi.connect(str(self.kubeconfig), user_agent="test")
        self.api.create(CUSTOM_RESOURCE_DEFINITIONS, mignode_definition())
        self.api.create(
            NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        )
        command = [sys.executable, "-m", "sim", "kcm", "--kubeconfig", str(self.kubeconfig)]
        with (folder / "kcm.log").open("wb") as log:
            self.kcm = subprocess.Popen(command, stderr=log)

    def wipe(self) -> None:
        """Leave nothing of a test."""
        # Claims first: of those that are gone nobody writes that their pods are.
        wipe(self.api, [RESOURCE_CLAIMS, *KINDS, MIG_NODES, LEASES])

    def close(self) -> None:
        for process in (self.kcm, self.server):
            process.kill()
            process.wait()
        self.api.close()


class Site:
    """Nodes in an API server, and controllers beside it."""

    def __init__(self, ground: Ground, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = ground.kubeconfig
        self.server = ground.server
        self.api = ground.api
        self.controllers: list[subprocess.Popen[bytes]] = []

    def add_node(self, name: str, *gpus: Gpu) -> None:
        body = node(name)
        self.api.create(NODES, {k: v for k, v in body.items() if k != "status"})
        self.api.patch(NODES, name, {"status": body["status"]}, subresource="status")
        body = mignode(name, *gpus)
        bare = {**body, "metadata": {"name": name}}
        self.api.create(MIG_NODES, {k: v for k, v in bare.items() if k != "status"})
        self.show(name, *gpus)

    def show(self, name: str, *gpus: Gpu) -> None:
        """The node's plugin reports its GPUs."""
        status = mignode(name, *gpus)["status"]
        self.api.patch(MIG_NODES, name, {"status": status}, subresource="status")

    def start(self, *flags: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "controller", "--kubeconfig", str(self.kubeconfig)]
        log = (self.folder / f"controller-{len(self.controllers)}.log").open("wb")
        with log:
            started = subprocess.Popen([*command, *flags], stderr=log)
        self.controllers.append(started)
        return started

    def crash(self, leader: subprocess.Popen[bytes]) -> None:
        """Kill the leader, whose lease then lasts for one second only instead of 15."""
        leader.kill()
        leader.wait()
        (lease,) = self.api.list(LEASES, namespace=LEADERS).items
        lasts = {"spec": {"leaseDurationSeconds": 1}}
        self.api.patch(LEASES, lease["metadata"]["name"], lasts, namespace=LEADERS)

    def logs(self) -> str:
        return "\n".join(p.read_text() for p in sorted(self.folder.glob("controller-*.log")))

    def wait_classes(self) -> None:
        wait_for("classes", lambda: self.find(DEVICE_CLASSES, "mig-7g.40gb", ""))

    def find(self, resource: Any, name: str, namespace: str = "default") -> Obj | None:
        with contextlib.suppress(ObjectNotFoundError):
            return self.api.get(resource, name, namespace=namespace)
        return None

    def claim(self, name: str, *requests: Obj) -> None:
        self.api.create(RESOURCE_CLAIMS, claim(name, *requests))

    def pod(self, name: str, *claims: str, **spec: Any) -> None:
        self.api.create(PODS, pod(name, *claims, **spec))

    def allocation(self, name: str) -> Obj | None:
        found = self.api.get(RESOURCE_CLAIMS, name, namespace="default")
        allocation: Obj | None = (found.get("status") or {}).get("allocation")
        return allocation

    def node_of(self, name: str) -> str:
        allocation = self.allocation(name)
        if allocation is None:
            return ""
        (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
        return str(term["matchFields"][0]["values"][0])

    def held(self) -> list[tuple[str, str]]:
        """(node, device) of everything that is allocated."""
        claims = [c["metadata"]["name"] for c in self.api.list(RESOURCE_CLAIMS).items]
        return [
            (self.node_of(name), result["device"])
            for name in claims
            for result in (self.allocation(name) or {"devices": {"results": []}})["devices"][
                "results"
            ]
        ]

    def writes(self) -> Counter[str]:
        """Writes by verb and resource so far, without those of the lease."""
        url = yaml.safe_load(self.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        with urllib.request.urlopen(f"{url}/debug/writes", timeout=PATIENCE) as answer:
            counted: dict[str, int] = json.load(answer)["requests"]
        reads = ("get ", "list ", "watch ")
        return Counter(
            {
                k: v
                for k, v in counted.items()
                if LEASES.plural not in k and not k.lower().startswith(reads)
            }
        )

    def close(self) -> None:
        for process in self.controllers:
            process.kill()
            process.wait()
