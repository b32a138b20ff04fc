"""Sequences of requests, and the fleets that they are made for, by name.

Loads are offered memory slices over the fleet's. Lifetimes have a mean of one, but in the queue and
in the trace, whose times are seconds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dra.gpu.geometry import Geometry
from hack.bench import openb
from hack.bench.objects import MIXES, geometry, sizes
from hack.bench.play import Ask

A100, A30, B200 = map(geometry, ("A100-SXM4-80GB", "A30", "B200"))
"""The GPUs of the scenes."""

Mix = Sequence[float]
"""Weights of profiles in the order of ``sizes``; they need not sum to one."""

OTHER_MIXES: Mapping[str, Mix] = {
    "migbench": (0.35, 0.0, 0.25, 0.25, 0.0, 0.05),  # of MIGBench's queue
    "wholes": (0.1, 0.02, 0.1, 0.1, 0.08, 0.6),
    # Not looked at while the policy was sought.
    "inference": (0.5, 0.2, 0.2, 0.1, 0.0, 0.0),
    "research": (0.0, 0.1, 0.3, 0.3, 0.1, 0.2),
    "batch": (0.2, 0.0, 0.0, 0.1, 0.4, 0.3),
}
_PARTS = (31, 1, 276, 393, 899, 0)
"""Openb's pods that ask for parts of a GPU."""
_SEVERAL = (0.3, 0.1, 0.25, 0.2, 0.1, 0.05)
_COUNTS = (1, 1, 1, 1, 2, 2, 2, 3, 3, 4)
_NOTEBOOKS, _TRAINING = (0.6, 0.1, 0.25, 0.05, 0.0, 0.0), (0.0, 0.0, 0.1, 0.2, 0.2, 0.5)
_A30_MIX = (0.5, 0.3, 0.2)
_WARM, _UNTIL = 4.0, 12.0


@dataclass(frozen=True)
class Scene:
    """Requests for a fleet: the geometries of each node's GPUs.

    Who finds no room waits if it ``queues``. Figures are of the requests from ``since`` on.
    """

    nodes: Sequence[Sequence[Geometry]]
    asks: Sequence[Ask] = field(repr=False)
    queues: bool = False
    since: float = 0.0


Maker = Callable[[int], Scene]
"""Makes a scene from a seed."""


def equal(shape: Geometry, gpus: int) -> list[list[Geometry]]:
    """Nodes of eight equal GPUs; the last one may have fewer."""
    return [[shape] * min(8, gpus - first) for first in range(0, gpus, 8)]


def fill(mix: Mix, share: float, seed: int, *, gpus: int = 96) -> Scene:
    """Requests that never leave, until ``share`` of the fleet's memory slices were asked for."""
    draw, known, by_size = random.Random(seed), list(sizes(A100)), sizes(A100)
    asks, offered = list[Ask](), 0
    while True:
        [name] = draw.choices(known, mix)
        offered += by_size[name]
        if offered > share * gpus * A100.memory_slices:
            return Scene(equal(A100, gpus), asks)
        asks.append(Ask(len(asks), name, None))


def steady(
    mixes: Sequence[Mix], load: float, seed: int, *, shape: Geometry = A100, gpus: int = 96
) -> Scene:
    """Poisson arrivals, exponential lifetimes; each unit of time has the next of ``mixes``."""
    draw, known = random.Random(seed), list(sizes(shape))
    rates = [load * gpus * shape.memory_slices / _mean(mix, shape) for mix in mixes]
    asks, now = list[Ask](), 0.0
    while now < _UNTIL:
        now += draw.expovariate(rates[int(now) % len(mixes)])
        [name] = draw.choices(known, mixes[int(now) % len(mixes)])
        asks.append(Ask(now, name, draw.expovariate(1.0)))
    return Scene(equal(shape, gpus), asks, since=_WARM)


def several(load: float, seed: int) -> Scene:
    """As ``steady``, claims of one to four slices that have to be on one node."""
    draw, mean_count = random.Random(seed), sum(_COUNTS) / len(_COUNTS)
    alone = steady([_SEVERAL], load / mean_count, seed)
    asks = [Ask(a.at, a.profile, a.lasts, draw.choice(_COUNTS)) for a in alone.asks]
    return Scene(alone.nodes, asks, since=_WARM)


