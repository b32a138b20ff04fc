"""A whole cluster: control plane, nodes with simulated GPUs, and the chart installed on it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from dra.common.resources import Obj
from hack.cluster import containerd as pods
from hack.cluster.api import ApiError
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import ADMIN, USUAL, ControlPlane, Setup, node_user
from hack.cluster.installation import Installation, apply
from hack.cluster.kubelet import KubeletNode
from sim.processes import wait_for

COMPONENTS = ("controller", "kubelet-plugin")
DEFAULT_CLASS = "mig.dra.dev"


@dataclass(frozen=True, slots=True)
class Shape:
    """Parts of a cluster: node name to the products of its GPUs."""

    nodes: dict[str, tuple[str, ...]]


class Cluster:
    """Entering starts everything and waits until pods can ask for slices; leaving removes it.

    The chart's pods run with the chart's own accounts, and with nothing else.

    Args:
        binaries: must hold `binaries.CONTROL_PLANE` and `binaries.NODE`.
        root: an existing directory of ours with a short path.
        shape: its nodes.
        values: for the chart, over those that the machine needs.
        setup: of the control plane; its feature gates are the nodes' too.

    Raises:
        ClusterError: a part ended or did not get ready.
    """

    def __init__(
        self,
        binaries: Binaries,
        root: Path,
        shape: Shape,
        *,
        values: Obj | None = None,
        setup: Setup = USUAL,
    ) -> None:
        for directory in ("cp", "node", *shape.nodes):
            (root / directory).mkdir()
        self.shape = shape
        self.control_plane = ControlPlane(
            binaries,
            root / "cp",
            users=tuple(node_user(each) for each in shape.nodes),
            setup=setup,
        )
        self._binaries = binaries
        self._root = root
        self.nodes: dict[str, KubeletNode] = {}
        self._values = _merged(_values(shape, root / "node"), values or {})
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            plane = stack.enter_context(self.control_plane)
            for name in self.shape.nodes:
                self.nodes[name] = stack.enter_context(self._node(name))
            self.installation = Installation(
                plane, self._values, adapt=partial(pods.adapted, server=plane.server)
            )
            apply(self.installation.api, pods.RUNTIME_CLASS)
            self.installation.apply()
            wait_for("driver", self._asked_serving, timeout=120, context=self.tails)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.control_plane.kubeconfig(ADMIN)

    def tails(self) -> str:
        """Last lines of the driver's pods and of the nodes."""
        logs = [each.tails() for each in self.nodes.values()]
        return "\n".join([*self.pod_logs(), *logs])

    def pod_logs(self) -> list[str]:
        """The log of each container of the driver."""
        found = []
        for component in COMPONENTS:
            for pod in self.installation.pods(component):
                node = self.nodes[pod["spec"]["nodeName"]]
                spec = pod["spec"]
                for container in [*spec.get("initContainers", []), *spec["containers"]]:
                    name = f"{spec['nodeName']}/{component}/{container['name']}"
                    found.append(f"--- {name}\n{node.log(pod, container['name'])}")
        return found

    def assert_running(self) -> None:
        """Raises ClusterError if a program of the cluster ended; pods are kubelet's concern."""
        self.control_plane.assert_running()
        for node in self.nodes.values():
            node.process.assert_running()
            node.containerd.process.assert_running()

    def _node(self, name: str) -> KubeletNode:
        return KubeletNode(
            self._binaries,
            self.control_plane,
            name=name,
            root=self._root / name,
            shown=self._root / "node",
        )

    def _asked_serving(self) -> bool:
        with contextlib.suppress(ApiError):  # a new resource is 404, then 429
            return self._serving()
        return False

    def _serving(self) -> bool:
        api = self.control_plane.api
        running = [
            each["status"].get("phase") == "Running"
            for component in COMPONENTS
            for each in self.installation.pods(component)
        ]
        published = {each["metadata"]["name"] for each in api.list("MigNode") if each.get("status")}
        return (
            len(running) == len(self.nodes) + 1
            and all(running)
            and published == set(self.nodes)
            and api.find("DeviceClass", DEFAULT_CLASS) is not None
        )


def _values(shape: Shape, shown: Path) -> Obj:
    return {
        "simulated": {
            "enabled": True,
            "hostPath": str(shown / "sim"),
            "nodes": {name: list(gpus) for name, gpus in shape.nodes.items()},
        },
        "kubeletPlugin": {"kubeletRoot": str(shown / "k"), "cdiRoot": str(shown / "cdi")},
        "controller": {"replicas": 1},
    }


def _merged(base: Obj, over: Obj) -> Obj:
    """As helm merges values: maps key by key, everything else as a whole."""
    both = {key for key in base.keys() & over.keys() if isinstance(base[key], dict)}
    return {**base, **over, **{key: _merged(base[key], over[key] or {}) for key in both}}
