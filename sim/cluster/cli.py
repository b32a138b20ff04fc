"""``python -m sim up`` and ``python -m sim demo``."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import click

from sim.cluster.cluster import (
    CONTROLLER,
    Cluster,
    ClusterShape,
    read_product,
    running_cluster,
    write_whole,
)
from sim.cluster.demo import Tour, conclude, introduce
from sim.cluster.terminal import Terminal
from sim.processes import ClusterError, EndedError, Process

_PRODUCT = "A100-SXM4-40GB"
_PROGRAM = "mig-sim"
_LOOK_SECONDS = 0.2
_QUICK_END_SECONDS = 10.0
_MOST_QUICK_ENDS = 3


@click.command()
def demo() -> None:
    """Show pods getting MIG slices on two simulated nodes with two A100 each."""
    terminal, shape = Terminal(sys.stdout), ClusterShape(prepare_retry_seconds=2.0)

    def tour(ends: Callable[[], bool]) -> None:
        started = time.monotonic()
        introduce(terminal)
        terminal.line()
        terminal.say("Starting an API server, two nodes with two A100 each, and the controller ...")
        with running_cluster(shape, ends=ends) as cluster:
            terminal.say(
                f"{len(cluster.supervisor.children)} processes run after "
                f"{time.monotonic() - started:.1f} s: {', '.join(cluster.supervisor.children)}"
            )
            slices = Tour(cluster, terminal).run()
        conclude(terminal, slices, started)

    _end_with(terminal, tour)


@click.command()
@click.option("--nodes", type=click.IntRange(1, 40), default=2, show_default=True)
@click.option(
    "--gpus", type=click.IntRange(1, 16), default=2, show_default=True, help="GPUs of each node."
)
@click.option(
    "--product",
    default=_PRODUCT,
    show_default=True,
    help="One that `nvml products` lists, or a JSON file of your own.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep hardware, journals and logs here; default: a directory that is removed at the end.",
)
@click.option(
    "--kubeconfig-out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the kubeconfig here as well.",
)
def up(
    *, nodes: int, gpus: int, product: str, directory: Path | None, kubeconfig_out: Path | None
) -> None:
    """Run a simulated cluster until Ctrl-C, to be used with kubectl."""
    terminal = Terminal(sys.stdout)
    shape = ClusterShape(nodes=nodes, gpus=(product,) * gpus)

    def run(ends: Callable[[], bool]) -> None:
        started = time.monotonic()
        terminal.line(f"Starting {nodes} nodes with {gpus} x {product} each ...")
        with running_cluster(
            shape, directory=directory, kubeconfig=kubeconfig_out, ends=ends
        ) as cluster:
            _explain(terminal, cluster, seconds=time.monotonic() - started)
            _watch_over(terminal, cluster)

    _end_with(terminal, run, interrupted=0)


def _explain(terminal: Terminal, cluster: Cluster, *, seconds: float) -> None:
    shape, home = cluster.shape, cluster.supervisor.directory
    gpus = shape.nodes * len(shape.gpus)
    file, last = write_whole(home / "examples", read_product(shape.gpus[0]), gpus=gpus)
    plugins = Path(sys.prefix) / "plugins"
    has_plugins = (plugins / _PROGRAM).exists()
    simulator = _PROGRAM if has_plugins else f"{sys.executable} -m sim"
    terminal.heading(
        f"A simulated cluster of {shape.nodes} nodes with {len(shape.gpus)} x {shape.gpus[0]} "
        f"each is ready after {seconds:.1f} s"
    )
    terminal.line()
    terminal.line(f"  export KUBECONFIG={cluster.kubeconfig}")
    if has_plugins:
        terminal.line(f'  export PATH="{plugins}:$PATH"')
    terminal.line()
    terminal.line("  kubectl get mignodes,deviceclasses")
    terminal.line(f"  kubectl apply -f {file}")
    terminal.line(f"  kubectl get pods,resourceclaims     # {gpus + 1} pods want {gpus} GPUs")
    terminal.line(f"  kubectl describe pod {last}         # why it waits")
    if has_plugins:
        terminal.line(f"  kubectl mig explain pod {last}      # the same, GPU by GPU")
        terminal.line("  kubectl mig map")
        terminal.line("  kubectl mig ui                      # all of it in a browser")
    terminal.line("  kubectl delete pod whole-1          # makes room for one that waits")
    terminal.line(f"  kubectl delete --ignore-not-found -f {file}")
    terminal.line()
    terminal.term("layouts", f"{home}/node-classes/config.yaml")
    terminal.term("logs", f"{home}/logs")
    terminal.term("containers", f"{home}/node-1/kubelet/pods/<uid>/containers/*.json")
    terminal.term("CDI specs", f"{home}/node-1/cdi")
    terminal.term("hardware", f"{simulator} nvml show --state {home}/node-1/hardware")
    terminal.line()
    terminal.line("Ctrl-C ends it.")


def _watch_over(terminal: Terminal, cluster: Cluster) -> NoReturn:
    """Starts plugins and controller again when they end, as Kubernetes would.

    Raises:
        ClusterError: a stand-in ended, or a daemon ended again and again.
        EndedError: somebody ended it.
    """
    born: dict[str, float] = {}
    quick_ends: dict[str, int] = {}
    while True:
        cluster.supervisor.check_ended()
        for child in cluster.supervisor.ended():
            if not _is_daemon(child):
                raise ClusterError(child.epitaph())
            quick = time.monotonic() - born.get(child.name, 0.0) < _QUICK_END_SECONDS
            quick_ends[child.name] = quick_ends.get(child.name, 0) + 1 if quick else 0
            if quick_ends[child.name] >= _MOST_QUICK_ENDS:
                raise ClusterError(f"{child.name} does not stay up: {child.epitaph()}")
            terminal.waits(child.epitaph())
            terminal.line(f"{child.name} is started again")
            born[child.name] = time.monotonic()
            child.start()
        time.sleep(_LOOK_SECONDS)


def _is_daemon(child: Process) -> bool:
    return child.name == CONTROLLER or child.name.startswith("plugin-")


def _end_with(
    terminal: Terminal,
    work: Callable[[Callable[[], bool]], None],
    *,
    interrupted: int | None = None,
) -> NoReturn:
    """Do the work and exit: 0 done, 1 something does not hold, else ``interrupted``.

    None ends the program by the signal, as a shell and make expect of what did not come to its end.
    ``work`` is given what says that a signal came, and looks at it whenever it waits: what a
    handler raises, Python drops at some places.
    """
    caught = list[int]()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda signum, _: caught.append(signum))
    try:
        work(lambda: bool(caught))
    except ClusterError as error:
        terminal.line()
        terminal.bad(str(error))
        sys.exit(1)
    except EndedError:
        terminal.line()
        terminal.line("Ended, nothing is left behind.")
        if interrupted is not None:
            sys.exit(interrupted)
        signal.signal(caught[-1], signal.SIG_DFL)
        os.kill(os.getpid(), caught[-1])
    except BrokenPipeError:
        # The reader of the output went away; Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)
