"""Parts of the program that look at GPUs, publish their state, and answer kubelet.

A part gets hooks to call parts that are built later; they are called only once threads run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grpc

from dra.gpu.inventory import ClaimRef, Drain, Inventory, Reservation
from kubeletplugin.claims.node import Node
from kubeletplugin.common import Common
from kubeletplugin.gpus.driverlibrary import DriverLibrary
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.loop import HardwareLoop
from kubeletplugin.gpus.migmode import MigMode
from kubeletplugin.gpus.monitor import HealthMonitor
from kubeletplugin.gpus.node import NodeWatch, Pause, ShareOffers
from kubeletplugin.gpus.releasing import Releasing
from kubeletplugin.host.processes import sees_processes
from kubeletplugin.kubelet.services import HealthBoard, Registration, add_services
from kubeletplugin.nvml.session import Session
from kubeletplugin.publishing.mignode import (
    AllocatorMode,
    MigNodePublisher,
    NodeFacts,
    NodeInventory,
)
from kubeletplugin.publishing.resourceslices import FailedGpus, SlicePublisher
from kubeletplugin.publishing.statuses import ClaimStatuses
from kubeletplugin.sockets import Sockets, SocketServer, sockets

_WORKERS = 130
"""Calls served at once: Prepare and Unprepare of each of 56 slices on GPUs that hang, the streams
of health, and a new registration."""


@dataclass(frozen=True, slots=True)
class GpuParts:
    """Parts that look at the GPUs.

    Threads: ``loop``, ``monitor``, and those of ``hardware`` and ``node_watch``.
    """

    hardware: Hardware
    monitor: HealthMonitor
    node_watch: NodeWatch
    mig_mode: MigMode
    library: DriverLibrary
    releasing: Releasing
    loop: HardwareLoop


def build_gpus(  # noqa: PLR0913 - hooks to parts that are built later
    common: Common,
    *,
    drain: Callable[[], Drain | None],
    read_mignode: Callable[[], Inventory | None],
    refresh_status: Callable[[ClaimRef], None],
    on_instances: Callable[[], None],
    recover: Callable[[], None],
    settle: Callable[[], float | None],
    end: Callable[[], None],
) -> GpuParts:
    """Build the parts that look at the GPUs; the hooks are called only once threads run.

    ``drain``: returns the drain in the MigNode. ``read_mignode``: reads the MigNode.
    ``refresh_status``: writes a claim's status again. ``on_instances``: is called when instances
    came or went. ``recover``, ``settle``: see HardwareLoop. ``end``: ends the program.
    """
    options = common.options

    def sharing() -> ShareOffers:
        return node_watch.shares()

    def hurry() -> None:
        loop.hurry()

    def pause(asked: Pause | None) -> None:
        hardware.set_conflict(asked.conflict if asked is not None else None, source="pause")
        loop.notify()

    def look() -> Inventory | None:
        node_watch.look()
        return read_mignode()

    session = Session(seconds=options.nvml_timeout, on_call=common.telemetry.metrics.nvml_call)
    session.names_processes = sees_processes(options.roots)
    hardware = Hardware(common, session, sharing=sharing)
    monitor = HealthMonitor(
        common,
        hardware,
        refresh_status=refresh_status,
        on_instances=on_instances,
        on_doubt=hurry,
    )
    node_watch = NodeWatch(
        common,
        on_conflict=hardware.set_conflict,
        on_pause=pause,
        on_labels=hurry,
        on_namesake=end,
    )
    releasing = Releasing(
        common,
        hardware,
        drain=drain,
        pause=lambda: node_watch.pause,
        look=look,
        on_taken_up=monitor.forget_gpu,
    )
    library = DriverLibrary(
        options.roots, options.library_directories, end=end, reports=common.reports
    )
    loop = HardwareLoop(
        common, hardware, releasing=releasing, library=library, recover=recover, settle=settle
    )
    mig_mode = MigMode(common, hardware)
    return GpuParts(hardware, monitor, node_watch, mig_mode, library, releasing, loop)


@dataclass(frozen=True, slots=True)
class PublishingParts:
    """Parts that publish. Threads: ``statuses``, ``mignode`` and ``slices``."""

    statuses: ClaimStatuses
    inventory: NodeInventory
    mignode: MigNodePublisher
    slices: SlicePublisher
    failed_gpus: FailedGpus


def build_publishing(
    common: Common,
    gpus: GpuParts,
    *,
    facts: Callable[[], NodeFacts],
    on_reserved: Callable[[tuple[Reservation, ...]], None],
) -> PublishingParts:
    """Build the publishing parts.

    ``facts``: see NodeInventory. ``on_reserved``: see MigNodePublisher.
    """
    options = common.options
    statuses = ClaimStatuses(common, problem=gpus.monitor.problem_of)
    mode = AllocatorMode(options.allocator, on_change=common.changed)
    inventory = NodeInventory(
        common,
        mode,
        gpus.hardware,
        monitor=gpus.monitor,
        releasing=gpus.releasing,
        drain=lambda: mignode.drain,
        facts=facts,
    )
    mignode = MigNodePublisher(common, inventory=inventory.of_mignode, on_reserved=on_reserved)
    failed_gpus = FailedGpus(options.binding_conditions, on_change=common.changed)
    slices = SlicePublisher(common, mode, inventory=inventory.known, failed_gpus=failed_gpus)
    return PublishingParts(statuses, inventory, mignode, slices, failed_gpus)


@dataclass(frozen=True, slots=True)
class KubeletParts:
    """Parts that kubelet calls. Threads: those of the server."""

    sockets: Sockets
    health: HealthBoard
    server: SocketServer


def build_kubelet(
    common: Common, monitor: HealthMonitor, node: Node, *, on_registered: Callable[[], None]
) -> KubeletParts:
    """Build the parts that kubelet calls; ``on_registered`` is called once kubelet can call them.

    Raises:
        HostError: a socket's path is too long.
    """
    paths = sockets(common.options)
    health = HealthBoard(monitor.devices)
    driver = common.options.driver_name

    registration = Registration(driver, paths.service, on_registered)

    def register(server: grpc.Server) -> None:
        add_services(node, health, registration, server)

    # Kubelet connects as soon as it sees the registration socket, and waits up to 10 s for an
    # answer (operation_generator.go): the service socket is there by then.
    server = SocketServer(paths.service, paths.registration, register=register, workers=_WORKERS)
    return KubeletParts(paths, health, server)
