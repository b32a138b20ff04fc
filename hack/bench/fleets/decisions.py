"""A cluster index with pods that come and go, to time decisions on."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import NamedTuple

from controller.cluster.changes import MIRRORED
from controller.cluster.cluster import Cluster
from controller.cluster.trimming.trimming import Trimmer, remembering
from dra.allocator.allocate import Allocator
from dra.allocator.explain.judge import explain
from dra.allocator.explain.message import as_obstacle
from dra.allocator.pod_problem import examine
from dra.allocator.problem import Decision, Problem
from dra.cel.kinds import Kinds
from dra.cel.selectors import Selectors
from dra.claims.allocation import AllocatedDevice, write_allocation
from dra.claims.classes import generated_classes
from dra.claims.reader import Reader
from dra.common.resources import (
    DEVICE_CLASSES,
    MIG_NODES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    Obj,
    Resource,
)
from dra.gpu.geometry import Geometry
from dra.gpu.mignode import to_mignode
from dra.gpu.names import DEFAULT_DRIVER
from dra.kube.reflector import Store
from hack.bench.control import objects


class Timed(NamedTuple):
    """Milliseconds of a decision: by the clock, and of the processor alone."""

    wall: float
    cpu: float
    placed: bool


class Bench:
    """A cluster of ``nodes`` equal nodes; requests are drawn from ``mix``."""

    def __init__(self, shape: Geometry, mix: Mapping[str, float], *, nodes: int, seed: int) -> None:
        self.nodes = nodes
        self._draw = random.Random(seed)
        self._mix = mix
        self._count = 0
        self._held: list[tuple[Obj, Obj]] = []
        self._mirrors = {r: (Store(remembering(r)), Trimmer(r, DEFAULT_DRIVER)) for r in MIRRORED}
        kinds = Kinds(Selectors())
        self.cluster = Cluster(DEFAULT_DRIVER, objects.FINALIZER, kinds)
        self._reader = Reader(DEFAULT_DRIVER, kinds, self.cluster.classes)
        self._allocator = Allocator(self.cluster.fleet, self.cluster.hosts)
        for number in range(nodes):
            self._add_node(f"node-{number:04}", shape)
        for body in generated_classes(DEFAULT_DRIVER, mix):
            self.cluster.set_class(self._stored(DEVICE_CLASSES, body))

    def place(self, spec: Obj | None = None) -> Timed:
        """Decide for a new pod, whose claim has ``spec`` or one slice of the mix, and allocate.

        What cannot be allocated is explained, which counts.
        """
        pod, claim = self._pod(spec or self._one())
        self.cluster.set_claim(claim)
        self.cluster.set_pod(pod)
        waiting = self.cluster.pods["default", pod["metadata"]["name"]]
        started, began = time.perf_counter(), time.thread_time()
        found = examine(waiting, self.cluster, self._reader).found
        if not isinstance(found, Problem):
            raise TypeError(f"the benchmark's pod is no problem: {found}")
        outcome = self._allocator.outcome(found)
        decision = outcome.decision
        if decision is None:
            as_obstacle(explain(found, self._allocator, given_up=outcome.given_up))
        timed = Timed(
            wall=1000 * (time.perf_counter() - started),
            cpu=1000 * (time.thread_time() - began),
            placed=decision is not None,
        )
        if decision is None:
            self._remove(pod, claim)
        else:
            self._allocate(pod, claim, decision)
        return timed

    def release(self) -> None:
        """End a random pod."""
        index = self._draw.randrange(len(self._held))
        self._held[index], self._held[-1] = self._held[-1], self._held[index]
        self._remove(*self._held.pop())

    @property
    def claims(self) -> int:
        """Allocated claims."""
        return len(self._held)

    @property
    def share(self) -> float:
        """Memory slices in use."""
        states = [s for n in self.cluster.fleet.nodes.values() for s in n.gpus]
        return sum(s.usage.mask.bit_count() for s in states) / (8 * len(states))

    def _allocate(self, pod: Obj, claim: Obj, decision: Decision) -> None:
        devices = [
            AllocatedDevice(p.request, DEFAULT_DRIVER, decision.pool, p.device)
            for p in decision.picks
        ]
        allocation = write_allocation(devices, decision.node, timestamp="2026-01-01T00:00:00Z")
        claim = self._stored(RESOURCE_CLAIMS, {**claim, "status": {"allocation": allocation}})
        pod = self._stored(PODS, {**pod, "spec": {**pod["spec"], "nodeName": decision.node}})
        self.cluster.set_claim(claim)
        self.cluster.set_pod(pod)
        self.cluster.take_effects()
        for pick in decision.picks:
            self.cluster.geometry_indexes.observe(pick.profile)
        self._held.append((pod, claim))

    def _remove(self, pod: Obj, claim: Obj) -> None:
        self._mirrors[PODS][0].remove(pod)
        self._mirrors[RESOURCE_CLAIMS][0].remove(claim)
        self.cluster.remove_pod(("default", pod["metadata"]["name"]))
        self.cluster.remove_claim(("default", claim["metadata"]["name"]))
        self.cluster.take_effects()

    def _add_node(self, name: str, shape: Geometry) -> None:
        body = to_mignode(objects.inventory(name, shape))
        self.cluster.set_mignode(self._stored(MIG_NODES, body))
        self.cluster.set_node(self._stored(NODES, objects.node(name)))

    def _one(self) -> Obj:
        (profile,) = self._draw.choices([*self._mix], [*self._mix.values()])
        return objects.claim_spec(profile)

    def _pod(self, spec: Obj) -> tuple[Obj, Obj]:
        name = f"pod-{self._count}"
        claim = {**objects.claim(name, next(iter(self._mix))), "spec": spec}
        claim["metadata"]["finalizers"] = [objects.FINALIZER]
        pod = objects.pod(name, resourceClaimName=name)
        return self._stored(PODS, pod), self._stored(RESOURCE_CLAIMS, claim)

    def _stored(self, resource: Resource, body: Obj) -> Obj:
        """``body`` as the controller's mirrors hand it on, once they know it."""
        self._count += 1
        store, trim = self._mirrors[resource]
        obj = trim(objects.as_stored(resource, body, self._count))
        store.put(obj)
        return obj
