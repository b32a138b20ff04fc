"""Loads of hostile and of merely ordinary tenants: ``python -m hack.bench.hostile``.

A table with a row for each load: what is wanted, and what was seen, by those who ask for a small
slice beside it or of the controller's memory. It runs on a real control plane where there are
binaries (``KUBEBUILDER_ASSETS``), else, or with ``--embedded``, on the simulator's API server.
Everything shares the machine, so compare rows of one run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import click

from dra.gpu.inventory import Inventory
from hack.bench.fleets.fleet import geometry
from hack.bench.hostile.ground import Ground, Plane, embedded, prepared, real
from hack.bench.hostile.loads import LOADS, Load, Size
from hack.cluster.binaries import CONTROL_PLANE, find_binaries
from hack.cluster.errors import ClusterError

PRODUCT = "A100-SXM4-80GB"
Planes = Callable[[], contextlib.AbstractContextManager[Plane]]


@click.command()
@click.option("--nodes", default=100, show_default=True, help="Nodes of eight half-full GPUs.")
@click.option("--waiting", default=500, show_default=True, help="Pods that wait in vain.")
@click.option("--of-others", default=300, show_default=True, help="Claims of another driver.")
@click.option("--only", multiple=True, help="Beginning of a row's name; repeatable.")
@click.option("--embedded", "is_embedded", is_flag=True, help="Without binaries.")
def main(
    *,
    nodes: int,
    waiting: int,
    of_others: int,
    only: tuple[str, ...],
    is_embedded: bool,
) -> None:
    """Print what each load comes to."""
    binaries = find_binaries(os.environ, home=Path.home())
    missing = binaries.missing(CONTROL_PLANE)
    if missing and not is_embedded:
        click.echo(f"embedded API server: {missing}")
    planes: Planes = embedded if is_embedded or missing else lambda: real(binaries)
    rows = [load for load in LOADS if not only or load.name.startswith(only)]
    size = Size(waiting, of_others)
    shape, size = geometry(PRODUCT), Size(waiting, of_others)
    click.echo("| load | wanted | seen |\n|---|---|---|")
    for load in rows:
        seen = _seen(planes, load, size, load.nodes(shape, nodes))
        click.echo(f"| {load.name} | {load.wanted} | {seen} |")


def _seen(planes: Planes, load: Load, size: Size, inventories: list[Inventory]) -> str:
    """Run a load on a cluster of its own, as it may end the controller; what was seen."""
    try:
        with planes() as plane, prepared(plane, inventories, hastened=load.hastened) as ground:
            return _run(load, ground, size)
    except (ClusterError, OSError) as error:
        return f"{error} (before the load, or after it)"


def _run(load: Load, ground: Ground, size: Size) -> str:
    try:
        return load.run(ground, size)
    except (ClusterError, OSError) as error:
        return f"{error} (the controller {'runs' if ground.is_alive else 'HAS ENDED'})"


if __name__ == "__main__":
    main()
