"""Packing of each placement policy: ``python -m hack.bench.placement``.

All policies play the same requests in one run. Percentages are means over four request mixes unless
a mix is named; ``lost`` is relative to kube-scheduler's way (``kube``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean

import click

from dra.allocator.scoring.moves import MoveTable
from hack.bench.fleets.fleet import NAMES, Fleet, geometry
from hack.bench.fleets.scenarios import MIXES, QUEUE_MIX, Tally, fill, queue, steady

Table = dict[str, dict[str, float]]

QUEUES = ((8, 0.7, 1000), (32, 0.85, 2000))
"""GPUs, load and jobs of the queueing scenario."""


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


def run_fill(table: MoveTable, *, gpus: int, replications: int) -> Table:
    """Accepted requests when 85 % and 100 % of the capacity were asked for."""
    result: Table = {}
    for policy in NAMES:
        row = result.setdefault(policy, {})
        for share in (0.85, 1.0):
            for mix, weights in MIXES.items():
                tallies = [
                    fill(Fleet(table, policy, gpus=gpus), weights, gpus=gpus, share=share, seed=s)
                    for s in range(replications)
                ]
                row[f"{mix} {share:.0%}"] = percent(tallies)[0]
    return result


def run_steady(table: MoveTable, *, gpus: int, replications: int) -> Table:
    """Accepted requests and slices in the steady state, means over the mixes."""
    result: Table = {}
    for policy in NAMES:
        row = result.setdefault(policy, {})
        for load in (0.85, 1.0):
            pairs = [
                percent(
                    [
                        steady(
                            Fleet(table, policy, gpus=gpus), weights, gpus=gpus, load=load, seed=s
                        )
                        for s in range(replications)
                    ]
                )
                for weights in MIXES.values()
            ]
            row[f"requests load {load}"] = fmean(p[0] for p in pairs)
            row[f"slices load {load}"] = fmean(p[1] for p in pairs)
    for row in result.values():
        lost = 100 - row["requests load 0.85"]
        row["lost / kube's"] = lost / (100 - result["kube"]["requests load 0.85"])
    return result


def run_active(table: MoveTable, *, gpus: int, replications: int) -> Table:
    """GPUs in use at load 0.6 of the uniform mix, where everything is accepted."""
    return {
        policy: {
            "GPUs in use": fmean(
                fmean(
                    steady(
                        Fleet(table, policy, gpus=gpus),
                        MIXES["uniform"],
                        gpus=gpus,
                        load=0.6,
                        seed=s,
                    ).active
                )
                for s in range(replications)
            )
        }
        for policy in NAMES
    }


def run_queue(table: MoveTable, *, gpus: int, replications: int) -> Table:  # noqa: ARG001
    """Mean waiting time of pods that queue, relative to kube-scheduler's way."""
    result: Table = {policy: {} for policy in NAMES}
    for fleet_size, load, jobs in QUEUES:
        for policy in NAMES:
            result[policy][f"{fleet_size} GPUs load {load}"] = fmean(
                queue(
                    Fleet(table, policy, gpus=fleet_size),
                    QUEUE_MIX,
                    gpus=fleet_size,
                    load=load,
                    jobs=jobs,
                    seed=s,
                )
                for s in range(replications)
            )
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
