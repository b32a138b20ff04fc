"""The program as a whole: the order in which its parts are started and stopped."""

from __future__ import annotations

import logging
import threading
from functools import partial

import grpc

from api.kubelet.pluginregistration.v1 import api_pb2_grpc as registration_v1
from dra.claims.reasons import NodeReason
from dra.gpu.inventory import ClaimRef, Inventory
from dra.kube.client.transport import KubeApi
from dra.kube.events.events import EventRecorder
from dra.monitoring.events import CountingSink
from kubeletplugin.claims.claim_fate import claim_fate
from kubeletplugin.claims.claim_tasks import ClaimTasks
from kubeletplugin.claims.janitor import Janitor
from kubeletplugin.claims.node import Node
from kubeletplugin.claims.nodeneeds import NodeNeeds
from kubeletplugin.claims.prepare.lookup import read_devices
from kubeletplugin.claims.prepare.occupancy import Occupancy
from kubeletplugin.claims.prepare.prepare import Preparer
from kubeletplugin.claims.prepare.removal import Removal
from kubeletplugin.claims.prepare.rollback import Rollback
from kubeletplugin.claims.prepare.slices import Slices
from kubeletplugin.claims.prepare.specs import Specs
from kubeletplugin.claims.rebuild import Rebuild, claims_of
from kubeletplugin.claims.recovery import Recovery
from kubeletplugin.claims.release import Release
from kubeletplugin.claims.upkeep import Upkeep
from kubeletplugin.errors import PluginError, denied_gpu, is_permanent
from kubeletplugin.gpus.gpu_names import GpuNames, used_names
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.hardwareloop import HardwareLoop
from kubeletplugin.gpus.health.device_health import DeviceProblem
from kubeletplugin.gpus.health.monitor import HealthMonitor
from kubeletplugin.gpus.lifecycle.driverlibrary import DriverLibrary
from kubeletplugin.gpus.lifecycle.letgo import LettingGo
from kubeletplugin.gpus.lifecycle.migmode import MigMode
from kubeletplugin.gpus.neighbours.nodewatch import NodeWatch
from kubeletplugin.gpus.neighbours.pausing import Pause, Pauses
from kubeletplugin.host.driversearch import DriverSearch
from kubeletplugin.host.grpcserver import SocketServer
from kubeletplugin.host.options import Options
from kubeletplugin.host.pidnamespace import sees_processes
from kubeletplugin.host.sockets import remove_stale, sockets
from kubeletplugin.journal.entries import HELD, Entry
from kubeletplugin.journal.journal import Journal
from kubeletplugin.kubelet.health import HealthBoard
from kubeletplugin.kubelet.registration import Registration
from kubeletplugin.kubelet.services import add_services
from kubeletplugin.nvml.session.session import Session
from kubeletplugin.publishing.allocatormode import AllocatorMode
from kubeletplugin.publishing.claimstatus import ClaimStatuses
from kubeletplugin.publishing.mignode_publisher import MigNodePublisher
from kubeletplugin.publishing.nodeinventory import NodeInventory
from kubeletplugin.publishing.slices.slicepublish import SlicePublisher
from kubeletplugin.readiness import Readiness
from kubeletplugin.telemetry.diskreports import DiskReports
from kubeletplugin.telemetry.listeners import Listeners
from kubeletplugin.telemetry.reports import Reports
from kubeletplugin.telemetry.telemetry import Telemetry

_log = logging.getLogger(__name__)
_WORKERS = 128
"""Calls at once: each of 56 slices may be prepared and unprepared while their GPUs hang."""

_DRAIN_SECONDS = 20.0
_FIRST_LOOK_SECONDS = 5.0


