"""Requests of pods in every state of a resize: counted on a node as by the real kube-scheduler.

Each node without a kubelet has one pod, drawn at random, whose status says what kubelet would. A
pod that asks for all that is left by our arithmetic is bound there; one that asks for a little more
is not.
"""

from __future__ import annotations

import os
import random
from functools import partial
from typing import Any

import msgspec
import pytest

from dra.common.parts import decoded
from dra.common.resources import Obj
from dra.pods.pods import read_pod
from dra.pods.stored import keep_pod
from hack.cluster.api import Api
from sim.processes import wait_for
from tests.cluster.harness.pods import add_fake_node

CASES = int(os.environ.get("COUNTED_CASES", "24"))
CPU, MEMORY = 8000, 32 * 2**30
MIB = 2**20
HOST = "kubernetes.io/hostname"

pytestmark = pytest.mark.timeout(300)


class Draw:
    """Pods at random."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def _amounts(self) -> dict[str, str]:
        cpu, memory = self._random.choice((10, 100, 700, 900)), self._random.choice((16, 64, 800))
        return {"cpu": f"{cpu}m", "memory": f"{memory}Mi"}

    def _container(self, name: str) -> Obj:
        return {"name": name, "image": "none", "resources": {"requests": self._amounts()}}

    def _told(self, container: Obj) -> Obj:
        found: Obj = {
            "name": container["name"],
            "image": "none",
            "imageID": "",
            "restartCount": 0,
            "ready": True,
        }
        asked = container["resources"]["requests"]
        if self._random.random() < 0.8:
            found["allocatedResources"] = self._random.choice((asked, self._amounts()))
        if self._random.random() < 0.8:
            found["resources"] = {"requests": self._random.choice((asked, self._amounts()))}
        return found

    def pod(self, name: str, node: str) -> tuple[Obj, Obj]:
        """A pod of ``node``, and its status."""
        draw = self._random
        containers = [self._container(f"c{n}") for n in range(draw.randint(1, 3))]
        starting = [self._container(f"i{n}") for n in range(draw.randint(0, 3))]
        for each in starting:
            if draw.random() < 0.5:
                each["restartPolicy"] = "Always"
        spec: Obj = {"nodeName": node, "containers": containers, "initContainers": starting}
        status: Obj = {
            "phase": "Running",
            "containerStatuses": [*map(self._told, containers)],
            "initContainerStatuses": [*map(self._told, starting)],
        }
        if draw.random() < 0.3:
            whole = {"cpu": "5000m", "memory": "12Gi"}
            spec["resources"] = {"requests": whole}
            if draw.random() < 0.7:
                status["resources"] = {"requests": draw.choice((whole, self._amounts()))}
                status["allocatedResources"] = draw.choice((whole, self._amounts()))
        if (why := draw.choice(("", "Infeasible", "Deferred", "InProgress"))) == "InProgress":
            status["conditions"] = [{"type": "PodResizeInProgress", "status": "True"}]
        elif why:
            pending = {"type": "PodResizePending", "status": "True", "reason": why}
            status["conditions"] = [pending]
        return _object(name, spec), status


def _object(name: str, spec: Obj) -> Obj:
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _asking(name: str, node: str, cpu: int, memory: int) -> Obj:
    requests = {"cpu": f"{cpu}m", "memory": str(memory)}
    container: dict[str, Any] = {"name": "c", "image": "none", "resources": {"requests": requests}}
    return _object(name, {"containers": [container], "nodeSelector": {HOST: node}})


def _node_of(api: Api, name: str) -> str:
    return str(api.get("Pod", name)["spec"].get("nodeName") or "")


def _is_answered(api: Api, name: str) -> bool:
    """True if kube-scheduler has bound a pod, or has said that it fits nowhere."""
    conditions = api.get("Pod", name)["status"].get("conditions") or ()
    refused = (c for c in conditions if (c["type"], c["status"]) == ("PodScheduled", "False"))
    return bool(_node_of(api, name)) or any(refused)


def test_pods_in_every_state_of_a_resize_count_as_for_kube_scheduler(api: Api) -> None:
    draw, left = Draw(int(os.environ.get("COUNTED_SEED", "20261127"))), {}
    for case in range(CASES):
        node, name = f"fake-counted-{case}", f"resident-{case}"
        add_fake_node(api, node)
        body, status = draw.pod(name, node)
        api.create(body)
        api.patch("Pod", name, {"status": status}, subresource="status")
        stored = msgspec.Raw(msgspec.json.encode(api.get("Pod", name)))
        requests = read_pod(decoded(keep_pod(stored, ()))).needs.requests
        left[case] = CPU - requests["cpu"], MEMORY - requests["memory"]
    for case, (cpu, memory) in left.items():
        node = f"fake-counted-{case}"
        api.create(_asking(f"cpu-{case}", node, cpu + 1, MIB))
        api.create(_asking(f"memory-{case}", node, 1, memory + 1))
    for case, most in left.items():
        for name in (f"cpu-{case}", f"memory-{case}"):
            wait_for(f"an answer to {name}", partial(_is_answered, api, name))
            assert not _node_of(api, name), (case, most, api.get("Pod", f"resident-{case}"))
    for case, (cpu, memory) in left.items():
        node, name = f"fake-counted-{case}", f"all-{case}"
        api.create(_asking(name, node, cpu, memory))
        wait_for(f"{name} on its node", partial(_node_of, api, name))
