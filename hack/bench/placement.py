"""Packing of each placement policy: ``python -m hack.bench.placement``.

Requests that stay, that come and go, that queue, and a public trace (``hack/bench/openb.py``), each
sequence placed by all policies (``hack/bench/peers.py``). Figures are means over seeds, with the
standard deviation. Loads are offered memory slices over the fleet's.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import click

from dra.gpu.geometry import Geometry
from hack.bench import openb
from hack.bench.fleet import Fleet
from hack.bench.objects import MIXES, geometry, sizes
from hack.bench.peers import PEERS
from hack.bench.play import Ask, Figures, Played, play

QUEUE_MIX = (0.35, 0.0, 0.25, 0.25, 0.0, 0.05)
"""MIGBench's weights (1g, 2g, 3g, 7g: 35/25/25/5); they need not sum to one."""

_WARM = 4


def fleet_of(shape: Geometry, gpus: int, per_node: int) -> Fleet:
    """A fleet of equal GPUs."""
    return Fleet([[shape] * min(per_node, gpus - first) for first in range(0, gpus, per_node)])


def _names(mix: Sequence[float], shape: Geometry, draw: random.Random) -> Callable[[], str]:
    known = list(sizes(shape))
    return lambda: draw.choices(known, mix)[0]


def fill(shape: Geometry, mix: Sequence[float], *, gpus: int, share: float, seed: int) -> list[Ask]:
    """Requests that never leave, until ``share`` of the fleet's memory slices were asked for."""
    draw_one, by_size = _names(mix, shape, random.Random(seed)), sizes(shape)
    asks, offered = list[Ask](), 0
    while True:
        name = draw_one()
        offered += by_size[name]
        if offered > share * gpus * shape.memory_slices:
            return asks
        asks.append(Ask(len(asks), name, None))


def steady(
    shape: Geometry, mix: Sequence[float], *, gpus: int, load: float, seed: int
) -> list[Ask]:
    """Poisson arrivals, exponential lifetimes of mean one; the first four are a warm-up."""
    draw = random.Random(seed)
    draw_one, rate, asks, now = _names(mix, shape, draw), _rate(shape, mix, gpus, load), [], 0.0
    while now < 2 * _WARM:
        now += draw.expovariate(rate)
        asks.append(Ask(now, draw_one(), draw.expovariate(1.0)))
    return asks


def queue(shape: Geometry, mix: Sequence[float], *, gpus: int, load: float, seed: int) -> list[Ask]:
    """Jobs that wait; lifetimes are lognormal, median 600 s, sigma 0.8, as in MIGBench."""
    draw, sigma, median = random.Random(seed), 0.8, 600.0
    rate = _rate(shape, mix, gpus, load) / (median * math.exp(sigma * sigma / 2))
    draw_one, asks, now = _names(mix, shape, draw), list[Ask](), 0.0
    for _ in range(20 * gpus):
        now += draw.expovariate(rate)
        asks.append(Ask(now, draw_one(), median * math.exp(draw.gauss(0.0, sigma))))
    return asks


def _rate(shape: Geometry, mix: Sequence[float], gpus: int, load: float) -> float:
    mean = sum(w * s for w, s in zip(mix, sizes(shape).values(), strict=True)) / sum(mix)
    return load * gpus * shape.memory_slices / mean


def run_mix(seed: int, policy: str, *, scenario: str, product: str, gpus: int) -> Figures:
    """One seed of a scenario by a policy."""
    shape, result = geometry(product), dict[str, float]()

    def run(asks: Iterable[Ask], *, queues: bool = False, since: float = 0.0) -> Played:
        fleet = fleet_of(shape, gpus, per_node=4)
        return play(asks, fleet, PEERS[policy](fleet), queues=queues, since=since)

    if scenario == "fill":
        for share in (0.85, 1.0):
            asks = [fill(shape, mix, gpus=gpus, share=share, seed=seed) for mix in MIXES.values()]
            found = [run(each).accepted for each in asks]
            result |= {f"{k} {share:.0%}": fmean(f[k] for f in found) for k in found[0]}
    elif scenario == "steady":
        for load in (0.85, 1.0):
            asks = [steady(shape, mix, gpus=gpus, load=load, seed=seed) for mix in MIXES.values()]
            every = [run(each, since=_WARM).accepted for each in asks]
            result |= {f"{k} load {load}": fmean(f[k] for f in every) for k in every[0]}
    else:
        jobs = queue(shape, QUEUE_MIX, gpus=gpus, load=0.8, seed=seed)
        result |= run(jobs, queues=True).wait
    return result


