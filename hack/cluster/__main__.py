"""``python -m hack.cluster``: a real Kubernetes on this machine, with the driver installed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import click
import yaml

from dra.common.resources import Obj
from hack.cluster.binaries import CONTROL_PLANE, NODE, find_binaries
from hack.cluster.chart import REPOSITORY
from hack.cluster.cluster import Cluster, Shape
from hack.cluster.controlplane import Setup
from hack.cluster.waiting import ClusterError


class Home:
    """Directory of a cluster. A lock, which ends with its process, tells who owns it.

    Args:
        directory: need not exist.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "log"
        self.kubeconfig = directory / "kubeconfig"
        self._lock = directory / "owner"
        self._parts = directory / "c"

    def owner(self) -> int | None:
        """The process id of the cluster that runs here, or None."""
        try:
            with self._lock.open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            text = self._lock.read_text()
            return int(text) if text else None
        return None

    def is_ours(self) -> bool:
        """True if a cluster was ever here."""
        return self._lock.exists() or self.log.exists()

    @contextlib.contextmanager
    def owned(self, pid: int) -> Iterator[None]:
        """Owns the directory inside the block, and leaves no kubeconfig in it.

        Raises:
            BlockingIOError: somebody else owns it.
        """
        with self._lock.open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.truncate(0)
            lock.write(str(pid))
            lock.flush()
            try:
                yield
            finally:
                self.kubeconfig.unlink(missing_ok=True)

    def new_parts(self) -> Path:
        """An empty directory for the cluster's parts; an earlier cluster's is removed."""
        shutil.rmtree(self._parts, ignore_errors=True)
        self._parts.mkdir()
        return self._parts

    def publish(self, kubeconfig: Path) -> None:
        """Says that the cluster is ready."""
        written = self.kubeconfig.with_suffix(".new")
        shutil.copyfile(kubeconfig, written)
        written.rename(self.kubeconfig)

    def last_words(self) -> str:
        """The end of the log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


PRODUCTS = ("A100-SXM4-40GB", "H100-80GB-HBM3", "B200")
"""Each node has other GPUs than the one before."""

GPUS_PER_NODE = 2

_READY_SECONDS = 300
_DOWN_SECONDS = 120
_ENDINGS = (signal.SIGTERM, signal.SIGINT)

_DIRECTORY = click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    default=Path("/tmp/mig-cluster"),  # noqa: S108 - sockets below it need a short path
    show_default=True,
    help="Everything is kept here; one cluster for each directory.",
)


@click.group()
def main() -> None:
    """Run a real Kubernetes on this machine, with the driver over simulated GPUs."""


@main.command()
@_DIRECTORY
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
def up(*, directory: Path, nodes: int, gates: tuple[str, ...], values: Path | None) -> None:
    """Start a cluster in the background and print its KUBECONFIG."""
    home = Home(directory)
    _parsed(gates)
    if reason := _hindrance(home):
        raise click.ClickException(reason)
    started = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    flags = [flag for each in gates for flag in ("--feature-gate", each)]
    flags += ["--values", str(values)] if values else []
    command = [sys.executable, "-m", "hack.cluster", "serve", "--directory", str(directory)]
    with home.log.open("wb") as log:
        child = subprocess.Popen(
            [*command, "--nodes", str(nodes), *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=REPOSITORY,
            start_new_session=True,
        )
    deadline = started + _READY_SECONDS
    while not home.kubeconfig.exists() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    if not home.kubeconfig.exists():
        child.terminate()
        child.wait(_DOWN_SECONDS)
        raise click.ClickException(
            f"the cluster did not start; its log, {home.log}, ends so:\n{home.last_words()}"
        )
    click.echo(f"# {nodes} nodes are ready after {time.monotonic() - started:.0f} s")
    click.echo("# kubectl get mignodes; kubectl get deviceclasses")
    click.echo(f"# {_down(directory)}")
    click.echo(f"export KUBECONFIG={home.kubeconfig}")


@main.command()
@_DIRECTORY
def down(*, directory: Path) -> None:
    """End the cluster and remove everything of it."""
    home = Home(directory)
    if (pid := home.owner()) is not None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _DOWN_SECONDS
        while home.owner() is not None:
            if time.monotonic() > deadline:
                raise click.ClickException(f"process {pid} does not end; see {home.log}")
            time.sleep(0.1)
    elif not home.is_ours():
        raise click.ClickException(f"{directory} holds no cluster of this program")
    shutil.rmtree(directory, ignore_errors=True)


@main.command(hidden=True)
@_DIRECTORY
@click.option("--nodes", type=int, required=True)
@click.option("--feature-gate", "gates", multiple=True)
@click.option("--values", type=click.Path(path_type=Path))
def serve(*, directory: Path, nodes: int, gates: tuple[str, ...], values: Path | None) -> None:
    """Be the parent of all processes until SIGTERM."""
    home = Home(directory)
    for number in _ENDINGS:
        signal.signal(number, _end)
    shape = Shape(
        {
            f"worker-{number + 1}": (PRODUCTS[number % len(PRODUCTS)],) * GPUS_PER_NODE
            for number in range(nodes)
        }
    )
    given: Obj = yaml.safe_load(values.read_text()) if values else {}
    binaries = find_binaries(os.environ, home=Path.home())
    with home.owned(os.getpid()):
        try:
            cluster = Cluster(
                binaries, home.new_parts(), shape, values=given, setup=Setup(gates=_parsed(gates))
            )
            with cluster:
                home.publish(cluster.kubeconfig)
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


def _down(directory: Path) -> str:
    """The command that ends a cluster, from anywhere."""
    return f"make -C {REPOSITORY} cluster-down DIR={directory}"


def _hindrance(home: Home) -> str:
    """Reason why no cluster can be started here; empty if one can."""
    if home.owner() is not None:
        return (
            f"a cluster runs in {home.directory} already; end it with "
            f"'{_down(home.directory)}' or name another directory"
        )
    if home.directory.exists() and any(home.directory.iterdir()) and not home.is_ours():
        return f"{home.directory} is not empty, and no cluster was there; name another directory"
    if os.geteuid() != 0:
        return "kubelet and containerd need root"
    missing = [name for name in ("openssl", "unshare", "nsenter") if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return find_binaries(os.environ, home=Path.home()).missing((*CONTROL_PLANE, *NODE))


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
