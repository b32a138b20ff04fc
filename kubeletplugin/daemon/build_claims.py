"""Parts of the program that work on claims."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dra.claims.allocation import AllocatedDevice
from dra.claims.claims import Claim
from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.allocated_elsewhere import AllocatedElsewhere
from kubeletplugin.claims.claim_watch import ClaimWatch
from kubeletplugin.claims.early import EarlySlices
from kubeletplugin.claims.janitor import Janitor
from kubeletplugin.claims.layouts import Layouts
from kubeletplugin.claims.lookup import ClaimReader
from kubeletplugin.claims.node import ClaimTasks, Node
from kubeletplugin.claims.outcomes import Outcomes
from kubeletplugin.claims.prepare import Preparer
from kubeletplugin.claims.rebuild import Rebuild
from kubeletplugin.claims.removal import ClaimRemoval, IdleSlices
from kubeletplugin.claims.sharing.sharing import DeviceSharing
from kubeletplugin.claims.slices import Slices
from kubeletplugin.claims.specs import NodeNeeds, Specs
from kubeletplugin.common import Common
from kubeletplugin.daemon.parts import GpuParts, PublishingParts
from kubeletplugin.host.driverfiles import DriverFiles, DriverSearch
from kubeletplugin.host.processes import holders


@dataclass(frozen=True, slots=True)
class ClaimParts:
    """Parts that work on claims.

    Threads: ``janitor``, ``early``, and one for each claim that ``node.tasks`` works on.
    ``claim_watch``: None if slices are not to be made before kubelet asks.
    """

    node: Node
    early: EarlySlices
    claim_watch: ClaimWatch | None
    janitor: Janitor
    needs: NodeNeeds
    layouts: Layouts


def build_claims(common: Common, gpus: GpuParts, publishing: PublishingParts) -> ClaimParts:
    """Build the parts that work on claims."""
    options, hardware = common.options, gpus.hardware
    claims = ClaimReader(
        common.api,
        driver=options.driver_name,
        pool=options.pool,
        seen=common.telemetry.claims.see,
        asked=publishing.statuses.know,
    )
    search = DriverSearch(
        options.roots, directories=options.library_directories, hook=options.cdi_hook
    )

    def files() -> DriverFiles:
        return search.find(hardware.driver_version)

    sharing = DeviceSharing(common, hardware, files)
    specs = Specs(
        options.driver_name, hardware, roots=options.roots, search=search, sharing=sharing.edits
    )

    def who_holds(uuid: str, pids: Collection[int]) -> str:
        unit = hardware.unit(uuid)
        return "" if unit is None else holders(options.roots, unit.card.minor, pids)

    def doubt(ref: ClaimRef) -> None:
        early.doubt(ref)

    def read_early(ref: ClaimRef) -> tuple[Claim | None, tuple[AllocatedDevice, ...]]:
        seen = watch.take(ref) if watch is not None else None
        if devices := early.devices(ref):
            return None, devices
        return claims.read_expected(ref, seen)

    slices = Slices(hardware, common.journal, holders=who_holds, doubt=doubt)
    idle = IdleSlices(hardware, seconds=options.idle_seconds, leaves=gpus.releasing.leaves)
    removal = ClaimRemoval(common, slices, specs, sharing, idle=idle)
    node = Node(
        common,
        Preparer(slices, specs, sharing, removal, read=claims.read, read_early=read_early),
        removal,
        ClaimTasks(),
        rebuild=Rebuild(common, hardware, claims),
        outcomes=Outcomes(common, gpus.monitor, publishing.statuses, publishing.failed_gpus),
    )
    early = EarlySlices(common, node, claims, seconds=options.eager_seconds)
    janitor = Janitor(
        common, node, early, specs, sharing, forgotten_seconds=options.forgotten_after
    )
    needs = NodeNeeds(
        common, hardware, specs, sharing=sharing.offers, on_other_files=janitor.check_soon
    )
    layouts = Layouts(
        common,
        slices,
        AllocatedElsewhere(claims, clock=common.clock),
        choice=gpus.node_watch.choice,
        leaves=gpus.releasing.leaves,
    )
    # The controller writes the label only if slices are to be made before kubelet asks.
    watch = None
    if options.eager_seconds:
        watch = ClaimWatch(claims, node.outcomes, early, clock=common.clock)
    return ClaimParts(node, early, watch, janitor, needs, layouts)
