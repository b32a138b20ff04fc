"""Duration of the controller's decision: ``python -m hack.bench.allocate``.

The controller's own index and allocator, fed with objects as the API server sends them: nodes of
eight GPUs filled to a share with claims, then one pod after another is decided, allocated and an
old one released. Claims for one slice come first, then others, which are listed in ``asked``; at
last plans by which pods move or end for one slice, or four, of each profile.
Compare the rows of one run; milliseconds are of this machine, ``cpu`` those that the decision
itself took of it, whatever else was running.
"""

from __future__ import annotations

import gc
import random
import resource
import time
from collections.abc import Mapping
from statistics import quantiles
from typing import Any, NamedTuple

import click
import msgspec

from controller.cluster.cluster import Cluster
from controller.cluster.decoder import Decoder, remembering
from controller.leader.mirrors import MIRRORED
from dra.allocator.allocate import Allocator
from dra.allocator.explain.answers import as_obstacle
from dra.allocator.explain.judge import explain
from dra.allocator.planner import find_plan
from dra.allocator.problem import Decision, Problem, examine
from dra.allocator.sites import Ending, Mover
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
from dra.gpu.names import DEFAULT_DRIVER, class_name
from dra.kube.reflector import Store
from hack.bench import objects
from hack.bench.objects import MIXES, geometry, sizes

PARENT = f"{DEFAULT_DRIVER}/parentUUID"


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
        self._mirrors = {r: (Store(remembering(r)), Decoder(r, DEFAULT_DRIVER)) for r in MIRRORED}
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

    def plan(self, profile: str, number: int, *, ends: bool) -> Timed:
        """Plan room for ``number`` slices by the moves, or the ends, of any of the pods."""
        fleet, movers = self.cluster.fleet, list[Mover]()
        for state in (state for node in fleet.nodes.values() for state in node.gpus):
            for holding in state.holdings:
                held = holding.occupant
                shape = state.gpu.geometry
                known = shape.by_id(held.profile_id or 0) if held and shape else None
                if held is not None and known is not None:
                    ending = Ending(self._draw.randrange(5)) if ends else None
                    uid, since = holding.claim_uid, self._draw.random()
                    movers.append(Mover(uid, state.id, known.name, held, since, ending))
        started, began = time.perf_counter(), time.thread_time()
        found = find_plan(fleet, [profile] * number, movers)
        return Timed(
            wall=1000 * (time.perf_counter() - started),
            cpu=1000 * (time.thread_time() - began),
            placed=found.plan is not None,
        )

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
            self.cluster.fleet.demand.observe(pick.profile)
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
        store, decode = self._mirrors[resource]
        stored = objects.as_stored(resource, body, self._count)
        obj = decode(msgspec.Raw(msgspec.json.encode(stored)))
        store.put(obj)
        return obj


def asked(profiles: list[str]) -> Mapping[str, Obj | None]:
    """The specs of claims to time, by a word for each; None is one slice of the mix."""
    small, *_, large = profiles
    four, two = (next((p for p in profiles if p.startswith(n)), small) for n in ("4g", "2g"))
    least = "device.capacity['mig.dra.dev'].memory.compareTo(quantity('12Gi')) >= 0"
    by_size = {"deviceClassName": DEFAULT_DRIVER, "selectors": [{"cel": {"expression": least}}]}
    either = [
        {"name": name, "deviceClassName": class_name(profile)}
        for name, profile in (("rather", large), ("or", small))
    ]
    return {
        "slice": None,
        "together": _spec(_one("a", four), _one("b", two), _one("c", small), matchAttribute=PARENT),
        "apart": _spec(_one("a", two), _one("b", two), distinctAttribute=PARENT),
        "either": _spec({"name": "a", "firstAvailable": either}),
        "by-size": _spec({"name": "a", "exactly": by_size}),
        "refused": _spec(_one("a", large, count=9)),
    }


def _one(name: str, profile: str, **more: Any) -> Obj:
    return {"name": name, "exactly": {"deviceClassName": class_name(profile), **more}}


def _spec(*requests: Obj, **constraint: str) -> Obj:
    constraints = {"constraints": [constraint]} if constraint else {}
    return {"devices": {"requests": [*requests], **constraints}}


def _row(bench: Bench, what: str, times: list[Timed]) -> str:
    wall = quantiles((t.wall for t in times), n=100)
    cpu = quantiles((t.cpu for t in times), n=100)
    placed = sum(t.placed for t in times) / len(times)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return (
        f"{bench.nodes:>7}{bench.claims:>8}{bench.share:>8.0%}{what:>10}{placed:>8.0%}"
        f"{wall[49]:>9.2f}{wall[98]:>9.2f}{cpu[49]:>9.2f}{cpu[98]:>9.2f}{most >> 10:>6}"
    )


HEADER = "nodes claims in-use asked placed p50-ms p99-ms cpu-p50 cpu-p99 MiB"


@click.command()
@click.option("--nodes", "sizes_", multiple=True, type=int, help="Nodes of eight GPUs; repeatable.")
@click.option("--share", default=0.7, show_default=True, help="Memory slices in use.")
@click.option("--decisions", default=5000, show_default=True, help="A tenth of the rarer claims.")
@click.option("--product", default="A100-SXM4-80GB", show_default=True)
@click.option("--profile", default="", help="Claims are for this one alone, not for a mix.")
def main(
    *, sizes_: tuple[int, ...], share: float, decisions: int, product: str, profile: str
) -> None:
    """Time decisions in clusters of several sizes."""
    shape = geometry(product)
    mix = dict(zip(sizes(shape), MIXES["uniform"], strict=True))
    click.echo("{:>7}{:>8}{:>8}{:>10}{:>8}{:>9}{:>9}{:>9}{:>9}{:>6}".format(*HEADER.split()))
    for nodes in sizes_ or (10, 100, 1000):
        bench = Bench(shape, {profile: 1.0} if profile else mix, nodes=nodes, seed=nodes)
        while bench.share < share:
            for _ in range(max(1, nodes // 10)):
                bench.place()
        gc.collect()
        gc.freeze()  # as the controller does once it has mirrored the cluster
        for what, spec in asked([*mix]).items():
            times = []
            for _ in range(decisions if spec is None else max(2, decisions // 10)):
                times.append(bench.place(spec))
                while bench.share > share:
                    bench.release()
            click.echo(_row(bench, what, times))
        for what in ("moves", "ends"):
            wanted = [(profile, number) for profile in mix for number in (1, 4)]
            times = [bench.plan(*each, ends=what == "ends") for each in wanted]
            click.echo(_row(bench, what, times))


if __name__ == "__main__":
    main()
