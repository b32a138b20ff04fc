"""Parts of the program that work on claims."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from dra.gpu.inventory import AnswerState, ClaimRef
from dra.kube.timing import SystemClock
from kubeletplugin.claims.claim_tasks import ClaimTasks
from kubeletplugin.claims.eager.awaited_claims import AwaitedClaims
from kubeletplugin.claims.eager.claim_watch import ClaimWatch
from kubeletplugin.claims.eager.eager_creation import EagerCreation
from kubeletplugin.claims.eager.overdue import OverdueSlices
from kubeletplugin.claims.eager.reservations import Reservations
from kubeletplugin.claims.eager.watched_claims import WatchedClaims
from kubeletplugin.claims.ending.claim_fate import ClaimFate, claim_fate
from kubeletplugin.claims.ending.janitor import Janitor
from kubeletplugin.claims.ending.release import Release
from kubeletplugin.claims.failed_claims import FailedClaims
from kubeletplugin.claims.node import Node
from kubeletplugin.claims.nodeneeds import NodeNeeds
from kubeletplugin.claims.prepare.idle_slices import IdleSlices
from kubeletplugin.claims.prepare.removal import Removal
from kubeletplugin.claims.recovery.allocated_elsewhere import AllocatedElsewhere
from kubeletplugin.claims.recovery.given_devices import claim_of, claims_of
from kubeletplugin.claims.recovery.layouts import Layouts
from kubeletplugin.claims.recovery.lost_slices import LostSlices
from kubeletplugin.claims.recovery.ready_slices import ReadySlices
from kubeletplugin.claims.recovery.rebuild import Rebuild
from kubeletplugin.claims.recovery.recovery import Recovery
from kubeletplugin.claims.settling import Settling
from kubeletplugin.claims.upkeep import Upkeep
from kubeletplugin.daemon.build_gpus import GpuParts
from kubeletplugin.daemon.build_prepare import build_prepare
from kubeletplugin.daemon.build_publishing import PublishingParts
from kubeletplugin.daemon.common import Common
from kubeletplugin.errors import PluginError


@dataclass(frozen=True, slots=True)
class ClaimParts:
    """Parts that work on claims.

    Threads: ``janitor``, ``eager``, and one for each claim of ``tasks`` that is worked on.

    ``claim_watch`` is None where nothing is made before kubelet asks for it.
    """

    node: Node
    failed: FailedClaims
    tasks: ClaimTasks
    eager: EagerCreation
    reservations: Reservations
    claim_watch: ClaimWatch | None
    recovery: Recovery
    rebuild: Rebuild
    janitor: Janitor
    needs: NodeNeeds
    layouts: Layouts


def build_claims(common: Common, gpus: GpuParts, publishing: PublishingParts) -> ClaimParts:
    """Build the parts that work on claims."""
    options, api, journal = common.options, common.api, common.journal
    reports, readiness, statuses = common.reports, common.readiness, publishing.statuses
    hardware, observer = gpus.hardware, common.telemetry.metrics

    def doubt(ref: ClaimRef) -> None:
        eager.doubt(ref)

    def expect(ref: ClaimRef, devices: tuple[str, ...]) -> None:
        eager.expect(ref, devices)

    def fate(ref: ClaimRef) -> ClaimFate:
        driver, pool, seen = options.driver_name, options.pool, observer.claim_seen
        return reservations.fate(ref) or claim_fate(api, ref, driver=driver, pool=pool, seen=seen)

    watched = WatchedClaims(SystemClock())
    reservations = Reservations(
        hardware,
        journal,
        driver=options.driver_name,
        pool=options.pool,
        expect=expect,
        on_change=common.changed,
    )
    prepare = build_prepare(
        common,
        gpus,
        reservations=reservations,
        watched=watched,
        know=statuses.know,
        doubt=doubt,
    )

    def finish(ref: ClaimRef) -> None:
        prepare.preparer.prepare(ref)
        statuses.show_devices(ref, journal.of_claim(ref.uid))

    tasks = ClaimTasks()
    failed = FailedClaims(on_change=common.changed)
    lost_slices = LostSlices(
        hardware,
        journal,
        prepare.specs,
        fate=fate,
        finish=prepare.preparer.prepare,
        reports=reports,
        observer=observer,
    )
    recovery = Recovery(
        journal,
        prepare.specs,
        prepare.rollback,
        lost_slices,
        tasks,
        fate=fate,
        finish=finish,
        cut_short=failed.cut_short,
        finish_ahead=prepare.preparer.make_ahead,
        observer=observer,
    )
    rebuild = Rebuild(
        hardware,
        journal,
        claims=partial(claims_of, api, driver=options.driver_name, pool=options.pool),
        claim=partial(claim_of, api, driver=options.driver_name),
        reports=reports,
        driver=options.driver_name,
        pool=options.pool,
        observer=observer,
    )
    idle = IdleSlices(hardware, seconds=options.idle_seconds, leaves=gpus.releasing.leaves)
    release = Release(
        journal,
        prepare.rollback,
        readiness=readiness,
        recovery=recovery,
        rebuild=rebuild,
        statuses=statuses,
        keep=idle.keeps,
    )
    settling = Settling(
        journal,
        gpus.monitor,
        statuses,
        reports,
        failed_claims=failed,
        failed_gpus=publishing.failed_gpus,
        pool=options.pool,
    )
    awaited = AwaitedClaims(statuses, journal, pool=options.pool)

    def not_made_ahead(ref: ClaimRef, error: PluginError) -> None:
        if reservations.end(ref, AnswerState.FAILED, str(error)):
            return
        settling.not_made_ahead(ref, error)
        awaited.failed(ref, error)

    def may_be_bound(uid: str) -> bool:
        return not awaited.has(uid) and reservations.seconds_left(uid) is None

    overdue = OverdueSlices(journal, statuses, expected=may_be_bound, clock=SystemClock())

    def answered(ref: ClaimRef) -> None:
        failed.forget(ref)
        overdue.asked()

    node = Node(
        readiness=readiness,
        journal=journal,
        preparer=prepare.preparer,
        release=release,
        tasks=tasks,
        statuses=statuses,
        rebuild=rebuild,
        settled=settling.settle,
        answered=answered,
        observer=observer,
    )
    janitor = Janitor(
        journal,
        Upkeep(
            journal,
            tasks,
            rollback=prepare.rollback,
            recovery=recovery,
            lost_slices=lost_slices,
            rebuild=rebuild,
            statuses=statuses,
            sharing=prepare.sharing,
            observer=observer,
        ),
        tasks,
        release=release.release,
        processes=prepare.rollback.processes,
        readiness=readiness,
        fate=fate,
        reports=reports,
        forgotten_seconds=options.forgotten_after,
        idle=idle,
        observer=observer,
        beat=common.telemetry.liveness.janitor.beat,
    )
    eager = EagerCreation(
        hardware,
        journal,
        tasks,
        preparer=prepare.preparer,
        rollback=prepare.rollback,
        readiness=readiness,
        fate=fate,
        seconds=options.eager_seconds,
        reservations=reservations,
        overdue=overdue,
        on_made=awaited.made,
        on_failure=not_made_ahead,
        awaited=awaited.has,
        on_end=failed.forget,
        observer=observer,
    )
    needs = NodeNeeds(
        hardware,
        prepare.specs,
        reports=reports,
        sharing=prepare.sharing.offers,
        on_change=common.changed,
        on_other_files=janitor.check_soon,
    )
    watch = _build_watch(common, reservations, awaited, eager, watched)
    layouts = _build_layouts(common, gpus, prepare.removal)
    return ClaimParts(
        node=node,
        failed=failed,
        tasks=tasks,
        eager=eager,
        reservations=reservations,
        claim_watch=watch,
        recovery=recovery,
        rebuild=rebuild,
        janitor=janitor,
        needs=needs,
        layouts=layouts,
    )


def _build_layouts(common: Common, gpus: GpuParts, removal: Removal) -> Layouts:
    options, journal = common.options, common.journal
    allocated = AllocatedElsewhere(
        common.api, driver=options.driver_name, pool=options.pool, clock=SystemClock()
    )
    return Layouts(
        gpus.hardware,
        journal,
        ReadySlices(gpus.hardware, journal, removal),
        choice=gpus.choice.current,
        leaves=gpus.releasing.leaves,
        enable_mig=options.enable_mig,
        allocated=allocated,
        reports=common.reports,
        on_change=common.changed,
    )


def _build_watch(
    common: Common,
    reservations: Reservations,
    awaited: AwaitedClaims,
    eager: EagerCreation,
    watched: WatchedClaims,
) -> ClaimWatch | None:
    """The watch of this node's claims, which the controller labels, where somebody listens."""
    options = common.options
    if not options.eager_seconds:
        return None
    return ClaimWatch(
        common.api,
        driver=options.driver_name,
        pool=options.pool,
        expect=reservations.heed,
        awaited=awaited,
        untold=partial(eager.expect, again=True),
        told=watched.note,
    )
