"""The running program: its parts, and the order in which they are started and stopped."""
# ruff: noqa: PLW0108 - a lambda calls a part that is built later

from __future__ import annotations

import logging
import threading
from collections.abc import Collection

import grpc

from dra.claims.allocation import AllocatedDevice
from dra.claims.claims import Claim
from dra.claims.reasons import NodeReason
from dra.gpu.inventory import (
    HOST_USERS_ONLY,
    SETS_CONDITIONS,
    ClaimRef,
    Inventory,
)
from dra.kube.client import KubeApi
from dra.kube.loop import Loop
from kubeletplugin import times
from kubeletplugin.claims.allocated_elsewhere import AllocatedElsewhere
from kubeletplugin.claims.claim_watch import ClaimWatch
from kubeletplugin.claims.early import EarlySlices
from kubeletplugin.claims.holders import Holders
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
from kubeletplugin.claims.takeover import Takeover
from kubeletplugin.common import Common, build_common
from kubeletplugin.gpus.driverlibrary import DriverLibrary
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.loop import HardwareLoop
from kubeletplugin.gpus.migmode import MigMode
from kubeletplugin.gpus.monitor import HealthMonitor
from kubeletplugin.gpus.node import NodeWatch, Pause, refuse_namesake
from kubeletplugin.gpus.releasing import Releasing
from kubeletplugin.host.driverfiles import DriverFiles, DriverSearch
from kubeletplugin.host.podresources import PodResources
from kubeletplugin.host.processes import holders as programs
from kubeletplugin.host.processes import sees_processes
from kubeletplugin.journal.entries import HELD
from kubeletplugin.kubelet.services import HealthBoard, Registration, add_services
from kubeletplugin.nvml.session import Session
from kubeletplugin.options import Options
from kubeletplugin.ownership import exclusive, is_replica, this_program
from kubeletplugin.publishing.mignode import (
    AllocatorMode,
    MigNodePublisher,
    NodeFacts,
    NodeInventory,
)
from kubeletplugin.publishing.resourceslices import FailedGpus, SlicePublisher
from kubeletplugin.publishing.statuses import ClaimStatuses
from kubeletplugin.sockets import SocketServer, remove_stale, sockets
from kubeletplugin.telemetry.telemetry import Telemetry

_log = logging.getLogger(__name__)
_WORKERS = 130
"""Calls served at once: Prepare and Unprepare of each of 56 slices on GPUs that hang, the streams
of health, and a new registration."""


