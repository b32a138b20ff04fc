"""``python -m hack.cluster``: a real Kubernetes on this machine, with the driver installed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import click
import yaml

from dra.common.resources import Obj
from hack.cluster.binaries import CONTROL_PLANE, NODE, Binaries, find_binaries
from hack.cluster.cluster import Cluster, Shape
from hack.cluster.controlplane import Setup
from sim.processes import ClusterError, Supervisor

PRODUCTS = ("A100-SXM4-40GB", "H100-80GB-HBM3", "B200")
"""Each node has other GPUs than the one before."""

GPUS_PER_NODE = 2
_ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@click.command()
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    help="Keep data and logs here; default: a directory that is removed at the end.",
)
@click.option("--nodes", default=2, show_default=True, type=click.IntRange(1, 9))
@click.option(
    "--feature-gate",
    "gates",
    multiple=True,
    metavar="NAME=BOOL",
    help="Of Kubernetes, for all its programs; may be given several times.",
)
@click.option(
    "--values",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, resolve_path=True),
    help="For the chart, as of helm's --values.",
)
def main(
    *, directory: Path | None, nodes: int, gates: tuple[str, ...], values: Path | None
) -> None:
    """Run a real Kubernetes until Ctrl-C, with the driver over simulated GPUs."""
    setup = Setup(gates=_parsed(gates))
    binaries = find_binaries(os.environ, home=Path.home())
    if reason := _hindrance(binaries):
        raise click.ClickException(reason)
    given: Obj = yaml.safe_load(values.read_text()) if values else {}
    products = [(PRODUCTS[number % len(PRODUCTS)],) * GPUS_PER_NODE for number in range(nodes)]
    shape = Shape({f"worker-{number}": gpus for number, gpus in enumerate(products, 1)})
    for number in _ENDINGS:
        signal.signal(number, _end)
    started = time.monotonic()
    click.echo(f"# Starting {nodes} nodes ...")
    try:
        with Supervisor(directory) as supervisor:
            parts = _new_parts(supervisor.directory)
            with Cluster(binaries, parts, shape, values=given, setup=setup) as cluster:
                click.echo(f"# {nodes} nodes are ready after {time.monotonic() - started:.0f} s")
                click.echo("# kubectl get mignodes; kubectl get deviceclasses; Ctrl-C ends it")
                click.echo(f"export KUBECONFIG={cluster.kubeconfig}")
                while True:
                    cluster.assert_running()
                    time.sleep(1)
    except ClusterError as error:
        raise click.ClickException(str(error)) from error


def _end(*_: object) -> NoReturn:
    """Unwinds what is running or half started; nothing stops that."""
    for number in _ENDINGS:
        signal.signal(number, signal.SIG_IGN)
    sys.exit()


def _hindrance(binaries: Binaries) -> str:
    """Reason why no cluster can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "kubelet and containerd need root"
    missing = [name for name in ("openssl", "unshare", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return binaries.missing((*CONTROL_PLANE, *NODE))


def _new_parts(directory: Path) -> Path:
    """An empty directory for the cluster's parts."""
    parts = directory / "c"
    if parts.exists():
        raise ClusterError(f"{parts} is of an earlier cluster: remove it, or name another --dir")
    parts.mkdir()
    return parts


def _parsed(gates: tuple[str, ...]) -> dict[str, bool]:
    found = {}
    for each in gates:
        name, _, value = each.partition("=")
        if not name.isalnum() or value not in {"true", "false"}:
            raise click.BadParameter(f"{each!r} is not of the form NAME=true or NAME=false")
        found[name] = value == "true"
    return found


if __name__ == "__main__":
    main(prog_name="python -m hack.cluster")
