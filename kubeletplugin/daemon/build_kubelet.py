"""Parts of the program that kubelet calls: a server on two sockets, and the health of devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from kubeletplugin.claims.node import Node
from kubeletplugin.daemon.common import Common
from kubeletplugin.gpus.health.monitor import HealthMonitor
from kubeletplugin.kubelet.services import HealthBoard, Registration, add_services
from kubeletplugin.sockets import Sockets, SocketServer, sockets

_WORKERS = 130
"""Calls at once: each of 56 slices may be prepared and unprepared while their GPUs hang, health is
streamed, and kubelet registers the plugin anew beside all that."""


@dataclass(frozen=True, slots=True)
class KubeletParts:
    """Parts that kubelet calls. Threads: those of the server."""

    sockets: Sockets
    health: HealthBoard
    server: SocketServer


def build_kubelet(
    common: Common, monitor: HealthMonitor, node: Node, *, on_registered: Callable[[], None]
) -> KubeletParts:
    """Build the parts that kubelet calls; ``on_registered`` hears that it can from now on.

    Raises:
        HostError: a socket's path is too long.
    """
    paths = sockets(common.options)
    health = HealthBoard(monitor.devices)
    driver = common.options.driver_name

    registration = Registration(driver, paths.service, on_registered)

    def register(server: grpc.Server) -> None:
        add_services(node, health, registration, server)

    # Kubelet dials as soon as it sees the registration socket, and waits up to 10 s for the
    # connection to be answered (operation_generator.go): the other socket is there by then.
    server = SocketServer(paths.service, paths.registration, register=register, workers=_WORKERS)
    return KubeletParts(paths, health, server)