class Daemon:
    """Plugin of one node, run by the process that has the node's GPUs (``ownership``).

    Its parts are built in four steps, lower ones first. A part that is built earlier calls one that
    is built later only once threads run.
    """

    def __init__(self, options: Options, api: KubeApi, telemetry: Telemetry) -> None:
        self._ending = threading.Event()
        self.common = common = build_common(options, api, telemetry)
        self._build_gpus(common)
        self._build_publishing(common)
        self._build_claims(common)
        self._build_kubelet(common)
        self._listen()

    # -- the parts

    def _build_gpus(self, common: Common) -> None:
        """Build the parts that look at the GPUs."""
        options = common.options
        session = Session(seconds=options.nvml_timeout, on_call=common.telemetry.metrics.nvml_call)
        session.names_processes = sees_processes(options.roots)
        self.hardware = Hardware(common, session, sharing=lambda: self.node_watch.shares())
        self.monitor = HealthMonitor(
            common,
            self.hardware,
            refresh_status=lambda ref: self.statuses.show(ref),
            on_instances=lambda: self.janitor.check_soon(),
            on_doubt=lambda: self.loop.hurry(),
        )
        self.node_watch = NodeWatch(
            common,
            on_conflict=self.hardware.set_conflict,
            on_pause=self._pause,
            on_labels=lambda: self.loop.hurry(),
            on_namesake=self._end,
        )
        self.releasing = Releasing(
            common,
            self.hardware,
            drain=lambda: self.mignode.wishes.drain,
            pause=lambda: self.node_watch.pause,
            look=self._look,
            on_taken_up=self.monitor.forget_gpu,
        )
        self.library = DriverLibrary(
            options.roots,
            options.library_directories,
            end=self._end,
            reports=common.reports,
            clock=common.clock,
        )
        self.loop = HardwareLoop(
            common,
            self.hardware,
            releasing=self.releasing,
            library=self.library,
            recover=self._recover,
            settle=self._settle,
        )
        self.mig_mode = MigMode(common, self.hardware)

    def _build_publishing(self, common: Common) -> None:
        """Build the parts that publish."""
        options = common.options
        self.statuses = ClaimStatuses(common, problem=self.monitor.problem_of)
        mode = AllocatorMode(options.allocator, on_change=common.changed)
        self.inventory = NodeInventory(
            common,
            mode,
            self.hardware,
            monitor=self.monitor,
            releasing=self.releasing,
            wishes=lambda: self.mignode.wishes,
            facts=self._facts,
        )
        self.mignode = MigNodePublisher(
            common,
            inventory=self.inventory.of_mignode,
            responds=common.telemetry.liveness.responds,
        )
        self.failed_gpus = FailedGpus(
            options.binding_conditions, on_change=common.changed, clock=common.clock
        )
        self.resource_slices = SlicePublisher(
            common, mode, inventory=self.inventory.known, failed_gpus=self.failed_gpus
        )

    def _build_claims(self, common: Common) -> None:
        """Build the parts that work on claims."""
        options, hardware = common.options, self.hardware
        claims = ClaimReader(
            common.api,
            driver=options.driver_name,
            pool=options.pool,
            seen=common.telemetry.claims.see,
            asked=self.statuses.know,
        )
        search = DriverSearch(
            options.roots,
            directories=options.library_directories,
            programs=options.program_directories,
            hook=options.cdi_hook,
        )

        def files() -> DriverFiles:
            return search.find(hardware.driver_version)

        sharing = DeviceSharing(common, hardware, files)
        specs = Specs(
            options.driver_name,
            hardware,
            roots=options.roots,
            search=search,
            sharing=sharing.edits,
            runtime=lambda: self.node_watch.runtime,
        )

        def who_holds(uuid: str, pids: Collection[int]) -> str:
            unit = hardware.unit(uuid)
            return "" if unit is None else programs(options.roots, unit.card.minor, pids)

        def read_early(ref: ClaimRef) -> tuple[Claim | None, tuple[AllocatedDevice, ...]]:
            seen = self.claim_watch.take(ref) if self.claim_watch is not None else None
            return claims.read_expected(ref, seen)

        slices = Slices(
            hardware,
            common.journal,
            holders=who_holds,
            doubt=lambda ref: self.early.doubt(ref),
        )
        kubelet = PodResources(options.roots.kubelet / "pod-resources/kubelet.sock")
        self.takeover = Takeover(
            common,
            slices,
            kubelet,
            wishes=lambda: self.mignode.wishes,
            other_manager=self.node_watch.other_manager,
        )

        def leaves(gpu: str) -> bool:
            return self.releasing.leaves(gpu) or self.takeover.leaves()

        idle = IdleSlices(hardware, seconds=options.idle_seconds, leaves=leaves, clock=common.clock)
        removal = ClaimRemoval(common, slices, specs, sharing, idle=idle)
        holders = Holders(options.roots, kubelet, driver=options.driver_name)
        self.node = Node(
            common,
            Preparer(slices, specs, sharing, removal, read=claims.read, read_early=read_early),
            removal,
            ClaimTasks(),
            rebuild=Rebuild(common, hardware, claims, holders),
            outcomes=Outcomes(common, self.monitor, self.statuses, self.failed_gpus),
            holders=holders,
        )
        self.early = EarlySlices(common, self.node, claims, seconds=options.eager_seconds)
        self.janitor = Janitor(
            common,
            self.node,
            self.early,
            specs,
            sharing,
            takeover=self.takeover,
            forgotten_seconds=options.forgotten_after,
        )
        self.needs = NodeNeeds(
            common,
            hardware,
            specs,
            sharing=sharing.offers,
            on_other_files=self.janitor.check_soon,
        )
        self.layouts = Layouts(
            common,
            slices,
            AllocatedElsewhere(claims, clock=common.clock),
            choice=self.node_watch.choice,
            leaves=leaves,
        )
        # The controller writes the label only if slices are to be made before kubelet asks.
        self.claim_watch = (
            ClaimWatch(claims, self.node.outcomes, self.early, clock=common.clock)
            if options.eager_seconds
            else None
        )

    def _build_kubelet(self, common: Common) -> None:
        """Build the parts that kubelet calls.

        Raises:
            HostError: a socket's path is too long.
        """
        self.sockets = sockets(common.options)
        self.health = HealthBoard(self.monitor.devices)
        driver, outcomes = common.options.driver_name, self.node.outcomes
        registration = Registration(driver, self.sockets.service, outcomes.registered)

        def register(server: grpc.Server) -> None:
            add_services(self.node, self.health, registration, server)

        # Kubelet connects as soon as it sees the registration socket, and waits up to 10 s for an
        # answer (operation_generator.go): the service socket is there by then.
        self.server = SocketServer(
            self.sockets.service, self.sockets.registration, register=register, workers=_WORKERS
        )

    # -- its life

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set, then finish the calls that are under way.

        Raises:
            HostError: a socket cannot be used.
        """
        self._ending = stop
        remove_stale(self.common.options)
        self.server.start()
        for thread in self._threads:
            thread.start()
        self.node_watch.start()
        if self.claim_watch is not None:
            self.claim_watch.start()
        # Until the GPUs are known, the MigNode of the last run is better than an empty one.
        self.common.readiness.wait_decided(times.FIRST_LOOK_SECONDS)
        self.mignode.start()
        self.resource_slices.start()
        self._begin_probes()
        stop.wait()
        self._stop()

    def _listen(self) -> None:
        """Register the parts that are to be called after changes on this node."""
        common = self.common
        common.telemetry.watch(self.monitor.gpus, common.journal, common.readiness)
        common.changed.add_first(self.hardware.follow)
        common.changed.add(
            lambda: common.reports.report_journal(common.journal.failure),
            self.health.notify,
            self.statuses.thread.notify,
            self.mignode.notify,
            self.resource_slices.notify,
            self.monitor.thread.notify,
            self.loop.notify,
        )

    @property
    def _threads(self) -> tuple[Loop, ...]:
        """Threads to start before the first MigNode is written."""
        changed, statuses = self.common.changed.thread, self.statuses.thread
        last = (self.loop, self.monitor, self.janitor, self.early)
        return (changed, statuses, self.hardware.looks, *(part.thread for part in last))

    def _begin_probes(self) -> None:
        publishers = (self.mignode.thread, self.resource_slices.thread)
        self.common.telemetry.liveness.begin(
            self.sockets,
            self.common.readiness,
            threads=[thread.problem for thread in (*self._threads, *publishers)],
            overdue=self.library.overdue,
        )

    def _stop(self) -> None:
        """Stop all parts within ``STOP_SECONDS``; work that hangs is left to the next start."""
        stopping = threading.Thread(target=self._stop_parts, name="stop", daemon=True)
        stopping.start()
        stopping.join(times.STOP_SECONDS)
        if stopping.is_alive():
            _log.error("stopped before all work was done, as something hangs")

    def _stop_parts(self) -> None:
        _log.info("stopping: no new calls, running ones are finished")
        self.common.telemetry.liveness.end()
        if self.claim_watch is not None:
            self.claim_watch.stop()
        _finish(self.early.thread)
        self.server.withdraw(self.sockets.registration)
        self.health.close()
        self.server.stop(times.DRAIN_SECONDS)
        self.node.tasks.wait_idle(times.DRAIN_SECONDS)
        self.janitor.thread.stop()
        self.janitor.give_up_idle()
        self.node.tasks.stop()
        self.janitor.leave()
        self.node_watch.stop()
        self.monitor.stop()
        _finish(self.loop.thread, self.hardware.looks, self.common.changed.thread)
        self.resource_slices.stop()
        self.mignode.stop()
        self.statuses.stop()
        self.common.events.close()
        _log.info("stopped")

    def _look(self) -> Inventory | None:
        """Read the Node and the MigNode from the API server; returns the MigNode's inventory."""
        self.node_watch.look()
        return self.mignode.look()

    def _facts(self) -> NodeFacts:
        outcomes, needs = self.node.outcomes, self.needs
        return NodeFacts(
            outcomes.listed(),
            outcomes.resumed,
            capabilities=(
                *((SETS_CONDITIONS,) if self.claim_watch is not None else ()),
                *(() if self.hardware.makes_nodes else (HOST_USERS_ONLY,)),
                *needs.offers,
            ),
            mode=self.layouts.mode,
            progress=self.takeover.progress,
            missing=needs.missing,
            cdi_hook=needs.hook,
        )

    def _pause(self, asked: Pause | None) -> None:
        conflict = asked.conflict if asked is not None else None
        self.hardware.set_conflict(conflict, source="pause")
        self.loop.notify()

    def _settle(self) -> float | None:
        self.needs.look()
        self.node_watch.look_again()
        soon = self.layouts.settle()
        self.mig_mode.settle(self.layouts.wants_mig)
        return soon

    def _end(self) -> None:
        """End this process in order; its container is then started again."""
        self._ending.set()

    def _recover(self) -> None:
        common, statuses = self.common, self.statuses
        for problem in common.journal.problems:
            _log.error("journal: %s", problem)
            common.reports.report_node(NodeReason.CORRUPTED, f"journal: {problem}", warning=True)
        self.node_watch.look()
        self.takeover.begin()
        self.node.rebuild.run()
        self.janitor.recover()
        self.layouts.begin()
        for ref in dict.fromkeys(e.claim for e in common.journal.entries() if e.state in HELD):
            statuses.show(ref)


def _finish(*threads: Loop) -> None:
    """Stop the threads one after another; each finishes its present turn."""
    for thread in threads:
        thread.stop()
        thread.join()


def serve(options: Options, api: KubeApi, telemetry: Telemetry, stop: threading.Event) -> None:
    """Run the plugin until ``stop`` is set; a second one of the node waits until the first ends.

    Raises:
        HostError: a socket, the state directory or the journal cannot be used, or NVIDIA's own DRA
            driver runs under the same driver name.
    """
    sockets(options)  # raises for a path that is too long, before this process waits
    own = this_program(options.driver_name)

    def waits(owner: str) -> None:
        """During an update it is ready; one that is installed besides never will be."""
        problem = "" if is_replica(own, owner) else f"{owner} has the GPUs of this node"
        telemetry.liveness.stand_by(problem)

    with exclusive(options.roots.registry, own, stop, waits=waits) as alone:
        if alone:
            refuse_namesake(options, api)
            Daemon(options, api, telemetry).run(stop)
