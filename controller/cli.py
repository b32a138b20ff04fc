"""``python -m controller``: the allocation controller as a program."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading

import click

from dra.logs import configure
from controller.loop import Controller, Names
from dra.kube.errors import KubeConfigError
from dra.kube.events import EventRecorder
from dra.kube.lease import LeaderElector
from dra.kube.timing import SystemClock
from dra.kube.transport import KubeApi
from dra.names import DEFAULT_DRIVER

_log = logging.getLogger(__name__)

REQUEST_SECONDS = 4.0
"""Shorter than the margin between losing a lease and somebody else getting it (5 s), so that no
write of a former leader is under way when the next one starts."""


@click.command(context_settings={"auto_envvar_prefix": "MIG_CONTROLLER"})
@click.option(
    "--kubeconfig", metavar="PATH", help="Kubeconfig file; without it in-cluster, then KUBECONFIG."
)
@click.option("--driver-name", default=DEFAULT_DRIVER, show_default=True)
@click.option(
    "--namespace", default="mig-dra-driver", show_default=True, help="Where the lease is kept."
)
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    show_default=True,
    help="Only one of several controllers allocates.",
)
@click.option("--identity", default="", help="Name in the lease; default: host name and a suffix.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True
)
def main(  # noqa: PLR0913 - one parameter per flag
    *,
    kubeconfig: str | None,
    driver_name: str,
    namespace: str,
    leader_elect: bool,
    identity: str,
    log_level: str,
    log_format: str,
) -> None:
    """Allocate MIG slices to the claims of waiting pods."""
    configure(log_level, "json" if log_format == "json" else "text")
    identity = (
        identity or f"{os.environ.get('POD_NAME') or socket.gethostname()}-{secrets.token_hex(4)}"
    )
    try:
        api = KubeApi.connect(
            kubeconfig, user_agent="mig-dra-controller", timeout_seconds=REQUEST_SECONDS
        )
    except KubeConfigError as error:
        click.echo(f"no access to a Kubernetes API: {error}", err=True)
        sys.exit(2)
    recorder = EventRecorder(api, component=f"{driver_name}/controller")
    try:
        _run(
            api,
            recorder,
            Names(driver_name),
            namespace=namespace if leader_elect else "",
            identity=identity,
        )
    finally:
        recorder.close()
        api.close()


def _run(
    api: KubeApi, recorder: EventRecorder, names: Names, *, namespace: str, identity: str
) -> None:
    """Run until SIGTERM or SIGINT; with a ``namespace`` only while leading."""
    clock = SystemClock()
    if not namespace:
        stop = threading.Event()
        _on_signals(stop.set)
        Controller(api, recorder, names, clock=clock).run(stop)
        return
    elector = LeaderElector(
        api, namespace=namespace, name=f"{names.driver}-controller", identity=identity
    )
    controller = Controller(api, recorder, names, clock=clock, leads=lambda: elector.is_leader)
    _on_signals(elector.stop)
    elector.run(controller.run)


def _on_signals(stop: object) -> None:
    def handle(number: int, _frame: object) -> None:
        _log.info("stopping", extra={"signal": signal.Signals(number).name})
        # Not in the handler itself: what it calls takes locks that this thread may hold.
        threading.Thread(target=stop, daemon=True).start()  # type: ignore[arg-type]

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
