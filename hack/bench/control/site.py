"""A real control plane with nodes that no kubelet serves, and who allocates their GPUs."""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from api.crds import mignode_definition
from dra.claims.allocation import AllocatedDevice, write_allocation
from dra.common.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    EVENTS,
    MIG_NODES,
    NAMESPACES,
    NODES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)
from dra.gpu.geometry import Geometry
from dra.gpu.mignode import to_mignode
from dra.gpu.names import DEFAULT_DRIVER, class_name
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError
from dra.kube.timing import rfc3339
from hack.bench.control import objects
from hack.bench.control.bindings import CREATORS
from hack.bench.control.effort import Effort, read_attempts, read_writes
from hack.bench.fleets.slices import partitionable
from hack.cluster.binaries import Binaries
from hack.cluster.driver.chart import NAMESPACE
from hack.cluster.driver.claimpolicy import FLAG, finalizers_at_creation
from hack.cluster.machine.processes import Process
from hack.cluster.nodes import is_ready
from hack.cluster.plane import credentials
from hack.cluster.plane.controlplane import ControlPlane, Setup
from hack.cluster.waiting import wait_for

_METRICS_BYTES = 64 * 2**20


class Site:
    """``nodes`` nodes of eight GPUs with the profiles of ``shape``. ``api`` is an administrator's.

    Enter ``controller`` or ``scheduler`` to have the GPUs allocated.
    """

    def __init__(self, control_plane: ControlPlane, shape: Geometry, *, nodes: int) -> None:
        self._control_plane = control_plane
        self._controller: Process | None = None
        kubeconfig = str(control_plane.kubeconfig(credentials.ADMIN))
        self.api = KubeApi.connect(kubeconfig, user_agent="bench", timeout_seconds=60)
        self._inventories = [objects.inventory(f"node-{n:04}", shape) for n in range(nodes)]
        self._events = 0
        self._told_effort = Effort()
        self._turns = itertools.cycle(i.node for i in self._inventories)
        self._logs = control_plane.root / "controller"
        self._logs.mkdir()

    def make_nodes(self) -> None:
        """Create the nodes, and wait until pods may go there."""
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        self.api.create(NAMESPACES, namespace)
        definition = mignode_definition()
        self.api.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
        names = [i.node for i in self._inventories]
        _each(lambda name: self.api.create(NODES, objects.node(name)), names)
        wait_for("nodes without taints", self._ready, timeout=120)
        wait_for("rest", self._told, interval=2, timeout=120)

    @contextlib.contextmanager
    def installed(self) -> Iterator[Process]:
        """As ``controller``, with finalizers put on claims by the API server, as by the chart."""
        with finalizers_at_creation(self._control_plane.api), self.controller(FLAG) as process:
            yield process

    @contextlib.contextmanager
    def controller(self, *flags: str) -> Iterator[Process]:
        """Every node shows its GPUs in a MigNode, and our controller runs: yields its process."""
        wait_for("MigNode", self._mignodes_served)
        bodies = [to_mignode(i) for i in self._inventories]
        _each(lambda b: self.api.create(MIG_NODES, {k: b[k] for k in b if k != "status"}), bodies)
        _each(
            lambda b: self.api.patch(
                MIG_NODES,
                b["metadata"]["name"],
                {"status": b["status"]},
                subresource="status",
            ),
            bodies,
        )
        kubeconfig = str(self._control_plane.kubeconfig(credentials.MIG_CONTROLLER))
        command = [sys.executable, "-m", "controller", "--kubeconfig", kubeconfig, *flags]
        process = Process("controller", command, logs=self._logs)
        process.start()
        self._controller = process
        try:
            profiles = self._inventories[0].gpus[0].geometry
            classes = {class_name(p.name) for p in profiles.profiles} if profiles else set()
            wait_for("classes", lambda: classes <= self._classes(), timeout=60)
            yield process
        finally:
            self._controller = None
            process.stop()
        _each(lambda b: self.api.delete(MIG_NODES, b["metadata"]["name"]), bodies)

    @contextlib.contextmanager
    def scheduler(self) -> Iterator[None]:
        """Every node offers its slices as partitionable devices; kube-scheduler allocates.

        The classes have to be there: the controller makes them.
        """
        slices = [s for inventory in self._inventories for s in partitionable(inventory)]
        _each(lambda s: self.api.create(RESOURCE_SLICES, s), slices)
        stored = self.api.get(RESOURCE_SLICES, slices[0]["metadata"]["name"])
        if not stored["spec"].get("sharedCounters"):
            raise RuntimeError("this API server drops sharedCounters: no partitionable devices")
        yield
        _each(lambda s: self.api.delete(RESOURCE_SLICES, s["metadata"]["name"]), slices)

    def allocate(self, claim: str) -> None:
        """Allocate a claim on the node whose turn it is; which device does not matter there."""
        device = AllocatedDevice(objects.REQUEST, DEFAULT_DRIVER, "bench", "gpu-0")
        allocation = write_allocation(
            [device], next(self._turns), timestamp=rfc3339(datetime.now(UTC))
        )
        self.api.patch(
            RESOURCE_CLAIMS,
            claim,
            {"status": {"allocation": allocation}},
            namespace="default",
            subresource="status",
        )

    def effort(self) -> Effort:
        """Effort until now, without that of telling it."""
        before = self._cpu()
        metrics = self.api.text("/metrics", query={}, limit_bytes=_METRICS_BYTES).decode()
        attempts = read_attempts(self._control_plane.scheduler_metrics())
        found = Effort((before - self._told_effort).cpu, read_writes(metrics), attempts)
        self._told_effort += self._cpu() - before
        return found

    def _cpu(self) -> Effort:
        cpu = {"this benchmark": time.process_time(), **self._control_plane.cpu_seconds()}
        if self._controller is not None:
            cpu[self._controller.name] = self._controller.cpu_seconds
        return Effort(cpu)

    def _told(self) -> bool:
        """True if the control plane has written its events about the new nodes."""
        before, self._events = self._events, len(self.api.list(EVENTS).items)
        return before == self._events > 0

    def _ready(self) -> bool:
        return all(is_ready(node) for node in self.api.list(NODES).items)

    def _mignodes_served(self) -> bool:
        with contextlib.suppress(KubeError):
            return not self.api.list(MIG_NODES).items
        return False

    def _classes(self) -> set[str]:
        return {c["metadata"]["name"] for c in self.api.list(DEVICE_CLASSES).items}


@contextlib.contextmanager
def running(
    binaries: Binaries, shape: Geometry, *, nodes: int, scheduler_qps: int
) -> Iterator[Site]:
    """A control plane with such nodes, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="migbench", dir="/tmp") as folder:
        flags = {
            "kube_api_qps": str(scheduler_qps),
            "kube_api_burst": str(2 * scheduler_qps),
            "authorization_always_allow_paths": "/healthz,/readyz,/livez,/metrics",
        }
        users = (credentials.MIG_CONTROLLER,)
        setup = Setup(scheduler_flags=flags, auditing=False)
        with ControlPlane(binaries, Path(folder), users=users, setup=setup) as control_plane:
            site = Site(control_plane, shape, nodes=nodes)
            site.make_nodes()
            yield site
            site.api.close()


def _each(act: Callable[..., object], things: Iterable[object]) -> None:
    with ThreadPoolExecutor(CREATORS) as creators:
        for _ in creators.map(act, things):
            pass
