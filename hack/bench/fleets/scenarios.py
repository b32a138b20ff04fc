"""Scenarios of the placement benchmark: requests that stay, that come and go, and that queue.

Every scenario draws its requests from ``random.Random(seed)`` alone, so that all policies see the
same requests. Loads are offered memory slices over the fleet's; times are in mean lifetimes.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

from dra.gpu.geometry import Geometry
from hack.bench.fleets.fleet import Fleet, Held

MIXES: Mapping[str, tuple[float, ...]] = {
    "uniform": (1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6, 1 / 6),
    "skewsmall": (0.30, 0.25, 0.20, 0.10, 0.10, 0.05),
    "skewbig": (0.05, 0.10, 0.10, 0.20, 0.25, 0.30),
    "bimodal": (0.30, 0.15, 0.05, 0.05, 0.15, 0.30),
}
"""Shares of 1g, 1g with double memory, 2g, 3g, 4g and 7g."""

QUEUE_MIX = (0.35, 0.0, 0.25, 0.25, 0.0, 0.05)
"""MIGBench's weights (1g, 2g, 3g, 7g: 35/25/25/5); they need not sum to one."""


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


def sizes(geometry: Geometry) -> dict[str, int]:
    """Profile name to memory slices, in the order of ``MIXES``: by compute, then memory."""
    ordered = sorted(geometry.profiles, key=lambda p: (p.compute_slices, p.memory_slices))
    return {p.name: p.memory_slices for p in ordered}


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
