"""Parts of the program that look at the GPUs, and decide which are held open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dra.gpu.inventory import Drain, Inventory
from dra.kube.timing import SystemClock
from kubeletplugin.daemon.common import Common
from kubeletplugin.gpus.coexistence.node_choice import NodeChoice
from kubeletplugin.gpus.coexistence.nodewatch import NodeWatch
from kubeletplugin.gpus.coexistence.pausing import Pause, Pauses
from kubeletplugin.gpus.coexistence.share_choice import ShareChoice, ShareOffers
from kubeletplugin.gpus.gpu_names import GpuNames, used_names
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.health.health_reports import RefreshStatus
from kubeletplugin.gpus.health.monitor import HealthMonitor
from kubeletplugin.gpus.lifecycle.driverlibrary import DriverLibrary
from kubeletplugin.gpus.lifecycle.hardwareloop import HardwareLoop
from kubeletplugin.gpus.lifecycle.migmode import MigMode
from kubeletplugin.gpus.lifecycle.releasing import Releasing
from kubeletplugin.gpus.looks import Looks
from kubeletplugin.host.class_files import ClassFiles
from kubeletplugin.host.processes import runs_mig_manager, sees_processes
from kubeletplugin.nvml.session import Session


@dataclass(frozen=True, slots=True)
class GpuParts:
    """Parts that look at the GPUs.

    Threads: ``loop``, ``looks``, ``monitor`` and those of ``node_watch``.
    """

    hardware: Hardware
    looks: Looks
    monitor: HealthMonitor
    node_watch: NodeWatch
    choice: NodeChoice
    mig_mode: MigMode
    library: DriverLibrary
    releasing: Releasing
    loop: HardwareLoop


def build_gpus(  # noqa: PLR0913 - whom they tell, and what they ask of the rooms above
    common: Common,
    *,
    drain: Callable[[], Drain | None],
    read_mignode: Callable[[], Inventory | None],
    refresh_status: RefreshStatus,
    on_instances: Callable[[], None],
    recover: Callable[[], None],
    settle: Callable[[], float | None],
    end: Callable[[], None],
) -> GpuParts:
    """Build the parts that look at the GPUs; the hooks are called once threads run, not before.

    ``drain`` and ``read_mignode`` say what is asked of this node, ``refresh_status`` shows the
    devices of a claim anew, ``on_instances`` hears that instances came or went. ``recover`` and
    ``settle`` are HardwareLoop's; ``end`` ends the program.
    """
    options, reports, journal = common.options, common.reports, common.journal

    def sharing() -> ShareOffers:
        return shares.current()

    def look_later(gpu: str) -> None:
        looks.ask(gpu)

    def hurry() -> None:
        loop.hurry()

    hardware = build_hardware(common, sharing, look_later)
    monitor = HealthMonitor(
        hardware,
        journal,
        rules=options.xids,
        reports=reports,
        refresh_status=refresh_status,
        ready=lambda: common.readiness.is_ready,
        on_change=common.changed,
        on_instances=on_instances,
        on_doubt=hurry,
    )

    def pause(asked: Pause | None) -> None:
        hardware.set_conflict(asked.conflict if asked is not None else None, source="pause")
        loop.notify()

    files = None if options.node_classes is None else ClassFiles(options.node_classes)

    choice = NodeChoice(files, driver=options.driver_name, on_change=hurry)
    shares = ShareChoice(options.gpu_shares, options.slice_shares, choice=choice.current)
    node_watch = NodeWatch(
        common.api,
        options.node_name,
        driver=options.driver_name,
        on_conflict=hardware.set_conflict,
        on_namesake=end,
        pauses=Pauses(options.pause_labels, reports=reports, on_change=pause),
        choice=choice,
        runs_mig_manager=lambda: runs_mig_manager(options.roots),
        ignore=options.ignore_other_managers,
        reports=reports,
    )

    def look() -> Inventory | None:
        node_watch.look()
        return read_mignode()

    releasing = Releasing(
        hardware,
        journal,
        options.node_name,
        drain=drain,
        pause=lambda: node_watch.pauses.current,
        look=look,
        reports=reports,
        on_taken_up=monitor.forget_gpu,
    )
    library = DriverLibrary(options.roots, options.library_directories, end=end, reports=reports)
    loop = HardwareLoop(
        hardware,
        common.readiness,
        holding=releasing,
        recover=recover,
        settle=settle,
        library=library,
        beat=common.telemetry.liveness.hardware.beat,
    )
    mig_mode = MigMode(hardware, journal, roots=options.roots, reports=reports, clock=SystemClock())
    looks = Looks(hardware.try_look, follow=hardware.follow, on_read_back=common.changed)
    return GpuParts(
        hardware, looks, monitor, node_watch, choice, mig_mode, library, releasing, loop
    )


def build_hardware(
    common: Common, sharing: Callable[[], ShareOffers], look_later: Callable[[str], None]
) -> Hardware:
    """Build the GPUs as this node has them; nothing is asked of NVML yet."""
    roots, observer = common.options.roots, common.telemetry.metrics
    names = GpuNames(roots.state / "gpus.json", hints=used_names(common.journal.entries()))
    session = Session(seconds=common.options.nvml_timeout, on_call=observer.nvml_call)
    session.names_processes = sees_processes(roots)
    return Hardware(
        session,
        common.journal,
        names,
        roots=roots,
        on_change=common.changed,
        on_lock_wait=observer.lock_wait,
        sharing=sharing,
        look_later=look_later,
    )
