"""A control plane with nodes that no kubelet serves, and who allocates their GPUs."""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from api.crds import mignode_definition
from dra.claims.allocation import AllocatedDevice, write_allocation
from dra.claims.classes import generated_classes
from dra.common.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    EVENTS,
    MIG_NODES,
    NAMESPACES,
    NODES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Obj,
)
from dra.gpu.inventory import AllocatorKind, Inventory
from dra.gpu.mignode import to_mignode
from dra.gpu.names import DEFAULT_DRIVER, class_name
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError
from dra.kube.timing import rfc3339
from dra.resourceslices.partitions import offered
from dra.resourceslices.resourceslices import Features, SliceLayout
from hack.bench import objects
from hack.cluster import controlplane
from hack.cluster.binaries import Binaries
from hack.cluster.chart import NAMESPACE
from hack.cluster.controlplane import ControlPlane, Setup
from hack.cluster.installation import FLAG, finalizers_at_creation
from hack.cluster.kubelet import is_ready
from sim.processes import Process, wait_for

_CREATORS = 8
"""Threads that create and delete objects."""
Seconds = Mapping[str, float]
"""CPU seconds by process."""

T = TypeVar("T")


@contextlib.contextmanager
def real(binaries: Binaries, **scheduler_flags: str) -> Iterator[ControlPlane]:
    """A control plane from its binaries, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="migbench", dir="/tmp") as folder:
        setup = Setup(scheduler_flags=scheduler_flags, auditing=False)
        users = (controlplane.MIG_CONTROLLER,)
        with ControlPlane(binaries, Path(folder), users=users, setup=setup) as plane:
            yield plane


class Site:
    """Nodes with these GPUs on a plane; ``api`` is an administrator's.

    Enter ``controller`` or ``scheduler`` to have the GPUs allocated.
    """

    def __init__(self, plane: ControlPlane, inventories: Sequence[Inventory]) -> None:
        admin = str(plane.kubeconfig(controlplane.ADMIN))
        self.api = KubeApi.connect(admin, user_agent="bench", timeout_seconds=60)
        self.nodes = inventories
        self._plane = plane
        self._controller: Process | None = None
        self._turns = itertools.cycle(i.node for i in inventories)

    def make_nodes(self) -> None:
        """Create the nodes, and wait until pods may go there."""
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self.api.create(NAMESPACES, namespace)
        self.api.create(CUSTOM_RESOURCE_DEFINITIONS, mignode_definition())
        each(lambda i: self.api.create(NODES, objects.node(i.node)), self.nodes)
        wait_for("nodes without taints", self._ready, timeout=120)
        before, after = -1, 0
        while before != after or not after:  # the control plane writes events about new nodes
            time.sleep(2)
            before, after = after, len(self.api.list(EVENTS).items)

    @contextlib.contextmanager
    def installed(self) -> Iterator[Process]:
        """As ``controller``, with finalizers put on claims by the API server, as by the chart."""
        with finalizers_at_creation(self._plane.api), self.controller(FLAG) as process:
            yield process

    @contextlib.contextmanager
    def controller(
        self, *flags: str, allocator: AllocatorKind = AllocatorKind.CONTROLLER
    ) -> Iterator[Process]:
        """Every node shows its GPUs in a MigNode, and our controller runs: yields its process."""
        wait_for("MigNode", self._mignodes_served)
        bodies = [to_mignode(replace(i, allocator=allocator)) for i in self.nodes]
        each(self._make_mignode, bodies)
        command = [sys.executable, "-m", "controller"]
        kubeconfig = self._plane.kubeconfig(controlplane.MIG_CONTROLLER)
        command += ["--kubeconfig", str(kubeconfig), *flags]
        process = Process("controller", command, logs=self._plane.logs)
        process.start()
        self._controller = process
        try:
            shape = self.nodes[0].gpus[0].geometry
            classes = {class_name(p.name) for p in shape.profiles} if shape else set[str]()
            wait_for("classes", lambda: classes <= self._classes(), timeout=120)
            yield process
        finally:
            self._controller = None
            process.stop()
        each(lambda b: self.api.delete(MIG_NODES, b["metadata"]["name"]), bodies)

    @contextlib.contextmanager
    def scheduler(self) -> Iterator[None]:
        """Every node offers its slices as partitionable devices; kube-scheduler allocates.

        Classes that no controller has made are made.
        """
        shape = self.nodes[0].gpus[0].geometry
        names = [p.name for p in shape.profiles] if shape else []
        there = self._classes()
        for body in generated_classes(DEFAULT_DRIVER, names):
            if body["metadata"]["name"] not in there:
                self.api.create(DEVICE_CLASSES, body)
        slices = [s for inventory in self.nodes for s in partitionable(inventory)]
        each(lambda s: self.api.create(RESOURCE_SLICES, s), slices)
        stored = self.api.get(RESOURCE_SLICES, slices[0]["metadata"]["name"])
        if not stored["spec"].get("sharedCounters"):
            raise RuntimeError("this API server drops sharedCounters: no partitionable devices")
        yield
        each(lambda s: self.api.delete(RESOURCE_SLICES, s["metadata"]["name"]), slices)

    def allocate(self, claim: str) -> None:
        """Allocate a claim on the node whose turn it is; which device does not matter there."""
        device = AllocatedDevice(objects.REQUEST, DEFAULT_DRIVER, "bench", "gpu-0")
        now = rfc3339(datetime.now(UTC))
        allocation = write_allocation([device], next(self._turns), timestamp=now)
        body = {"status": {"allocation": allocation}}
        self.api.patch(RESOURCE_CLAIMS, claim, body, namespace="default", subresource="status")

    def cpu_seconds(self) -> Seconds:
        """CPU time that every process has used so far, this one included."""
        cpu = {"this benchmark": time.process_time(), **self._plane.cpu_seconds()}
        if self._controller is not None:
            cpu[self._controller.name] = self._controller.cpu_seconds
        return cpu

    def memory_mib(self) -> int:
        """The most that the controller ever had, 0 where none runs."""
        return self._controller.status("VmHWM") >> 10 if self._controller is not None else 0

    def _make_mignode(self, body: Obj) -> None:
        self.api.create(MIG_NODES, {k: body[k] for k in body if k != "status"})
        name, status = body["metadata"]["name"], {"status": body["status"]}
        self.api.patch(MIG_NODES, name, status, subresource="status")

    def _ready(self) -> bool:
        return all(is_ready(node) for node in self.api.list(NODES).items)

    def _mignodes_served(self) -> bool:
        with contextlib.suppress(KubeError):
            return not self.api.list(MIG_NODES).items
        return False

    def _classes(self) -> set[str]:
        return {c["metadata"]["name"] for c in self.api.list(DEVICE_CLASSES).items}


def partitionable(inventory: Inventory) -> list[Obj]:
    """A node's placements as the plugin publishes them: ResourceSlices of Kubernetes 1.35 on."""
    layout = SliceLayout(offered(inventory, {}, taints=True), Features())
    return [
        {
            "apiVersion": RESOURCE_SLICES.api_version,
            "kind": RESOURCE_SLICES.kind,
            "metadata": {"name": name},
            "spec": layout.spec(index, generation=1),
        }
        for index, name in enumerate(layout.names())
    ]


def each(act: Callable[[T], object], things: Iterable[T]) -> None:
    """Call ``act`` with each thing, several at a time."""
    with ThreadPoolExecutor(_CREATORS) as creators:
        for _ in creators.map(act, things):
            pass
