"""API server with half-full nodes, and a controller beside it whose memory is looked at."""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from api.crds import mignode_definition
from dra.common.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    EVENTS,
    MIG_NODES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    Obj,
)
from dra.gpu.geometry import Geometry, Occupant
from dra.gpu.inventory import Gpu, Instance, InstanceState, Inventory
from dra.gpu.mignode import to_mignode
from dra.gpu.names import class_name
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError, ObjectNotFoundError
from hack.bench.control import objects
from hack.cluster.binaries import Binaries
from hack.cluster.driver.chart import NAMESPACE
from hack.cluster.machine.processes import Process
from hack.cluster.plane import credentials
from hack.cluster.plane.controlplane import ControlPlane, Setup
from hack.cluster.waiting import wait_for

SMALL, LARGE = "1g.10gb", "7g.80gb"
_CREATORS = 8

_HASTENED = """
import importlib
import runpy
for module, limit in (
    ("held_back", "FIRST_SECONDS"), ("line", "PATIENCE_SECONDS"), ("fairness", "ASIDE_SECONDS")
):
    found = importlib.import_module("controller.queue.overtaking." + module)
    setattr(found, limit, getattr(found, limit) / {0})
runpy.run_module("controller", run_name="__main__", alter_sys=True)
"""
"""Program of a controller whose limits for holding back slices are shorter by a factor."""


@dataclass(frozen=True, slots=True)
class Plane:
    """An API server with kube-controller-manager or a stand-in; ``users`` are kubeconfigs."""

    admin: str
    controller: str
    logs: Path


@contextlib.contextmanager
def real(binaries: Binaries) -> Iterator[Plane]:
    """A control plane from its binaries."""
    with tempfile.TemporaryDirectory(prefix="mighostile", dir="/tmp") as folder:
        users = (credentials.MIG_CONTROLLER,)
        setup = Setup(auditing=False)
        with ControlPlane(binaries, Path(folder), users=users, setup=setup) as control_plane:
            yield Plane(
                str(control_plane.kubeconfig(credentials.ADMIN)),
                str(control_plane.kubeconfig(credentials.MIG_CONTROLLER)),
                control_plane.logs,
            )


@contextlib.contextmanager
def embedded() -> Iterator[Plane]:
    """The simulator's API server and claim controller: nobody binds pods there."""
    with tempfile.TemporaryDirectory(prefix="mighostile", dir="/tmp") as folder:
        logs, kubeconfig = Path(folder), str(Path(folder) / "kubeconfig")
        sim = [sys.executable, "-m", "sim"]
        server = Process(
            "apiserver", [*sim, "apiserver", "--kubeconfig-out", kubeconfig], logs=logs
        )
        kcm = Process("kcm", [*sim, "kcm", "--kubeconfig", kubeconfig], logs=logs)
        server.start()
        try:
            wait_for("kubeconfig", Path(kubeconfig).exists)
            kcm.start()
            yield Plane(kubeconfig, kubeconfig, logs)
        finally:
            kcm.stop()
            server.stop()


class Ground:
    """Nodes, claims with their pods, and what the controller needs for them."""

    def __init__(self, api: KubeApi, controller: Process, nodes: list[Inventory]) -> None:
        self.api = api
        self.nodes = nodes
        self._controller = controller

    @property
    def is_alive(self) -> bool:
        """True if the controller runs."""
        return self._controller.running

    def memory(self, field: str = "VmRSS") -> int:
        """Memory of the controller by a field of its status, ``VmHWM`` for the peak; in MiB."""
        lines = Path(f"/proc/{self._controller.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(field)) // 1024

    def ask(self, name: str, *requests: Obj, labels: Obj | None = None, **devices: Any) -> None:
        """A claim with these requests, by default for one small slice, and a pod for it."""
        body = objects.claim(name, SMALL)
        if requests or devices:
            body["spec"] = {"devices": {"requests": [*requests], **devices}}
        self.api.create(RESOURCE_CLAIMS, body)
        pod = objects.pod(name, resourceClaimName=name)
        pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), **(labels or {})}
        self.api.create(PODS, pod)

    def end(self, names: Iterable[str]) -> None:
        """Delete pods and their claims."""
        for resource in (PODS, RESOURCE_CLAIMS):
            each(lambda n, r=resource: self._delete(r, n), names)

    def end_pod(self, name: str) -> None:
        """Delete a pod; its slice is free once the controller has seen that."""
        self._delete(PODS, name)

    def is_allocated(self, name: str) -> bool:
        """True if a claim has devices."""
        found = self.api.get(RESOURCE_CLAIMS, name, namespace="default")
        return bool((found.get("status") or {}).get("allocation"))

    def reason(self, name: str) -> str:
        """The last reason that was told of a claim or its pod; empty without one."""
        events = self.api.list(EVENTS, namespace="default").items
        return next((e["reason"] for e in events[::-1] if e["involvedObject"]["name"] == name), "")

    def wait(self, name: str, *, limit: float) -> float | None:
        """Seconds until a claim is allocated, or None after ``limit`` of them."""
        return seconds_until(lambda: self.is_allocated(name), limit=limit)

    def waits_of(self, names: Iterable[str], *, limit: float) -> list[float]:
        """Seconds that small claims wait which are made one after the other, at most ``limit``."""
        waits = []
        for name in names:
            self.ask(name)
            waits.append(self.wait(name, limit=limit) or limit)
        return waits

    def _delete(self, resource: Any, name: str) -> None:
        with contextlib.suppress(ObjectNotFoundError):
            self.api.delete(resource, name, namespace="default")


