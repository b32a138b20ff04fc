"""Pods bound per second on a real control plane: ``python -m hack.bench.cluster``.

Our controller, as a process, against kube-scheduler with partitionable devices, in one run on the
same nodes: pods made in one burst until all are bound, and one at a time. The nodes have eight
simulated A100 each and no kubelet. Everything shares the machine, so compare the rows of one run.

Each burst follows one that is not counted, because a new API server keeps so little of each watch
that a burst ends them, and a new controller knows no selector yet. Rows take turns, as the machine
may do other work at times; the rate is the median of several rounds.

In the row "controller" the API server puts the finalizer on claims, by the policy of the chart.
In "own finalizer" the controller does that, as on Kubernetes before 1.36. The row "allocated
before" is what the control plane itself can do: the claims are allocated before their pods are
made, and kube-scheduler reserves them, which the controller does with the allocation. "One write a
claim" are those allocations alone, without pods: what the control plane works for the one write
that nobody who allocates can do without. Its rate is that of four threads.

A rate says little where the machine does other work besides. Each row also has the effort of its
bursts for each pod: CPU time of every process, how often kube-scheduler tried to place it, and
writes that the API server took. "cores" is all CPU time by the duration of the bursts: where that
is as many as the machine has, it is the limit, and the rates are as the CPU times.

With ``--pace`` pods are made at so many a second instead of at once, which tells up to which rate
each row keeps up, and on how much of the machine.

The rate limit of kube-scheduler towards the API server (``--kube-api-qps``) is raised for most
rows, because it would be all that is measured; 50 is its default, which a real cluster has.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import click

from hack.bench.control.bindings import Bindings, Burst
from hack.bench.control.effort import Effort, Figures
from hack.bench.control.site import Site, running
from hack.bench.fleets.fleet import geometry
from hack.bench.fleets.scenarios import MIXES, sizes
from hack.cluster.binaries import CONTROL_PLANE, find_binaries

SECONDS = 60.0
"""Bound on a burst, and duration of the steady part; seconds."""
PER_POD = ("CPU ms", "writes", "attempts")
"""For each pod of a burst; CPU time of all processes, this one included."""
HEADER = (
    "nodes",
    "qps",
    "pace",
    "bound",
    "pods/s",
    "x slowest",
    "p50 ms",
    "p90 ms",
    "cores",
    *PER_POD,
)
CONTROLLER, GATED, OWN = "controller", "controller, gated", "own finalizer"
BEFORE, WRITE, SCHEDULER = "allocated before", "one write a claim", "kube-scheduler"
ROWS = (CONTROLLER, GATED, OWN, BEFORE, WRITE, SCHEDULER)
LEAST = 0.05
"""Figures below are left out of the details."""
WARM_UP_PODS = 100
WARM_UP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Load:
    """Load on a cluster of ``nodes`` nodes; the mix of profiles has weights."""

    nodes: int
    qps: int
    pods: int
    bursts: int
    single: int
    mix: dict[str, float]
    templates: bool
    pace: float = math.inf


@dataclass(frozen=True, slots=True)
class Row:
    """Bursts, and the seconds that pods one at a time took."""

    who: str
    bursts: list[Burst]
    times: list[float]

    @property
    def effort(self) -> Effort:
        """Effort of all bursts."""
        return sum((burst.effort for burst in self.bursts), Effort())

    @property
    def pods(self) -> int:
        """Pods of all bursts."""
        return sum(burst.pods for burst in self.bursts)

    @property
    def cores(self) -> float:
        """Cores that were in use during the bursts, on average."""
        return sum(self.effort.cpu.values()) / sum(burst.seconds for burst in self.bursts)

    @property
    def per_pod(self) -> tuple[float, float, float]:
        """The figures of ``PER_POD``."""
        effort = self.effort
        cpu, writes, attempts = map(sum, (f.values() for f in _figures(effort)))
        return 1000 * cpu / self.pods, writes / self.pods, attempts / self.pods

    @property
    def rate(self) -> float:
        """Pods bound per second in the burst in the middle."""
        return median(burst.rate for burst in self.bursts)

    @property
    def bound(self) -> str:
        """Pods that were bound, of all in bursts."""
        return f"{sum(b.bound for b in self.bursts)}/{self.pods}"


@click.command()
@click.option("--nodes", "sizes_", multiple=True, type=int, help="Nodes of eight GPUs; repeatable.")
@click.option("--pods", default=300, show_default=True, help="Pods in a burst.")
@click.option("--bursts", default=3, show_default=True, help="Rounds: the rate is the median's.")
@click.option("--single", default=20, show_default=True, help="Pods one at a time, per burst.")
@click.option("--only-controller", is_flag=True, help="Leave kube-scheduler's devices out.")
@click.option("--only", multiple=True, type=click.Choice(ROWS), help="A row; repeatable.")
@click.option("--templates", is_flag=True, help="Claims made from templates, when pods are made.")
@click.option(
    "--scheduler-qps",
    "limits",
    multiple=True,
    default=(1000, 50),
    show_default=True,
    help="Rate limit of kube-scheduler, whose default is 50; repeatable.",
)
@click.option(
    "--pace",
    "paces",
    multiple=True,
    type=float,
    help="Pods made a second; repeatable. Without, as fast as the API server takes them.",
)
@click.option("--product", default="A100-SXM4-80GB", show_default=True)
def main(  # noqa: PLR0913 - one parameter per option
    *,
    sizes_: tuple[int, ...],
    pods: int,
    bursts: int,
    single: int,
    only_controller: bool,
    only: tuple[str, ...],
    templates: bool,
    limits: tuple[int, ...],
    paces: tuple[float, ...],
    product: str,
) -> None:
    """Compare our controller with kube-scheduler on clusters of several sizes."""
    binaries = find_binaries(os.environ, home=Path.home())
    if reason := binaries.missing(CONTROL_PLANE):
        click.echo(f"skipped: {reason}")
        return
    shape = geometry(product)
    mix = dict(zip(sizes(shape), MIXES["uniform"], strict=True))
    header = f"{'allocated by':<18}" + "".join(f"{name:>10}" for name in HEADER)
    for nodes, qps in itertools.product(sizes_ or (30, 100, 300), limits):
        wanted = _wanted(only, templates=templates, only_controller=only_controller)
        with running(binaries, shape, nodes=nodes, scheduler_qps=qps) as site:
            for pace in paces or (math.inf,):
                load = Load(nodes, qps, pods, bursts, single, mix, templates, pace)
                rows = _rounds(site, load, wanted)
                for row in rows:
                    click.echo(details(row))
                click.echo(header)
                for row in rows:
                    click.echo(_text(row, load, min(row.rate for row in rows)))


def _wanted(only: tuple[str, ...], *, templates: bool, only_controller: bool) -> set[str]:
    """Names of the rows."""
    wanted = {*ROWS} & {*(only or ROWS)}
    wanted -= {BEFORE, WRITE} if templates else set()
    return wanted - ({SCHEDULER} if only_controller else set())


def _rounds(site: Site, load: Load, wanted: set[str]) -> list[Row]:
    """Rows with a burst of each round."""
    rows: dict[str, Row] = {}
    for number in range(load.bursts):
        for row in _rows(site, load, wanted):
            known = rows.setdefault(row.who, Row(row.who, [], []))
            known.bursts.extend(row.bursts)
            known.times.extend(row.times)
            click.echo(f"round {number + 1}, {row.who}: {row.rate:.1f} pods/s", err=True)
    return [*rows.values()]


def _rows(site: Site, load: Load, wanted: set[str]) -> Iterator[Row]:
    if wanted & {CONTROLLER, GATED}:
        with site.installed():
            if CONTROLLER in wanted:
                yield _measured(CONTROLLER, site, load)
            if GATED in wanted:
                yield _measured(GATED, site, load, gated=True)
    if OWN in wanted:
        with site.controller():
            yield _measured(OWN, site, load)
    if BEFORE in wanted:
        yield _measured(BEFORE, site, load, made=site.allocate)
    if WRITE in wanted:
        yield _written(site, load)
    if SCHEDULER in wanted:
        with site.scheduler():
            yield _measured(SCHEDULER, site, load)


def _written(site: Site, load: Load) -> Row:
    with Bindings(
        site.api, load.mix, templates=False, seed=load.nodes, effort=site.effort
    ) as bindings:
        bindings.writes(WARM_UP_PODS, site.allocate)
        bindings.clear()
        return Row(WRITE, [bindings.writes(load.pods, site.allocate)], [])


def _measured(
    who: str,
    site: Site,
    load: Load,
    *,
    gated: bool = False,
    made: Callable[[str], object] = lambda _: None,
) -> Row:
    with Bindings(
        site.api,
        load.mix,
        templates=load.templates,
        seed=load.nodes,
        made=made,
        effort=site.effort,
    ) as bindings:
        bindings.burst(WARM_UP_PODS, gated=gated, limit_seconds=WARM_UP_SECONDS)
        bindings.clear()
        times = bindings.singly(load.single, gated=gated, limit_seconds=SECONDS)
        bindings.clear()
        burst = bindings.burst(load.pods, gated=gated, limit_seconds=SECONDS, pace=load.pace)
    return Row(who, [burst], times)


def _text(row: Row, load: Load, slowest: float) -> str:
    rate, times = row.rate, [1000 * t for t in row.times]
    cuts = quantiles(times, n=10) if len(times) > 1 else times * 9 or [float("nan")] * 9
    figures = (rate, rate / slowest if slowest else float("nan"), cuts[4], cuts[8], row.cores)
    pace = "-" if load.pace == math.inf else f"{load.pace:g}"
    return f"{row.who:<18}{load.nodes:>10}{load.qps:>10}{pace:>10}{row.bound:>10}" + "".join(
        f"{figure:>10.1f}" for figure in (*figures, *row.per_pod)
    )


def details(row: Row) -> str:
    """Moments of bursts; CPU time by process, attempts and writes by what they were, for a pod."""
    cpu, writes, attempts = (
        ", ".join(
            f"{name} {scale * figure / row.pods:.2f}"
            for name, figure in sorted(figures.items(), key=lambda item: -item[1])
            if scale * figure / row.pods >= LEAST
        )
        for figures, scale in zip(_figures(row.effort), (1000, 1, 1), strict=True)
    )
    bound = "; ".join(_moments(burst) for burst in row.bursts if burst.moments)
    return (
        f"{row.who}: bound {bound}\n"
        f"{row.who}, a pod: CPU ms {cpu}; writes {writes}; attempts {attempts}"
    )


def _moments(burst: Burst) -> str:
    """Seconds after which half, nine tenths, all but one in fifty and all were bound.

    Then how long after each was asked for.
    """
    told = (
        " / ".join(f"{found[int(share * (len(found) - 1))]:.2f}" for share in (0.5, 0.9, 0.98, 1.0))
        for found in (burst.moments, burst.waits)
    )
    return "after " + " s, each after ".join(told) + " s"


def _figures(effort: Effort) -> tuple[Figures, Figures, Figures]:
    return effort.cpu, effort.writes, effort.attempts


if __name__ == "__main__":
    main()
