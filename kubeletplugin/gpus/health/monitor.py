"""Monitor of GPUs and slices: their health, gathered from events and looks, for all who show it.

An XID or a lost GPU becomes the reason in the MigNode, UNHEALTHY in kubelet's health stream, a
False Ready condition of the claims that are concerned, and an event for each of them and the node.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from dra.claims.reasons import NodeReason
from dra.gpu.inventory import Gpu
from dra.gpu.reasons import GpuReason
from dra.kube.loop import Loop
from dra.kube.timing import Backoff, Clock, SystemClock
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.health.device_health import (
    DeviceHealth,
    DeviceProblem,
    device_health,
    device_problem,
)
from kubeletplugin.gpus.health.gpu_problems import GpuProblem, GpuProblems
from kubeletplugin.gpus.health.health_reports import HealthReports, RefreshStatus
from kubeletplugin.gpus.health.xid_problem import xid_problem
from kubeletplugin.gpus.health.xidwatch import XidWatch
from kubeletplugin.journal.entries import Entry
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.events import APPLICATION_XIDS, Scope, Xid, XidRules
from kubeletplugin.telemetry.reports import Reports

_log = logging.getLogger(__name__)
REVIEW_SECONDS = 2.0
_JOIN_SECONDS = 3.0


class HealthMonitor:
    """Monitor with one thread, and one more for each GPU. Thread-safe.

    ``refresh_status`` shows the devices of a claim as they are when they are written. ``ready`` is
    False while the GPUs cannot be asked. ``on_change`` is called when problems came or went,
    ``on_instances`` when instances did, ``on_doubt`` when the driver may judge a GPU anew.
    """

    def __init__(  # noqa: PLR0913 - what it watches and whom it tells
        self,
        hardware: Hardware,
        journal: Journal,
        *,
        rules: XidRules,
        reports: Reports,
        refresh_status: RefreshStatus,
        ready: Callable[[], bool],
        on_change: Callable[[], None],
        on_instances: Callable[[], None] = lambda: None,
        on_doubt: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._hardware = hardware
        self._journal = journal
        self._rules = rules
        self._reports = reports
        self._health_reports = HealthReports(journal, reports, refresh_status=refresh_status)
        self._ready = ready
        self._on_change = on_change
        self._on_instances = on_instances
        self._on_doubt = on_doubt
        self._doubt = False
        self._clock = clock or SystemClock()
        self._gpu_problems = GpuProblems()
        self._review_lock = threading.Lock()
        self._watches: dict[str, XidWatch] = {}
        self._unsupported = False
        self.thread = Loop("health", self._turn, backoff=Backoff(first=REVIEW_SECONDS), clock=clock)

    def start(self) -> None:
        """Start the threads."""
        self.thread.start()

    def stop(self) -> None:
        """End the threads; a watch whose GPU hangs is left behind."""
        self.thread.stop()
        self.thread.join()
        for watch in self._watches.values():
            watch.stop()
        end = self._clock.monotonic() + _JOIN_SECONDS
        for watch in self._watches.values():
            watch.join(max(0.0, end - self._clock.monotonic()))

    def notify(self) -> None:
        """Look soon, as something may have changed."""
        self.thread.notify()

    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs as last seen, with their problems."""
        return tuple(self._gpu_problems.shown(g) for g in self._hardware.gpus())

    def devices(self) -> tuple[DeviceHealth, ...]:
        """The health of every device that a pod may use; none while the GPUs cannot be asked."""
        return device_health(self._journal.entries(), self.gpus()) if self._ready() else ()

    def problem_of(self, entry: Entry) -> DeviceProblem | None:
        """The problem of one device now, if any; None while the GPUs cannot be asked."""
        if not self._ready():
            return None
        return device_problem(entry, {g.uuid: g for g in self.gpus()}.get(entry.gpu))

    def take_xid(self, gpu: str, xid: Xid) -> None:
        """Take note of an XID."""
        unit = self._hardware.unit(gpu)
        if unit is None:
            return
        judged = unit.known.card.condition.recovery is not None
        scope = self._rules.scope(xid.number, gi_id=xid.gi_id, judged=judged)
        # The driver decides a moment after it has logged; a program can cause many.
        self._doubt = self._doubt or xid.number not in APPLICATION_XIDS
        if scope is Scope.NOTHING:
            _log.info("XID %d decides nothing here", xid.number, extra={"gpu_uuid": gpu})
            return
        now = self._clock.monotonic()
        problem = xid_problem(unit.known, xid, scope, at=now, node=self._reports.node_name)
        if self._gpu_problems.add(problem):
            _log.error("%s", problem.message, extra={"gpu": unit.name, "gpu_uuid": gpu})
            self._reports.report_node(NodeReason.XID_ERROR, problem.message, warning=True)
        self.review()

    def take_denial(self, gpu: str, message: str) -> None:
        """Take note that NVML does not let this program change a GPU."""
        now = self._clock.monotonic()
        text = f"the last slice could not be made here for want of permission: {message}"
        problem = GpuProblem(
            gpu, GpuReason.NO_PERMISSION, text, now, needs_reset=True, blocks=False
        )
        if self._gpu_problems.of_gpu(gpu) is None and self._gpu_problems.add(problem):
            self._reports.report_node(NodeReason.NO_PERMISSION, text, warning=True)
            self._on_change()

    def clear_denial(self, gpu: str) -> None:
        """Take note that a GPU could be changed."""
        if self._gpu_problems.drop(gpu, reason=GpuReason.NO_PERMISSION):
            self._on_change()

    def forget_gpu(self, gpu: str) -> None:
        """Forget the problems of a GPU that is back in service: what is left of them shows anew."""
        for problem in self._gpu_problems.forget(gpu):
            _log.info("over, as the GPU was released: %s", problem.message)
        self.review()

    def review(self) -> None:
        """Forget what has passed, and tell what has changed. At rest it writes nothing."""
        if not self._ready():
            return
        with self._review_lock:
            seen = self._hardware.gpus()
            healed = self._gpu_problems.review(seen, now=self._clock.monotonic())
            for problem in healed:
                _log.info("passed: %s", problem.message)
                self._reports.report_node(NodeReason.RECOVERED, f"healthy again: {problem.message}")
            marked = self._mark_gpus()
            self._health_reports.tell_gpus(seen)
            told = self._health_reports.tell_devices(map(self._gpu_problems.shown, seen))
            if healed or told or marked:
                self._on_change()

    def _mark_gpus(self) -> bool:
        """Have no slices made on GPUs with a problem; True if that changed for one."""
        changed = False
        for unit in self._hardware.units():
            whole = self._gpu_problems.of_gpu(unit.uuid)
            why = whole.message if whole is not None and whole.blocks else ""
            if why != unit.known.unhealthy:
                unit.set_unhealthy(why)
                changed = True
        return changed

    def _turn(self) -> float:
        if self._doubt:
            self._doubt = False
            self._on_doubt()
        self._follow()
        self.review()
        return REVIEW_SECONDS

    def _follow(self) -> None:
        """A watch for each GPU of the node; none for those that left, or are released."""
        held = {u.uuid for u in self._hardware.units() if not u.known.released}
        for uuid in self._watches.keys() - held:
            self._watches.pop(uuid).stop()
        if not self._ready():
            return
        for uuid in held - self._watches.keys():
            self._watches[uuid] = XidWatch(
                self._hardware.session,
                uuid,
                on_xid=lambda xid, uuid=uuid: self.take_xid(uuid, xid),  # type: ignore[misc]
                on_instances=lambda uuid=uuid: self._instances_changed(uuid),  # type: ignore[misc]
                on_recovery=self._on_doubt,
                on_lost=lambda uuid=uuid: self._hardware.look(uuid),  # type: ignore[misc]
                on_unsupported=self._say_unsupported,
                clock=self._clock,
            )

    def _instances_changed(self, gpu: str) -> None:
        self._hardware.look(gpu)
        self._on_instances()

    def _say_unsupported(self, message: str) -> None:
        if self._unsupported:
            return
        self._unsupported = True
        text = f"XIDs are not heard on this node, lost GPUs are still noticed: {message}"
        _log.warning("%s", text)
        self._reports.report_node(NodeReason.XIDS_UNSUPPORTED, text)
