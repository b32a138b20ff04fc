"""Parts of the program that show others what is on this node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dra.gpu.inventory import NodeMode, Reservation
from kubeletplugin.daemon.build_gpus import GpuParts
from kubeletplugin.daemon.common import Common
from kubeletplugin.publishing.allocatormode import AllocatorMode
from kubeletplugin.publishing.claimstatus import ClaimStatuses
from kubeletplugin.publishing.mignode_publisher import MigNodePublisher
from kubeletplugin.publishing.nodeinventory import NodeInventory, Outcomes
from kubeletplugin.publishing.slices.failed_gpus import FailedGpus
from kubeletplugin.publishing.slices.slicepublish import SlicePublisher


@dataclass(frozen=True, slots=True)
class PublishingParts:
    """Parts that publish. Threads: ``statuses``, ``mignode`` and ``slices``."""

    statuses: ClaimStatuses
    inventory: NodeInventory
    mignode: MigNodePublisher
    slices: SlicePublisher
    failed_gpus: FailedGpus


def build_publishing(  # noqa: PLR0913 - whom it asks
    common: Common,
    gpus: GpuParts,
    *,
    missing: Callable[[], str],
    cdi_hook: Callable[[], str],
    node_mode: Callable[[], NodeMode | None],
    outcomes: Callable[[], Outcomes],
    on_reserved: Callable[[tuple[Reservation, ...]], None],
) -> PublishingParts:
    """Build the publishing parts; the callables are NodeInventory's."""
    options, api = common.options, common.api
    statuses = ClaimStatuses(
        api,
        options.driver_name,
        later=common.changed,
        problem=gpus.monitor.problem_of,
        seen=common.telemetry.metrics.claim_seen,
    )
    mode = AllocatorMode(options.allocator, on_change=common.changed)
    inventory = NodeInventory(
        options,
        mode,
        common.readiness,
        hardware=gpus.hardware,
        journal=common.journal,
        gpus=gpus.monitor.gpus,
        drain=lambda: mignode.drain,
        missing=missing,
        unseen=gpus.releasing.unseen,
        before=lambda: gpus.releasing.before,
        cdi_hook=cdi_hook,
        node_mode=node_mode,
        outcomes=outcomes,
    )
    mignode = MigNodePublisher(
        api,
        options.node_name,
        field_manager=options.field_manager,
        inventory=inventory.of_mignode,
        on_drain=common.changed,
        on_reserved=on_reserved,
    )
    failed_gpus = FailedGpus(options.binding_conditions, on_change=common.changed)
    slices = SlicePublisher(
        api,
        options,
        mode,
        inventory=inventory.known,
        failed_gpus=failed_gpus,
        reports=common.reports,
    )
    return PublishingParts(statuses, inventory, mignode, slices, failed_gpus)
