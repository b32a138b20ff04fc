"""Parts of the program that work on claims."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from dra.claims.allocation import AllocatedDevice
from dra.gpu.inventory import ClaimRef
from dra.kube.timing import SystemClock
from kubeletplugin.claims.allocated_elsewhere import AllocatedElsewhere
from kubeletplugin.claims.claim_watch import ClaimWatch
from kubeletplugin.claims.context import Context
from kubeletplugin.claims.early import EarlySlices
from kubeletplugin.claims.janitor import Janitor
from kubeletplugin.claims.layouts import Layouts
from kubeletplugin.claims.lookup import ClaimReader
from kubeletplugin.claims.node import Node
from kubeletplugin.claims.outcomes import Outcomes
from kubeletplugin.claims.prepare import Preparer
from kubeletplugin.claims.rebuild import Rebuild
from kubeletplugin.claims.recovery import Recovery
from kubeletplugin.claims.removal import ClaimRemoval, IdleSlices
from kubeletplugin.claims.reservations import Reservations
from kubeletplugin.claims.sharing.containers import ContainerCheck
from kubeletplugin.claims.sharing.hami_core import is_held
from kubeletplugin.claims.slices import Slices
from kubeletplugin.claims.specs import NodeNeeds, Specs
from kubeletplugin.claims.tasks import ClaimTasks
from kubeletplugin.common import Common
from kubeletplugin.daemon.build_sharing import build_sharing
from kubeletplugin.daemon.parts import GpuParts, PublishingParts
from kubeletplugin.host.driverfiles import DriverSearch
from kubeletplugin.host.processes import holders


@dataclass(frozen=True, slots=True)
class ClaimParts:
    """Parts that work on claims.

    Threads: ``janitor``, ``early``, and one for each claim of ``tasks`` that is worked on.
    ``claim_watch`` is None where nothing is made before kubelet asks for it.
    """

    node: Node
    early: EarlySlices
    reservations: Reservations
    claim_watch: ClaimWatch | None
    recovery: Recovery
    janitor: Janitor
    needs: NodeNeeds
    layouts: Layouts


def build_claims(common: Common, gpus: GpuParts, publishing: PublishingParts) -> ClaimParts:
    """Build the parts that work on claims."""
    options, hardware, observer = common.options, gpus.hardware, common.telemetry.metrics
    context = Context(
        common.journal, common.readiness, common.reports, observer, clock=SystemClock()
    )
    claims = ClaimReader(
        common.api, driver=options.driver_name, pool=options.pool, seen=observer.claim_seen
    )
    search = DriverSearch(
        options.roots, directories=options.library_directories, hook=options.cdi_hook
    )
    sharing, daemons = build_sharing(common, hardware, lambda: search.find(hardware.driver_version))
    specs = Specs(
        options.driver_name, hardware, roots=options.roots, search=search, of_client=daemons.edits
    )
    containers = ContainerCheck(
        common.api,
        common.journal,
        driver=options.driver_name,
        node=options.node_name,
        limited=partial(is_held, hardware),
    )

    def who_holds(uuid: str, pids: Collection[int]) -> str:
        unit = hardware.unit(uuid)
        return "" if unit is None else holders(options.roots, unit.known.card.minor, pids)

    def doubt(ref: ClaimRef) -> None:
        early.doubt(ref)

    def expect(ref: ClaimRef, devices: tuple[str, ...]) -> None:
        early.expect(ref, devices)

    def read(ref: ClaimRef) -> tuple[AllocatedDevice, ...]:
        claim, devices = claims.read(ref, publishing.statuses.know)
        containers.check(claim, devices)
        return devices

    def read_early(ref: ClaimRef) -> tuple[AllocatedDevice, ...]:
        seen = watch.take(ref) if watch is not None else None
        return reservations.devices(ref) or claims.read_expected(ref, seen)

    tasks = ClaimTasks()
    slices = Slices(hardware, common.journal, look=gpus.looks.ask, holders=who_holds, doubt=doubt)
    idle = IdleSlices(hardware, seconds=options.idle_seconds, leaves=gpus.releasing.leaves)
    removal = ClaimRemoval(context, slices, specs, sharing, idle=idle)
    preparer = Preparer(slices, specs, sharing, removal, read=read, read_early=read_early)
    outcomes = Outcomes(
        context,
        gpus.monitor,
        publishing.statuses,
        publishing.failed_gpus,
        on_change=common.changed,
    )
    rebuild = Rebuild(context, hardware, claims)
    node = Node(context, preparer, removal, tasks, rebuild=rebuild, outcomes=outcomes)
    reservations = Reservations(context, hardware, claims, expect=expect, on_change=common.changed)
    recovery = Recovery(
        context, preparer, removal, specs, tasks, outcomes=outcomes, fate=reservations.fate
    )
    early = EarlySlices(
        context,
        preparer,
        removal,
        tasks,
        reservations=reservations,
        outcomes=outcomes,
        seconds=options.eager_seconds,
    )
    janitor = Janitor(
        context,
        node,
        recovery,
        sharing,
        fate=reservations.fate,
        forgotten_seconds=options.forgotten_after,
        beat=common.telemetry.liveness.janitor.beat,
    )
    needs = NodeNeeds(
        hardware,
        specs,
        reports=common.reports,
        sharing=sharing.offers,
        on_change=common.changed,
        on_other_files=janitor.check_soon,
    )
    layouts = Layouts(
        context,
        slices,
        AllocatedElsewhere(claims, clock=context.clock),
        choice=gpus.node_watch.choice,
        leaves=gpus.releasing.leaves,
        enable_mig=options.enable_mig,
        on_change=common.changed,
    )
    # The controller labels this node's claims where somebody listens.
    watch = None
    if options.eager_seconds:
        watch = ClaimWatch(
            claims,
            outcomes,
            expect=reservations.heed,
            untold=partial(early.expect, again=True),
            clock=context.clock,
        )
    return ClaimParts(node, early, reservations, watch, recovery, janitor, needs, layouts)
