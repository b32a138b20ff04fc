"""Packing of each placement policy: ``python -m hack.bench.placement``.

All policies play the same requests in one run, on a fleet of equal GPUs: requests that stay, that
come and go, and that queue. Percentages are means over four request mixes unless a mix is named;
``lost`` is relative to kube-scheduler's way (``kube``). Loads are offered memory slices over the
fleet's; times are in mean lifetimes.

The policies and the index they work on are the controller's own. ``kube`` models what users have
without it: LeastAllocated of kube-scheduler takes the node with the fewest pods on which the slice
fits, and there the first device in name order.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import fmean
from typing import Any, TypeVar

import click

from dra.allocator.gpustate import GpuId
from dra.allocator.moves import MoveTable
from dra.allocator.score import POLICIES, Census, Demand, Situation, scarcity_weights
from dra.gpu.geometry import EMPTY, Occupant, Placement, Profile, Usage
from hack.bench.objects import MIXES, geometry, sizes

KUBE = "kube"
NAMES = (KUBE, *POLICIES)
QUEUE_MIX = (0.35, 0.0, 0.25, 0.25, 0.0, 0.05)
"""MIGBench's weights (1g, 2g, 3g, 7g: 35/25/25/5); they need not sum to one."""

T = TypeVar("T")
Table = dict[str, dict[str, float]]

QUEUES = ((8, 0.7, 1000), (32, 0.85, 2000))
"""GPUs, load and jobs of the queueing scenario."""


@dataclass(frozen=True, slots=True)
class Held:
    """A placed request."""

    gpu: GpuId
    profile: Profile
    placement: Placement


class Fleet:
    """``gpus`` equal GPUs, ``per_node`` a node, and what has been placed on them."""

    def __init__(self, table: MoveTable, policy: str, *, gpus: int, per_node: int = 4) -> None:
        self.table = table
        self._policy = policy
        self._demand = Demand()
        self._census = Census(table)
        self._usages: dict[GpuId, Usage] = {}
        self._held: dict[GpuId, list[Held]] = {
            GpuId(f"node-{i // per_node:03}", i % per_node): [] for i in range(gpus)
        }
        self._nodes: dict[str, list[GpuId]] = {}
        self._pods: dict[str, int] = {}
        for gpu in self._held:
            self._usages[gpu] = EMPTY
            self._census.add(EMPTY)
            self._nodes.setdefault(gpu.node, []).append(gpu)
            self._pods[gpu.node] = 0

    @property
    def active(self) -> int:
        """GPUs with at least one instance."""
        return sum(map(bool, self._held.values()))

    def observe(self, name: str) -> None:
        """Learn that a slice of profile ``name`` was asked for."""
        self._demand.observe(name)

    def place(self, name: str) -> Held | None:
        """Place one slice of profile ``name``; None when it fits nowhere."""
        profile = self.table.geometry.by_name(name)
        if profile is None:
            raise LookupError(f"this GPU has no profile {name!r}")
        chosen = self._kube(profile) if self._policy == KUBE else self._best(profile)
        if chosen is None:
            return None
        gpu, placement = chosen
        held = Held(gpu, profile, placement)
        self._held[gpu].append(held)
        self._pods[gpu.node] += 1
        self._settle(gpu)
        return held

    def free(self, held: Held) -> None:
        """Take a placed slice away."""
        self._held[held.gpu].remove(held)
        self._pods[held.gpu.node] -= 1
        self._settle(held.gpu)

    def _settle(self, gpu: GpuId) -> None:
        held = self._held[gpu]
        usage = self.table.geometry.usage(Occupant(h.placement, h.profile.id) for h in held)
        self._census.add(self._usages[gpu], count=-1)
        self._census.add(usage)
        self._usages[gpu] = usage

    def _best(self, profile: Profile) -> tuple[GpuId, Placement] | None:
        policy = POLICIES[self._policy]
        shares = self._demand.shares(self.table.geometry)
        weights = scarcity_weights(self._census, shares)
        first: dict[tuple[Usage, int], GpuId] = {}
        for gpu in sorted(self._held):
            first.setdefault((self._usages[gpu], len(self._held[gpu])), gpu)
        found = (
            (policy(Situation(usage, instances, weights), move), gpu, move.placement)
            for (usage, instances), gpu in first.items()
            for move in self.table.moves(usage, profile)
        )
        best = min(found, default=None)
        return best[1:] if best is not None else None

    def _kube(self, profile: Profile) -> tuple[GpuId, Placement] | None:
        for node in sorted(self._nodes, key=lambda n: (self._pods[n], n)):
            for gpu in self._nodes[node]:
                moves = self.table.moves(self._usages[gpu], profile)
                if moves:
                    return gpu, moves[0].placement
        return None


