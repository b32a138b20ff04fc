"""Serving of a node by one program: a second one stands by until the first has ended."""

from __future__ import annotations

import threading

from dra.kube.client import KubeApi
from kubeletplugin.daemon.daemon import Daemon
from kubeletplugin.gpus.coexistence.namesake import refuse_namesake
from kubeletplugin.journal.journal import exclusive
from kubeletplugin.options import Options
from kubeletplugin.sockets import sockets
from kubeletplugin.telemetry.telemetry import Telemetry


def serve(options: Options, api: KubeApi, telemetry: Telemetry, stop: threading.Event) -> None:
    """Run the plugin until ``stop`` is set; a second process waits until the first has ended.

    Raises:
        HostError: a socket, the state directory or the journal cannot be used, or NVIDIA's own
            driver has the name.
    """
    sockets(options)  # refused before waiting
    waits = telemetry.liveness.stand_by
    with exclusive(options.roots.state, stop, waits=waits) as alone:
        if alone:
            refuse_namesake(options, api)
            Daemon(options, api, telemetry).run(stop)