@contextlib.contextmanager
def prepared(plane: Plane, inventories: list[Inventory], *, hastened: int) -> Iterator[Ground]:
    """Nodes with these GPUs, and the controller, ``hastened`` (see ``Load``)."""
    api = KubeApi.connect(plane.admin, user_agent="bench", timeout_seconds=60)
    api.create(
        NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    )
    definition = mignode_definition()
    api.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
    wait_for("MigNode", lambda: _is_served(api))
    each(lambda i: api.create(NODES, objects.node(i.node)), inventories)
    bodies = [to_mignode(i) for i in inventories]
    each(lambda b: api.create(MIG_NODES, {k: b[k] for k in b if k != "status"}), bodies)
    each(
        lambda b: api.patch(
            MIG_NODES, b["metadata"]["name"], {"status": b["status"]}, subresource="status"
        ),
        bodies,
    )
    flags = ["--kubeconfig", plane.controller, "--no-leader-elect"]
    controller = Process(
        "controller",
        [sys.executable, "-c", _HASTENED.format(hastened), *flags],
        logs=plane.logs,
    )
    controller.start()
    try:
        ground = Ground(api, controller, inventories)
        shape = inventories[0].gpus[0].geometry
        wanted = {class_name(p.name) for p in shape.profiles} if shape else set[str]()
        wait_for("classes", lambda: wanted <= _classes(api), timeout=120)
        ground.ask("first")
        wait_for("first allocation", lambda: ground.is_allocated("first"), timeout=120)
        yield ground
    finally:
        controller.stop()
        api.close()


def half_full_nodes(shape: Geometry, nodes: int) -> list[Inventory]:
    """Half-full nodes, as many as ``nodes`` says."""
    draw = random.Random(nodes)
    return [half_full(f"node-{n:04}", shape, draw) for n in range(nodes)]


def half_full(node: str, shape: Geometry, draw: random.Random) -> Inventory:
    """Eight GPUs, two of a PCIe root, of which others hold half of the memory slices or more."""
    empty = objects.inventory(node, shape)
    return replace(empty, gpus=tuple(_half_full(gpu, shape, draw) for gpu in empty.gpus))


def _half_full(gpu: Gpu, shape: Geometry, draw: random.Random) -> Gpu:
    plain = [p for p in shape.profiles if "+" not in p.name and p.memory_slices < 8]  # noqa: PLR2004
    usage, instances = shape.usage([]), list[Instance]()
    while usage.mask.bit_count() < 4:  # noqa: PLR2004 - of eight
        fitting = [(p, q) for p in plain for q in shape.free_placements(usage, p)]
        profile, placement = draw.choice(fitting)
        usage = shape.add(usage, Occupant(placement, profile.id))
        instances.append(Instance(placement, InstanceState.FOREIGN, profile_id=profile.id))
    return replace(gpu, instances=tuple(instances), pcie_root=f"pci0000:{gpu.minor // 2:02x}")


def free_small(gpu: Gpu) -> int:
    """Number of small slices that a half-full GPU has room for."""
    shape = gpu.geometry
    profile = shape.by_name(SMALL) if shape else None
    if shape is None or profile is None:
        return 0
    held = [Occupant(i.placement, i.profile_id) for i in gpu.instances]
    return len(shape.free_placements(shape.usage(held), profile))


def seconds_until(condition: Callable[[], bool], *, limit: float) -> float | None:
    """Seconds until ``condition`` holds, or None after ``limit`` of them."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + limit:
            return None
        time.sleep(0.005)
    return time.monotonic() - began


def each(act: Callable[..., object], things: Iterable[object]) -> None:
    """Call ``act`` with each thing, several at a time."""
    with ThreadPoolExecutor(_CREATORS) as creators:
        for _ in creators.map(act, things):
            pass


def _is_served(api: KubeApi) -> bool:
    with contextlib.suppress(KubeError):
        return not api.list(MIG_NODES).items
    return False


def _classes(api: KubeApi) -> set[str]:
    return {c["metadata"]["name"] for c in api.list(DEVICE_CLASSES).items}
