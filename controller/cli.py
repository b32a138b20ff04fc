"""``python -m controller``: the allocation controller as a program."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import click
from prometheus_client import CollectorRegistry

from controller.engine.controller import Controller, Names
from controller.reporting.metrics import ControllerMetrics
from controller.writing.handover import Handover, NoHandover
from dra.common.logs import configure
from dra.gpu.names import DEFAULT_DRIVER
from dra.kube.client import KubeApi, check_served
from dra.kube.errors import KubeConfigError, NotServedError
from dra.kube.events import EventLimits, EventRecorder, EventSink
from dra.kube.lease import LeaderElector
from dra.kube.timing import SystemClock
from dra.monitoring.metrics import ApiRequests, CountingSink, daemon_registry
from dra.monitoring.probes import Probes
from dra.monitoring.server import AddressError, serving
from dra.pods.pods import DEFAULT_SCHEDULER

_log = logging.getLogger(__name__)

REQUEST_SECONDS = 4.0
"""Shorter than the margin between losing a lease and somebody else getting it (5 s), so that no
former leader is waiting for a write when the next one starts. What may arrive even later is fenced
off: ``controller.engine.fence``, ``controller.writing.handover``."""
EVENT_LIMITS = EventLimits(at_once=5, pause_seconds=0.1, delay_seconds=0.5)
"""A pod that was just allocated is about to be bound: its events can wait for that."""


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
    "--finalizer-at-creation",
    is_flag=True,
    help="Leave the finalizer on claims until they are deleted: a MutatingAdmissionPolicy puts it "
    "there when they are created, which saves a write for each pod. Without, it is there from the "
    "decision about a claim until nobody uses the claim.",
)
@click.option(
    "--eager-creation/--no-eager-creation",
    default=True,
    show_default=True,
    help="Name in a label of each claim the node that it is allocated to, so that the node makes "
    "its slice before kubelet asks for it.",
)
@click.option(
    "--evict-failed",
    is_flag=True,
    help="Evict pods that are bound where their slice cannot be made, if their label or the "
    "configuration of their class or claim asks for it.",
)
@click.option(
    "--scheduler",
    "schedulers",
    multiple=True,
    default=(DEFAULT_SCHEDULER,),
    show_default=True,
    help="Serve pods of this scheduler (their schedulerName); may be given several times. A pod of "
    "another waits: nobody might ever bind it, and what it had would be lost to others.",
)
@click.option(
    "--node-labels",
    is_flag=True,
    help="Keep labels on nodes that tell of their GPUs, as NVIDIA's GPU feature discovery does, "
    "where that does not run.",
)
@click.option(
    "--node-classes",
    type=click.Path(path_type=Path),
    default=None,
    metavar="DIR",
    help="Directory of files that say what becomes of the GPUs of classes of nodes, as the nodes "
    "have it: what is wrong with them is told of the Nodes that are concerned.",
)
@click.option(
    "--metrics-address",
    default="",
    metavar="HOST:PORT",
    help="Serve metrics and probes (/metrics, /healthz, /readyz) here, such as :8080; "
    "without it, nowhere.",
)
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
    finalizer_at_creation: bool,
    eager_creation: bool,
    evict_failed: bool,
    schedulers: tuple[str, ...],
    node_labels: bool,
    node_classes: Path | None,
    metrics_address: str,
    log_level: str,
    log_format: str,
) -> None:
    """Allocate MIG slices to the claims of waiting pods."""
    configure(log_level, "json" if log_format == "json" else "text")
    identity = (
        identity or f"{os.environ.get('POD_NAME') or socket.gethostname()}-{secrets.token_hex(4)}"
    )
    registry, probes = daemon_registry(), Probes()
    try:
        api = KubeApi.connect(
            kubeconfig,
            user_agent="mig-dra-controller",
            timeout_seconds=REQUEST_SECONDS,
            observe=ApiRequests(registry),
        )
    except KubeConfigError as error:
        click.echo(f"no access to a Kubernetes API: {error}", err=True)
        sys.exit(2)
    try:
        check_served(api)
    except NotServedError as error:
        raise click.ClickException(str(error)) from error
    events = EventRecorder(api, component=f"{driver_name}/controller", limits=EVENT_LIMITS)
    sink = CountingSink(events, registry)
    program = _Program(
        api,
        sink,
        Names(
            driver_name,
            finalizer_at_creation=finalizer_at_creation,
            eager_creation=eager_creation,
            evict_failed=evict_failed,
            schedulers=schedulers,
            node_labels=node_labels,
            node_classes=node_classes,
        ),
        registry=registry,
        probes=probes,
    )
    try:
        with serving(metrics_address, registry, probes):
            program.run(namespace=namespace if leader_elect else "", identity=identity)
    except AddressError as error:
        raise click.ClickException(f"--metrics-address: {error}") from error
    finally:
        events.close()
        api.close()


class _Program:
    """The controller and who listens to it."""

    def __init__(
        self,
        api: KubeApi,
        sink: EventSink,
        names: Names,
        *,
        registry: CollectorRegistry,
        probes: Probes,
    ) -> None:
        self._api = api
        self._sink = sink
        self._names = names
        self._registry = registry
        self._probes = probes

    def run(self, *, namespace: str, identity: str) -> None:
        """Run until SIGTERM or SIGINT; with a ``namespace`` only while leading."""
        if not namespace:
            stop = threading.Event()
            _on_signals(stop.set)
            self._controller(lambda: True, NoHandover()).run(stop)
            return
        elector = LeaderElector(
            self._api,
            namespace=namespace,
            name=f"{self._names.driver}-controller",
            identity=identity,
        )
        controller = self._controller(lambda: elector.is_leader, elector)
        _on_signals(elector.stop)
        elector.run(controller.run)

    def _controller(self, leads: Callable[[], bool], handover: Handover) -> Controller:
        clock = SystemClock()
        metrics = ControllerMetrics(self._registry, leads=leads, now=clock.now)
        return Controller(
            self._api,
            self._sink,
            self._names,
            clock=clock,
            leads=leads,
            handover=handover,
            observer=metrics,
            probes=self._probes,
        )


def _on_signals(stop: object) -> None:
    def handle(number: int, _frame: object) -> None:
        _log.info("stopping", extra={"signal": signal.Signals(number).name})
        # Not in the handler itself: what it calls takes locks that this thread may hold.
        threading.Thread(target=stop, daemon=True).start()  # type: ignore[arg-type]

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
