"""Half-full nodes, and a controller beside them whose memory is looked at."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dra.common.resources import EVENTS, PODS, RESOURCE_CLAIMS, Obj
from dra.gpu.geometry import Geometry, Occupant
from dra.gpu.inventory import Gpu, Instance, InstanceState, Inventory
from dra.kube.errors import ObjectNotFoundError
from hack.bench import objects
from hack.bench.site import Plane, Site, each
from hack.cluster.machine import Process
from hack.cluster.waiting import wait_for

SMALL, LARGE = "1g.10gb", "7g.80gb"

_HASTENED = """
import importlib
import runpy
times = importlib.import_module("controller.times")
times.HOLD = times.HOLD[0] / {0}, times.HOLD[1]
times.OVERTAKEN_ONCE /= {0}
times.PLAN_IN_VAIN /= {0}
runpy.run_module("controller", run_name="__main__", alter_sys=True)
"""
"""Program of a controller whose limits for holding back slices are shorter by a factor."""


class Ground:
    """Nodes, claims with their pods, and what the controller needs for them."""

    def __init__(self, site: Site, controller: Process) -> None:
        self.api, self.nodes = site.api, site.nodes
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
            each(partial(self._delete, resource), names)

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


@contextlib.contextmanager
def prepared(plane: Plane, inventories: list[Inventory], *, hastened: int) -> Iterator[Ground]:
    """Nodes with these GPUs, and the controller ``hastened`` (see ``Load``)."""
    site = Site(plane, inventories)
    site.make_nodes()
    program = ("-c", _HASTENED.format(hastened))
    with site.controller("--no-leader-elect", program=program) as controller:
        ground = Ground(site, controller)
        ground.ask("first")
        wait_for("first allocation", lambda: ground.is_allocated("first"), timeout=120)
        yield ground
    site.api.close()
