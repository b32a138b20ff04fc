"""Packing of each placement policy: ``python -m hack.bench.placement``.

Requests are played by the product's own allocator (``hack/bench/play.py``), the same by all
policies: such as stay, that come and go, that queue, and a public trace
(``hack/bench/openb.py``). Figures are means over seeds, with the standard deviation. Loads are
offered memory slices over the fleet's.

``kube`` models what users have without the controller: LeastAllocated of kube-scheduler takes the
node with the fewest pods on which all fits, and there the first devices in name order.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import click

from dra.allocator.allocate import Allocator
from dra.allocator.problem import Decision, OpenRequest, Pick, Problem
from dra.allocator.score import POLICIES
from dra.gpu.geometry import Geometry
from hack.bench import openb
from hack.bench.objects import MIXES, geometry, sizes
from hack.bench.play import Ask, Played, Site, play

KUBE = "kube"
NAMES = (KUBE, *POLICIES)
QUEUE_MIX = (0.35, 0.0, 0.25, 0.25, 0.0, 0.05)
"""MIGBench's weights (1g, 2g, 3g, 7g: 35/25/25/5); they need not sum to one."""

_WARM = 4


def kube(allocator: Allocator, problem: Problem) -> Decision | None:
    """The node with the fewest pods, and there the first devices."""
    [claim] = problem.claims
    [want] = claim.wants
    fleet = allocator.fleet
    request = OpenRequest(claim.claim.ref, want)
    for name in sorted(fleet.nodes, key=lambda n: (len(fleet.claims_on(n)), n)):
        node, picks = fleet.nodes[name], list[Pick]()
        for state in node.gpus:
            usage = state.usage
            offers = fleet.kinds.match_kind(want.expressions, state.kind).offers
            for offer in offers if state.table is not None else ():
                while len(picks) < want.count and offer.profile and state.table:
                    moves = state.table.moves(usage, offer.profile)
                    if not moves:
                        break
                    usage = moves[0].after
                    picks.append(request.pick(state, offer, moves[0].placement))
        if len(picks) == want.count:
            return Decision(name, node.inventory.pool, tuple(picks))
    return None


def played(asks: Iterable[Ask], site: Site, policy: str) -> Played:
    """``asks`` by a policy, or by kube-scheduler's way."""
    if policy == KUBE:
        return play(asks, site, choose=kube)
    return play(asks, site, policy=policy)


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


Figures = Mapping[str, float]
Row = tuple[str, Figures]


def accepted(found: Played, shape: Geometry, *, since: float = 0.0) -> Figures:
    """Accepted requests and memory slices, in percent."""
    by_size = sizes(shape)
    fates = [f for f in found.fates if f.ask.at >= since]
    placed = [fate for fate in fates if fate.placed is not None]
    every, of_placed = (
        sum(by_size[f.ask.profile] * f.ask.count for f in each) for each in (fates, placed)
    )
    return {"requests": 100 * len(placed) / len(fates), "slices": 100 * of_placed / every}


def waits(found: Played) -> Figures:
    """Mean seconds until a request was placed, and free slices that none of those could use."""
    until = ((found.end if f.placed is None else f.placed) - f.ask.at for f in found.fates)
    return {"wait": fmean(until), "stranded": found.stranded}


def run_mix(seed: int, policy: str, *, scenario: str, product: str, gpus: int) -> Figures:
    """One seed of a scenario by a policy."""
    shape, result = geometry(product), dict[str, float]()
    lost = Site(shape, gpus, per_node=4, queues=False)
    if scenario == "fill":
        for share in (0.85, 1.0):
            asks = [fill(shape, mix, gpus=gpus, share=share, seed=seed) for mix in MIXES.values()]
            found = [accepted(played(each, lost, policy), shape) for each in asks]
            result |= {f"{k} {share:.0%}": fmean(f[k] for f in found) for k in found[0]}
    elif scenario == "steady":
        for load in (0.85, 1.0):
            asks = [steady(shape, mix, gpus=gpus, load=load, seed=seed) for mix in MIXES.values()]
            every = [accepted(played(each, lost, policy), shape, since=_WARM) for each in asks]
            result |= {f"{k} load {load}": fmean(f[k] for f in every) for k in every[0]}
    else:
        jobs = queue(shape, QUEUE_MIX, gpus=gpus, load=0.8, seed=seed)
        result |= waits(played(jobs, replace(lost, queues=True), policy))
    return result


def run_trace(seed: int, policy: str, *, path: Path, product: str, scenario: str) -> Figures:
    """The trace by a policy: in a random order until nothing fits, or at its own times."""
    shape = geometry(product)
    jobs = openb.read(path, shape)
    asks = [Ask(j.created, j.profile, j.lasts, j.count) for j in jobs]
    if scenario == "own times":
        gpus = math.ceil(0.9 * openb.peak(jobs, shape))
        result = played(asks, Site(shape, gpus, per_node=8, queues=True), policy)
        return {"GPUs": gpus, **waits(result)}
    if scenario == "parts":
        asks = [ask for ask in asks if ask.profile != jobs[0].whole]
    random.Random(seed).shuffle(asks)
    by_size = sizes(shape)
    total = sum(by_size[ask.profile] * ask.count for ask in asks)
    gpus = math.ceil(0.8 * total / shape.memory_slices)
    stay = [Ask(n, ask.profile, None, ask.count) for n, ask in enumerate(asks)]
    result = played(stay, Site(shape, gpus, per_node=8, queues=False), policy)
    used = accepted(result, shape)["slices"] * total / gpus / shape.memory_slices
    return {"GPUs": gpus, **accepted(result, shape), "slices in use": used}


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
            rows = {p: [*workers.map(run, seeds, [p] * len(seeds))] for p in NAMES}
            show(f"{name}: {product}, {len(seeds)} seeds, the same for all", rows)


if __name__ == "__main__":
    main()