def run_trace(seed: int, policy: str, *, path: Path, product: str, scenario: str) -> Figures:
    """The trace by a policy: in a random order until nothing fits, or at its own times."""
    shape = geometry(product)
    jobs = openb.read(path, shape)
    asks = [Ask(j.created, j.profile, j.lasts, j.count) for j in jobs]
    if scenario == "own times":
        gpus = math.ceil(0.9 * openb.peak(jobs, shape))
        fleet = fleet_of(shape, gpus, per_node=8)
        return {"GPUs": gpus, **play(asks, fleet, PEERS[policy](fleet), queues=True).wait}
    if scenario == "parts":
        asks = [ask for ask in asks if ask.profile != jobs[0].whole]
    random.Random(seed).shuffle(asks)
    by_size = sizes(shape)
    total = sum(by_size[ask.profile] * ask.count for ask in asks)
    gpus = math.ceil(0.8 * total / shape.memory_slices)
    stay = [Ask(n, ask.profile, None, ask.count) for n, ask in enumerate(asks)]
    fleet = fleet_of(shape, gpus, per_node=8)
    accepted = play(stay, fleet, PEERS[policy](fleet)).accepted
    used = accepted["slices"] * total / gpus / shape.memory_slices
    return {"GPUs": gpus, **accepted, "slices in use": used}


def show(title: str, rows: Mapping[str, Sequence[Figures]]) -> None:
    """Print one table: a row per policy, of each figure the mean and the standard deviation."""
    columns = list(next(iter(rows.values()))[0])
    click.echo(f"\n{title}\n{'policy':10}" + "".join(f"{c:>22}" for c in columns))
    for policy, found in rows.items():
        cells = []
        for column in columns:
            values = [figures[column] for figures in found]
            spread = stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{fmean(values):.2f} ± {spread:.2f}")
        click.echo(f"{policy:10}" + "".join(f"{cell:>22}" for cell in cells))


SCENARIOS = ("fill", "steady", "queue")
OF_TRACE = ("all", "parts", "own times")


@click.command()
@click.option("--replications", default=20, show_default=True, help="Seeds, or orders of a trace.")
@click.option("--gpus", default=100, show_default=True, help="GPUs, four a node; not of a trace.")
@click.option("--product", default="A100-SXM4-80GB", show_default=True)
@click.option("--scenario", "scenarios", multiple=True, type=click.Choice([*SCENARIOS, *OF_TRACE]))
@click.option("--trace", type=click.Path(path_type=Path), help="openb_pod_list_default.csv.")
def main(
    replications: int, gpus: int, product: str, scenarios: tuple[str, ...], trace: Path | None
) -> None:
    """Compare the placement policies."""
    known = SCENARIOS if trace is None else OF_TRACE
    with ProcessPoolExecutor(2) as workers:
        for name in scenarios or known:
            run: Callable[[int, str], Figures]
            if trace is None:
                run = partial(run_mix, scenario=name, product=product, gpus=gpus)
            else:
                run = partial(run_trace, path=trace, product=product, scenario=name)
            seeds = range(1 if name == "own times" else replications)
            rows = {p: [*workers.map(run, seeds, [p] * len(seeds))] for p in PEERS}
            show(f"{name}: {product}, {len(seeds)} seeds, the same for all", rows)


if __name__ == "__main__":
    main()