@dataclass(slots=True)
class Tally:
    """Offered and accepted requests, and the memory slices in them."""

    offered: int = 0
    accepted: int = 0
    slices_offered: int = 0
    slices_accepted: int = 0
    active: list[int] = field(default_factory=list)

    def count(self, slices: int, held: Held | None) -> None:
        """Count one request."""
        self.offered += 1
        self.slices_offered += slices
        if held is not None:
            self.accepted += 1
            self.slices_accepted += slices


def fill(fleet: Fleet, mix: tuple[float, ...], *, gpus: int, share: float, seed: int) -> Tally:
    """Requests that never leave, until ``share`` of the fleet's memory slices were asked for."""
    draw = random.Random(seed)
    by_size = sizes(fleet.table.geometry)
    limit = share * gpus * fleet.table.geometry.memory_slices
    tally = Tally()
    while True:
        name = draw.choices(list(by_size), mix)[0]
        if tally.slices_offered + by_size[name] > limit:
            return tally
        fleet.observe(name)
        tally.count(by_size[name], fleet.place(name))


def steady(  # noqa: PLR0913 - the parameters of the model
    fleet: Fleet,
    mix: tuple[float, ...],
    *,
    gpus: int,
    load: float,
    seed: int,
    warm_up: float = 4.0,
    measured: float = 4.0,
) -> Tally:
    """Poisson arrivals, exponential lifetimes of mean one; what fits nowhere is lost."""
    draw = random.Random(seed)
    by_size = sizes(fleet.table.geometry)
    mean = sum(w * s for w, s in zip(mix, by_size.values(), strict=True)) / sum(mix)
    rate = load * gpus * fleet.table.geometry.memory_slices / mean
    ends: list[tuple[float, int, Held]] = []
    order = count()
    tally = Tally()
    now = 0.0
    while True:
        now += draw.expovariate(rate)
        name = draw.choices(list(by_size), mix)[0]
        lifetime = draw.expovariate(1.0)
        if now > warm_up + measured:
            return tally
        while ends and ends[0][0] <= now:
            fleet.free(heapq.heappop(ends)[2])
        fleet.observe(name)
        held = fleet.place(name)
        if held is not None:
            heapq.heappush(ends, (now + lifetime, next(order), held))
        if now > warm_up:
            tally.count(by_size[name], held)
            tally.active.append(fleet.active)


def queue(  # noqa: PLR0913 - the parameters of the model
    fleet: Fleet, mix: tuple[float, ...], *, gpus: int, load: float, jobs: int, seed: int
) -> float:
    """Mean waiting time in seconds of ``jobs`` that wait, first come first served with backfill.

    Lifetimes are lognormal with a median of 600 s and sigma 0.8, as in MIGBench.
    """
    draw = random.Random(seed)
    by_size = sizes(fleet.table.geometry)
    sigma, median = 0.8, 600.0
    mean = sum(w * s for w, s in zip(mix, by_size.values(), strict=True)) / sum(mix)
    lifetime = median * math.exp(sigma * sigma / 2)
    rate = load * gpus * fleet.table.geometry.memory_slices / (mean * lifetime)
    arrivals: list[tuple[float, str, float]] = []
    at = 0.0
    for _ in range(jobs):
        at += draw.expovariate(rate)
        name = draw.choices(list(by_size), mix)[0]
        arrivals.append((at, name, median * math.exp(draw.gauss(0.0, sigma))))
    waited = 0.0
    waiting: list[tuple[float, str, float]] = []
    ends: list[tuple[float, int, Held]] = []
    order = count()
    pending = iter([*arrivals, (math.inf, "", 0.0)])
    upcoming = next(pending)
    while waiting or ends or upcoming[0] < math.inf:
        if ends and ends[0][0] <= upcoming[0]:
            now, _, held = heapq.heappop(ends)
            fleet.free(held)
        else:
            now = upcoming[0]
            if now == math.inf:
                raise RuntimeError(f"{waiting[0][1]} fits not even on an empty fleet")
            fleet.observe(upcoming[1])
            waiting.append(upcoming)
            upcoming = next(pending)
        still: list[tuple[float, str, float]] = []
        blocked: set[str] = set()
        for job in waiting:
            placed = None if job[1] in blocked else fleet.place(job[1])
            if placed is None:
                blocked.add(job[1])
                still.append(job)
            else:
                waited += now - job[0]
                heapq.heappush(ends, (now + job[2], next(order), placed))
        waiting = still
    return waited / jobs