class Daemon:
    """One node's plugin, by the owner of its state directory."""

    def __init__(  # noqa: PLR0915 - the parts
        self, options: Options, api: KubeApi, telemetry: Telemetry
    ) -> None:
        self._options = options
        self._ending = threading.Event()
        self._liveness, observer = telemetry.liveness, telemetry.metrics
        seen = observer.claim_seen
        self._sockets = sockets(options)
        roots = options.roots
        driver = options.driver_name
        changed = Listeners()
        self._events = EventRecorder(api, component=driver, host=options.node_name)
        sink = CountingSink(self._events, telemetry.registry)
        reports = self._reports = Reports(sink, options.node_name)
        fate = partial(claim_fate, api, driver=driver, pool=options.pool, seen=seen)
        self._readiness = Readiness(on_change=changed)
        self._tasks = ClaimTasks()
        self._journal = Journal(roots.state / "journal.json", on_change=changed)
        names = GpuNames(roots.state / "gpus.json", hints=used_names(self._journal.entries()))
        session = Session(seconds=options.nvml_seconds, on_call=observer.nvml_call)
        session.names_processes = sees_processes(roots)
        self._hardware = Hardware(
            session,
            self._journal,
            names,
            roots=roots,
            on_change=changed,
            on_lock_wait=observer.lock_wait,
        )
        boot = self._hardware.boot_id
        identity = self._hardware.identity
        removal = Removal(session, self._journal, identity)
        occupancy = Occupancy(session, self._journal, removal, identity)
        slices = Slices(session, self._journal, occupancy, removal, identity, boot_id=boot)
        search = DriverSearch(roots, directories=options.library_directories, hook=options.cdi_hook)
        specs = Specs(driver, self._hardware, roots=roots, search=search)
        rollback = Rollback(self._hardware, self._journal, removal, specs, reports=reports)
        self._statuses = ClaimStatuses(api, driver, problem=self._problem, seen=seen)
        self._monitor = HealthMonitor(
            self._hardware,
            self._journal,
            rules=options.xids,
            reports=reports,
            statuses=self._statuses,
            ready=lambda: self._readiness.is_open,
            on_change=changed,
            on_instances=self._instances_changed,
        )
        preparer = Preparer(
            self._hardware,
            self._journal,
            slices,
            specs,
            rollback,
            read_devices=partial(read_devices, api, driver=driver, pool=options.pool, seen=seen),
        )
        self._recovery = Recovery(
            self._hardware,
            self._journal,
            specs,
            rollback,
            fate=fate,
            finish=preparer.prepare,
            reports=reports,
            observer=observer,
        )
        self._rebuild = Rebuild(
            self._hardware,
            self._journal,
            claims=partial(claims_of, api, options.pool),
            reports=reports,
            driver=driver,
            pool=options.pool,
            observer=observer,
        )
        release = Release(
            self._journal,
            rollback,
            readiness=self._readiness,
            recovery=self._recovery,
            rebuild=self._rebuild,
            statuses=self._statuses,
        )
        upkeep = Upkeep(
            self._journal,
            self._tasks,
            rollback=rollback,
            recovery=self._recovery,
            rebuild=self._rebuild,
            statuses=self._statuses,
            observer=observer,
        )
        node = self._node = Node(
            readiness=self._readiness,
            journal=self._journal,
            preparer=preparer,
            release=release,
            tasks=self._tasks,
            statuses=self._statuses,
            rebuild=self._rebuild,
            settled=self._prepare_settled,
            observer=observer,
        )
        self._janitor = Janitor(
            self._journal,
            upkeep,
            self._tasks,
            release=release.release,
            processes=rollback.processes,
            readiness=self._readiness,
            fate=fate,
            reports=reports,
            forgotten_seconds=options.forgotten_seconds,
            observer=observer,
            beat=self._liveness.janitor.beat,
        )
        self._node_watch = NodeWatch(
            api,
            options.node_name,
            driver=driver,
            on_conflict=self._hardware.withhold,
            pauses=Pauses(options.pause_labels, reports=reports, on_change=self._pause),
            ignore=options.ignore_other_managers,
            reports=reports,
        )
        self._needs = NodeNeeds(
            self._hardware,
            specs,
            reports=reports,
            on_change=changed,
            on_other_files=self._janitor.check_soon,
        )
        self._mig_mode = MigMode(self._hardware, self._journal, reports=reports)
        self._library = DriverLibrary(
            roots, options.library_directories, end=self._finish, reports=reports
        )
        self._letting_go = LettingGo(
            self._hardware,
            self._journal,
            options.node_name,
            drain=lambda: self._publisher.drain,
            pause=lambda: self._node_watch.pauses.current,
            look=self._look,
            reports=reports,
            on_taken_up=self._monitor.taken_up,
        )
        self._loop = HardwareLoop(
            self._hardware,
            self._readiness,
            holding=self._letting_go,
            recover=self._recover,
            settle=self._settle,
            library=self._library,
            beat=self._liveness.hardware.beat,
        )
        self._health = HealthBoard(self._monitor.devices)
        self._mode = AllocatorMode(options.allocator, on_change=changed)
        self._inventory = NodeInventory(
            options,
            self._mode,
            self._readiness,
            hardware=self._hardware,
            journal=self._journal,
            gpus=self._monitor.gpus,
            drain=lambda: self._publisher.drain,
            missing=lambda: self._needs.missing,
            unseen=self._letting_go.unseen,
            before=lambda: self._letting_go.before,
            cdi_hook=lambda: self._needs.hook,
        )
        self._slice_publisher = SlicePublisher(
            api, options, self._mode, inventory=self._inventory.known, reports=reports
        )
        self._publisher = MigNodePublisher(
            api,
            options.node_name,
            field_manager=options.field_manager,
            inventory=self._inventory.of_mignode,
            on_drain=changed,
        )
        telemetry.watch(self._monitor.gpus, self._journal, self._readiness)
        changed.add(
            DiskReports(self._journal, reports),
            self._health.notify,
            self._publisher.notify,
            self._slice_publisher.notify,
            self._monitor.notify,
            self._loop.notify,
        )
        self._service = SocketServer(
            self._sockets.service, partial(add_services, node, self._health), workers=_WORKERS
        )
        self._registration = SocketServer(
            self._sockets.registration, self._add_registration, workers=2
        )

    def run(self, stop: threading.Event) -> None:
        """Serve until ``stop`` is set, then finish the calls that run.

        Raises:
            HostError: a socket cannot be used.
        """
        self._ending = stop
        remove_stale(self._options)
        # Kubelet calls as soon as it sees the registration socket.
        self._service.start()
        self._registration.start()
        self._statuses.start()
        self._loop.start()
        self._monitor.start()
        self._node_watch.start()
        self._janitor.start()
        # The MigNode of the last run is nearer to the truth than an empty one.
        self._readiness.wait_decided(_FIRST_LOOK_SECONDS)
        self._publisher.start()
        self._slice_publisher.start()
        self._liveness.begin(
            self._sockets,
            self._readiness,
            threads=[
                part.problem
                for part in (
                    self._loop,
                    self._janitor,
                    self._monitor,
                    self._publisher,
                    self._slice_publisher,
                    self._statuses,
                )
            ],
            overdue=self._library.overdue,
        )
        stop.wait()
        self._stop()

    def _stop(self) -> None:
        _log.info("stopping: no new calls, running ones are finished")
        self._liveness.end()
        self._registration.stop(0)
        self._health.close()
        self._service.stop(_DRAIN_SECONDS)
        self._tasks.wait_idle(_DRAIN_SECONDS)
        self._janitor.stop()
        self._node_watch.stop()
        self._monitor.stop()
        self._loop.stop()
        self._slice_publisher.stop()
        self._publisher.stop()
        self._statuses.stop()
        self._events.close()
        _log.info("stopped")

    def _settle(self) -> None:
        self._needs.look()
        if self._options.enable_mig:
            self._mig_mode.enable()

    def _finish(self) -> None:
        """End as if told to: whoever runs this program starts it again."""
        self._ending.set()

    def _look(self) -> Inventory | None:
        """Read what others ask of this node, before its GPUs are opened for the first time."""
        self._node_watch.look()
        return self._publisher.look()

    def _pause(self, pause: Pause | None) -> None:
        self._hardware.withhold(pause.conflict if pause is not None else None, source="pause")
        self._loop.notify()

    def _recover(self) -> None:
        for problem in self._journal.problems:
            _log.error("journal: %s", problem)
            self._reports.report_node(NodeReason.CORRUPTED, f"journal: {problem}", warning=True)
        self._node_watch.look()
        self._rebuild.run()
        self._recovery.run()
        for ref in dict.fromkeys(e.claim for e in self._journal.entries() if e.state in HELD):
            self._statuses.prepared(ref, self._journal.of_claim(ref.uid))

    def _instances_changed(self) -> None:
        self._janitor.check_soon()

    def _problem(self, entry: Entry) -> DeviceProblem | None:
        return self._monitor.problem_of(entry)

    def _prepare_settled(self, ref: ClaimRef, error: PluginError | None) -> None:
        """A Prepare is over; what stays impossible is told to whoever can move the pod."""
        if error is None:
            for entry in self._journal.of_claim(ref.uid):
                self._monitor.permitted(entry.gpu)
            return
        if gpu := denied_gpu(error):
            self._monitor.denied(gpu, str(error))
        held = any(e.state in HELD for e in self._journal.of_claim(ref.uid))
        if is_permanent(error, held=held):
            self._statuses.failed(ref, str(error), pool=self._options.pool)
            self._reports.report_claim(ref, NodeReason.PREPARE_FAILED, str(error), warning=True)

    def _add_registration(self, server: grpc.Server) -> None:
        registration = Registration(self._options.driver_name, self._sockets.service)
        registration_v1.add_RegistrationServicer_to_server(registration, server)