def mixed(load: float, seed: int) -> Scene:
    """Half the nodes have A100, half A30; each request is for one of the two."""
    halves = [
        steady([mix], load, seed, shape=shape, gpus=48)
        for mix, shape in ((MIXES["uniform"], A100), (_A30_MIX, A30))
    ]
    asks = sorted((a for half in halves for a in half.asks), key=lambda a: a.at)
    return Scene([n for half in halves for n in half.nodes], asks, since=_WARM)


def queue(load: float, seed: int, *, gpus: int = 8, each: int = 100) -> Scene:
    """Jobs that wait; lifetimes are lognormal, median 600 s, sigma 0.8, as in MIGBench."""
    draw, sigma, median, mix = random.Random(seed), 0.8, 600.0, OTHER_MIXES["migbench"]
    mean = _mean(mix, A100) * median * math.exp(sigma * sigma / 2)
    asks, now = list[Ask](), 0.0
    for _ in range(each * gpus):
        now += draw.expovariate(load * gpus * A100.memory_slices / mean)
        [name] = draw.choices(list(sizes(A100)), mix)
        asks.append(Ask(now, name, median * math.exp(draw.gauss(0.0, sigma))))
    return Scene(equal(A100, gpus), asks, queues=True)


def trace(path: Path, seed: int, *, wholes: bool, asked: float) -> Scene:
    """The trace in a random order; nothing leaves, ``asked`` times the fleet is asked for."""
    jobs = openb.read(path, A100)
    kept = [job for job in jobs if wholes or job.profile != job.whole]
    random.Random(seed).shuffle(kept)
    total = sum(sizes(A100)[job.profile] * job.count for job in kept)
    gpus = math.ceil(total / asked / A100.memory_slices)
    return Scene(equal(A100, gpus), [Ask(n, j.profile, None, j.count) for n, j in enumerate(kept)])


def own_times(path: Path, seed: int, *, hours: float | None = None) -> Scene:
    """The trace at its own times, waiting on nine tenths of the GPUs of its peak.

    With ``hours`` all arrive in these, at random times, and keep what they get as long as they did;
    who finds no room goes.
    """
    draw, jobs = random.Random(seed), openb.read(path, A100)
    if hours is not None:
        jobs = openb.moved(jobs, [draw.uniform(0.0, hours * 3600) for _ in jobs])
    gpus = math.ceil(0.9 * openb.peak(jobs, A100))
    asks = [Ask(j.created, j.profile, j.lasts, j.count) for j in jobs]
    return Scene(equal(A100, gpus), asks, queues=hours is None)


def _mean(mix: Mix, shape: Geometry) -> float:
    return sum(w * s for w, s in zip(mix, sizes(shape).values(), strict=True)) / sum(mix)


def scenes(path: Path | None) -> dict[str, Maker]:
    """By name, the scenes; those of the trace if there is one."""
    mixes = {**MIXES, **OTHER_MIXES}
    found: dict[str, Maker] = {}
    for load in (0.6, 0.85, 1.0, 1.2):
        found |= {f"{name} {load}": partial(steady, [mix], load) for name, mix in mixes.items()}
        found[f"hourly {load}"] = partial(steady, [_NOTEBOOKS, _TRAINING], load)
        found[f"claims of 1 to 4 {load}"] = partial(several, load)
        found[f"A30 {load}"] = partial(steady, [_A30_MIX], load, shape=A30)
        found[f"A100 and A30 {load}"] = partial(mixed, load)
    for name, shape, gpus in (("8", A100, 8), ("800", A100, 800), ("96 B200", B200, 96)):
        one = partial(steady, [MIXES["uniform"]], 1.0, shape=shape, gpus=gpus)
        found[f"uniform 1.0, {name} GPUs"] = one
    for share in (1.0, 1.2):
        found |= {
            f"{name} filled {share}": partial(fill, mix, share) for name, mix in mixes.items()
        }
    found |= {f"openb's parts {load}": partial(steady, [_PARTS], load) for load in (0.6, 1.0)}
    found |= {f"queue {load}": partial(queue, load) for load in (0.8, 0.9)}
    if path is None:
        return found
    for asked in (1.0, 1.25):
        found[f"openb {asked}"] = partial(trace, path, wholes=True, asked=asked)
        found[f"openb without wholes {asked}"] = partial(trace, path, wholes=False, asked=asked)
    found["openb in 8 h"] = partial(own_times, path, hours=8.0)
    found["openb in 24 h"] = partial(own_times, path, hours=24.0)
    found["openb at its times"] = partial(own_times, path)
    return found
