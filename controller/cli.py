"""``python -m controller``: the allocation controller as a program."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import threading
from typing import Any

import click

from controller import times
from controller.leader.controller import Controller
from controller.options import Options
from controller.report.metrics import ControllerMetrics
from dra.common.flags import with_flags
from dra.common.program import configure, stop_on_signals
from dra.kube.client import KubeApi, check_served
from dra.kube.errors import KubeConfigError, NotServedError
from dra.kube.events import EventLimits, EventRecorder
from dra.kube.lease import LEADERS, LeaderElector, LeaseLock, leader_lease
from dra.kube.timing import SystemClock
from dra.monitoring.metrics import ApiRequests, CountingSink, daemon_registry
from dra.monitoring.probes import Probes
from dra.monitoring.server import AddressError, serving

EVENT_LIMITS = EventLimits(at_once=5, pause_seconds=0.1, delay_seconds=0.5)
"""Limits that delay the events of a pod which was just allocated, so that it is bound first."""


@click.command(context_settings={"auto_envvar_prefix": "MIG_CONTROLLER"})
@with_flags(Options)
def main(**given: Any) -> None:
    """Allocate MIG slices to the claims of waiting pods."""
    options = Options(**given)
    configure(options.log_level, "json" if options.log_format == "json" else "text")
    registry, probes = daemon_registry(), Probes()
    try:
        api = KubeApi.connect(
            options.kubeconfig,
            user_agent="mig-dra-controller",
            timeout_seconds=times.REQUEST,
            observe=ApiRequests(registry),
        )
    except KubeConfigError as error:
        click.echo(f"no access to a Kubernetes API: {error}", err=True)
        sys.exit(2)
    try:
        check_served(api)
    except NotServedError as error:
        raise click.ClickException(str(error)) from error
    events = EventRecorder(api, component=f"{options.driver_name}/controller", limits=EVENT_LIMITS)
    elector, clock = make_elector(api, options), SystemClock()
    metrics = ControllerMetrics(
        registry, leads=lambda: elector is None or elector.is_leader, now=clock.now
    )
    controller = Controller(
        api,
        CountingSink(events, registry),
        options,
        clock=clock,
        metrics=metrics,
        elector=elector,
        probes=probes,
    )
    try:
        with serving(options.metrics_address, registry, probes):
            _run(controller, elector)
    except AddressError as error:
        raise click.ClickException(f"--metrics-address: {error}") from error
    finally:
        events.close()
        api.close()


def make_elector(api: KubeApi, options: Options) -> LeaderElector | None:
    """The election that this controller takes part in; None if it leads without one."""
    if not options.leader_elect:
        return None
    name = os.environ.get("POD_NAME") or socket.gethostname()
    lock = LeaseLock(
        api,
        namespace=LEADERS,
        name=leader_lease(options.driver_name),
        identity=options.identity or f"{name}-{secrets.token_hex(4)}",
    )
    return LeaderElector(lock)


def _run(controller: Controller, elector: LeaderElector | None) -> None:
    """Run until SIGTERM or SIGINT; with an ``elector`` only while leading."""
    if elector is None:
        stop = threading.Event()
        stop_on_signals(stop.set)
        controller.run(stop)
    else:
        stop_on_signals(elector.stop)
        elector.run(controller.run)