def percent(tallies: list[Tally]) -> tuple[float, float]:
    """Accepted requests and accepted slices, in percent, pooled over replications."""
    requests = sum(t.accepted for t in tallies) / sum(t.offered for t in tallies)
    slices = sum(t.slices_accepted for t in tallies) / sum(t.slices_offered for t in tallies)
    return 100 * requests, 100 * slices


def show(title: str, table: Table) -> None:
    """Print one table: a row per policy."""
    columns = list(next(iter(table.values())))
    width = max(map(len, ("policy", *table))) + 1
    click.echo(f"\n{title}\n{'policy':{width}}" + "".join(f"{c:>22}" for c in columns))
    for policy, row in table.items():
        click.echo(f"{policy:{width}}" + "".join(f"{row[c]:>22.2f}" for c in columns))


def _played(
    play: Callable[..., T], weights: tuple[float, ...], fleet: Callable[[], Fleet], **how: Any
) -> list[T]:
    """Outcomes of a scenario, each on a new fleet and with a seed of its own."""
    count = how.pop("replications")
    return [play(fleet(), weights, seed=seed, **how) for seed in range(count)]


def run_fill(table: MoveTable, **size: int) -> Table:
    """Accepted requests when 85 % and 100 % of the capacity were asked for."""
    result: Table = {}
    for policy in NAMES:
        fleet = partial(Fleet, table, policy, gpus=size["gpus"])
        result[policy] = {
            f"{mix} {share:.0%}": percent(_played(fill, weights, fleet, share=share, **size))[0]
            for share in (0.85, 1.0)
            for mix, weights in MIXES.items()
        }
    return result


def run_steady(table: MoveTable, **size: int) -> Table:
    """Accepted requests and slices in the steady state, means over the mixes."""
    result: Table = {}
    for policy in NAMES:
        fleet = partial(Fleet, table, policy, gpus=size["gpus"])
        row = result.setdefault(policy, {})
        for load in (0.85, 1.0):
            pairs = [percent(_played(steady, m, fleet, load=load, **size)) for m in MIXES.values()]
            row[f"requests load {load}"] = fmean(p[0] for p in pairs)
            row[f"slices load {load}"] = fmean(p[1] for p in pairs)
    for row in result.values():
        lost = 100 - row["requests load 0.85"]
        row["lost / kube's"] = lost / (100 - result["kube"]["requests load 0.85"])
    return result


def run_active(table: MoveTable, **size: int) -> Table:
    """GPUs in use at load 0.6 of the uniform mix, where everything is accepted."""
    result: Table = {}
    for policy in NAMES:
        fleet = partial(Fleet, table, policy, gpus=size["gpus"])
        tallies = _played(steady, MIXES["uniform"], fleet, load=0.6, **size)
        result[policy] = {"GPUs in use": fmean(fmean(tally.active) for tally in tallies)}
    return result


def run_queue(table: MoveTable, *, gpus: int, replications: int) -> Table:  # noqa: ARG001
    """Mean waiting time of pods that queue, relative to kube-scheduler's way."""
    result: Table = {policy: {} for policy in NAMES}
    for number, load, jobs in QUEUES:
        how = {"gpus": number, "load": load, "jobs": jobs, "replications": replications}
        for policy in NAMES:
            fleet = partial(Fleet, table, policy, gpus=number)
            waits = _played(queue, QUEUE_MIX, fleet, **how)
            result[policy][f"{number} GPUs load {load}"] = fmean(waits)
    base = dict(result["kube"])
    return {
        p: {c: row[c] / base[c] if base[c] else math.nan for c in row} for p, row in result.items()
    }


SCENARIOS: dict[str, tuple[str, Callable[..., Table]]] = {
    "fill": ("nothing leaves: accepted requests, %", run_fill),
    "steady": ("arrivals and departures: accepted, %", run_steady),
    "active": ("load 0.6, uniform", run_active),
    "queue": ("mean waiting time, relative to kube", run_queue),
}


@click.command()
@click.option("--replications", default=40, show_default=True, help="Seeds per policy and mix.")
@click.option("--gpus", default=100, show_default=True, help="GPUs, four a node.")
@click.option("--product", default="A100-SXM4-80GB", show_default=True)
@click.option("--scenario", "scenarios", multiple=True, type=click.Choice(list(SCENARIOS)))
def main(replications: int, gpus: int, product: str, scenarios: tuple[str, ...]) -> None:
    """Compare the placement policies."""
    table = MoveTable(geometry(product))
    click.echo(f"{gpus} x {product}, {replications} replications, the same seeds for all")
    for name in scenarios or tuple(SCENARIOS):
        title, run = SCENARIOS[name]
        show(f"{name}: {title}", run(table, gpus=gpus, replications=replications))


if __name__ == "__main__":
    main()
