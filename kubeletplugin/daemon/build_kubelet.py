"""Parts of the program that kubelet calls: two sockets and the health of devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kubeletplugin.claims.node import Node
from kubeletplugin.daemon.common import Common
from kubeletplugin.gpus.health.monitor import HealthMonitor
from kubeletplugin.host.grpcserver import SocketServer
from kubeletplugin.host.sockets import Sockets, sockets
from kubeletplugin.kubelet.health import HealthBoard
from kubeletplugin.kubelet.registration import add_registration
from kubeletplugin.kubelet.services import add_services

_WORKERS = 128
"""Calls at once: each of 56 slices may be prepared and unprepared while their GPUs hang."""


@dataclass(frozen=True, slots=True)
class KubeletParts:
    """Threads: those of the servers."""

    sockets: Sockets
    health: HealthBoard
    service: SocketServer
    registration: SocketServer


def build_kubelet(
    common: Common, monitor: HealthMonitor, node: Node, *, on_registered: Callable[[], None]
) -> KubeletParts:
    """Build the parts that kubelet calls; ``on_registered`` hears that it can from now on.

    Raises:
        HostError: a socket's path is too long.
    """
    paths = sockets(common.options)
    health = HealthBoard(monitor.devices)
    service = SocketServer(paths.service, partial(add_services, node, health), workers=_WORKERS)
    registration = SocketServer(
        paths.registration,
        partial(
            add_registration,
            common.options.driver_name,
            paths.service,
            on_registered=on_registered,
        ),
        workers=2,
    )
    return KubeletParts(paths, health, service, registration)
