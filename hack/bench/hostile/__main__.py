"""Loads of hostile and of merely ordinary tenants: ``python -m hack.bench.hostile``.

A table with a row for each load: what is wanted, and what was seen, by those who ask for a small
slice beside it or of the controller's memory. ``--before`` runs the controller of another checkout
as well (``git worktree add``), on a new cluster, and gives it a column.

It runs on a real control plane where there are binaries (``KUBEBUILDER_ASSETS``), else, or with
``--embedded``, on the simulator's API server. Everything shares the machine, so compare columns
of one run. ``--needs`` gives a second table: pods that need more than room, which only a real
kube-scheduler judges (``hack.bench.hostile.binding``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import click

from hack.bench.fleets.fleet import geometry
from hack.bench.hostile import binding
from hack.bench.hostile.ground import Ground, Plane, embedded, prepared, real
from hack.bench.hostile.loads import Size
from hack.bench.hostile.rows import LOADS, Load
from hack.cluster.binaries import CONTROL_PLANE, find_binaries
from hack.cluster.driver.chart import REPOSITORY
from hack.cluster.errors import ClusterError

PRODUCT = "A100-SXM4-80GB"
Planes = Callable[[], contextlib.AbstractContextManager[Plane]]


@click.command()
@click.option("--nodes", default=100, show_default=True, help="Nodes of eight half-full GPUs.")
@click.option("--waiting", default=500, show_default=True, help="Pods that wait in vain.")
@click.option("--of-others", default=300, show_default=True, help="Claims of another driver.")
@click.option("--only", multiple=True, help="Beginning of a row's name; repeatable.")
@click.option("--embedded", "is_embedded", is_flag=True, help="Without binaries.")
@click.option("--before", type=click.Path(exists=True, path_type=Path), help="Another checkout.")
@click.option("--needs", "with_needs", is_flag=True, help="Pods that need more than room.")
def main(  # noqa: PLR0913 - one parameter per option
    *,
    nodes: int,
    waiting: int,
    of_others: int,
    only: tuple[str, ...],
    is_embedded: bool,
    before: Path | None,
    with_needs: bool,
) -> None:
    """Print what each load comes to."""
    binaries = find_binaries(os.environ, home=Path.home())
    missing = binaries.missing(CONTROL_PLANE)
    if with_needs:
        if missing:
            raise click.ClickException(missing)
        binding.run(
            binaries,
            nodes=min(nodes, 40),
            pods=20,
            only=only,
            checkouts=[before, REPOSITORY] if before else [REPOSITORY],
        )
        return
    if missing and not is_embedded:
        click.echo(f"embedded API server: {missing}")
    planes: Planes = embedded if is_embedded or missing else lambda: real(binaries)
    rows = [load for load in LOADS if not only or load.name.startswith(only)]
    size = Size(waiting, of_others)
    seen = _seen(planes, rows, size, nodes=nodes, checkout=REPOSITORY)
    earlier = _seen(planes, rows, size, nodes=nodes, checkout=before) if before else {}
    click.echo(f"| load | wanted |{' before |' if earlier else ''} now |")
    click.echo(f"|---|---|{'---|' if earlier else ''}---|")
    for load in rows:
        before_it = f" {earlier[load.name]} |" if earlier else ""
        click.echo(f"| {load.name} | {load.wanted} |{before_it} {seen[load.name]} |")


def _seen(
    planes: Planes, rows: list[Load], size: Size, *, nodes: int, checkout: Path
) -> dict[str, str]:
    """Figures by row; a cluster of its own for each, as one may end the controller."""
    shape, seen = geometry(PRODUCT), {}
    for load in rows:
        inventories = load.nodes(shape, nodes)
        try:
            with (
                planes() as plane,
                prepared(plane, inventories, hastened=load.hastened, checkout=checkout) as ground,
            ):
                seen[load.name] = _run(load, ground, size)
        except (ClusterError, OSError) as error:
            seen[load.name] = f"{error} (before the load, or after it)"
        click.echo(f"# {checkout}: {load.name}: {seen[load.name]}", err=True)
    return seen


def _run(load: Load, ground: Ground, size: Size) -> str:
    try:
        return load.run(ground, size)
    except (ClusterError, OSError) as error:
        return f"{error} (the controller {'runs' if ground.is_alive else 'HAS ENDED'})"


if __name__ == "__main__":
    main()
