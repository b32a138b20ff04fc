"""Monitor of the health of GPUs and slices, from NVML's events and from looks at the GPUs.

An XID or a lost GPU is shown in five places: as reason in the MigNode, as UNHEALTHY in kubelet's
health stream, as Ready condition False of each affected claim, and as event of each affected claim
and of the Node.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable

from dra.claims.reasons import NodeReason
from dra.gpu.inventory import ClaimRef, Gpu, GpuReason
from dra.kube.loop import Loop
from dra.kube.timing import Backoff, Clock
from kubeletplugin import times
from kubeletplugin.common import Common
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.gpus.health import (
    DeviceHealth,
    DeviceProblem,
    GpuProblem,
    GpuProblems,
    device_health,
    device_problem,
    is_told,
    xid_problem,
)
from kubeletplugin.journal.entries import HELD, Entry, EntryKey
from kubeletplugin.nvml.errors import GpuLostError, GpuReleasedError, NotSupportedError, NvmlError
from kubeletplugin.nvml.events import (
    APPLICATION_XIDS,
    Changed,
    Event,
    GpuEvents,
    Scope,
    Xid,
)
from kubeletplugin.nvml.session import Session

_log = logging.getLogger(__name__)


class HealthMonitor:
    """Monitor with one thread, and one more for each GPU. Thread-safe.

    ``refresh_status``: writes the device status of a claim anew.
    ``on_instances``: called when instances were made or destroyed.
    ``on_doubt``: called when the driver may ask for another recovery action than before.
    Nothing is reported while the GPUs cannot be asked.
    """

    def __init__(
        self,
        common: Common,
        hardware: Hardware,
        *,
        refresh_status: Callable[[ClaimRef], None],
        on_instances: Callable[[], None],
        on_doubt: Callable[[], None],
    ) -> None:
        self._hardware = hardware
        self._journal = common.journal
        self._rules = common.options.xids
        self._reports = common.reports
        self._readiness = common.readiness
        self._on_change = common.changed
        self._refresh_status = refresh_status
        self._on_instances = on_instances
        self._on_doubt = on_doubt
        self._doubt = False
        self._clock = common.clock
        self._problems = GpuProblems()
        self._review_lock = threading.Lock()
        self._told_devices: dict[EntryKey, DeviceProblem] = {}
        self._told_gpus: dict[str, Gpu] = {}
        self._watches: dict[str, XidWatch] = {}
        self._unsupported = False
        backoff = Backoff(first=times.REVIEW_SECONDS)
        self.thread = Loop("health", self._turn, backoff=backoff, clock=common.clock)

    def stop(self) -> None:
        """End the threads; the thread of a GPU that hangs is not waited for."""
        self.thread.stop()
        self.thread.join()
        for watch in self._watches.values():
            watch.stop()
        end = self._clock.monotonic() + times.XID_JOIN_SECONDS
        for watch in self._watches.values():
            watch.join(max(0.0, end - self._clock.monotonic()))

    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs as last seen, with their known problems."""
        return tuple(self._problems.shown(g) for g in self._hardware.gpus())

    def devices(self) -> tuple[DeviceHealth, ...] | None:
        """Health of every device that a pod may use; None while not all can be told."""
        if not self._readiness.is_ready or self._journal.rebuild:
            return None
        return device_health(self._journal.entries(), self.gpus())

    def problem_of(self, entry: Entry) -> DeviceProblem | None:
        """Problem of one device now; None without one, and while the GPUs cannot be asked."""
        if not self._readiness.is_ready:
            return None
        return device_problem(entry, {g.uuid: g for g in self.gpus()}.get(entry.gpu))

    def take_xid(self, gpu: str, xid: Xid) -> None:
        """Take note of an XID."""
        unit = self._hardware.unit(gpu)
        if unit is None:
            return
        judged = unit.card.condition.recovery is not None
        scope = self._rules.scope(xid.number, gi_id=xid.gi_id, judged=judged)
        # The driver decides on a recovery action only after it has logged the XID. XIDs of
        # applications are left out, as one program can cause many.
        self._doubt = self._doubt or xid.number not in APPLICATION_XIDS
        if scope is Scope.NOTHING:
            _log.info("XID %d decides nothing here", xid.number, extra={"gpu_uuid": gpu})
            return
        now = self._clock.monotonic()
        problem = xid_problem(unit, xid, scope, at=now, node=self._reports.node_name)
        if self._problems.add(problem):
            _log.error("%s", problem.message, extra={"gpu": unit.name, "gpu_uuid": gpu})
            self._reports.report_node(NodeReason.XID_ERROR, problem.message, warning=True)
        self.review()

    def take_denial(self, gpu: str, message: str) -> None:
        """Take note that NVML does not let this program change a GPU."""
        now = self._clock.monotonic()
        text = f"the last slice could not be made here for want of permission: {message}"
        unit = self._hardware.unit(gpu)
        seen = unit.seen if unit is not None else None
        problem = GpuProblem(
            gpu,
            GpuReason.NO_PERMISSION,
            text,
            now,
            blocks=False,
            beside=frozenset(i.uuid for i in seen.instances if i.uuid) if seen else frozenset(),
        )
        if self._problems.of_gpu(gpu) is None and self._problems.add(problem):
            self._reports.report_node(NodeReason.NO_PERMISSION, text, warning=True)
            self._on_change()

    def forget_gpu(self, gpu: str) -> None:
        """Forget the problems of a GPU that is back in service; those that last show anew."""
        for problem in self._problems.forget(gpu):
            _log.info("over, as the GPU was released: %s", problem.message)
        self.review()

    def review(self) -> None:
        """Forget problems that have passed, and report changes; writes nothing without a change."""
        if not self._readiness.is_ready:
            return
        with self._review_lock:
            seen = self._hardware.gpus()
            healed = self._problems.review(seen, now=self._clock.monotonic())
            for problem in healed:
                _log.info("passed: %s", problem.message)
                self._reports.report_node(NodeReason.RECOVERED, f"healthy again: {problem.message}")
            marked = False
            for unit in self._hardware.units():
                whole = self._problems.of_gpu(unit.uuid)
                why = whole.message if whole is not None and whole.blocks else ""
                marked = marked or unit.unhealthy != why
                unit.unhealthy = why
            self._tell_gpus(seen)
            told = self._tell_devices(map(self._problems.shown, seen))
            if healed or told or marked:
                self._on_change()

    def _tell_gpus(self, seen: Collection[Gpu]) -> None:
        """Report GPUs that are lost or that the driver calls unusable, and GPUs that recovered."""
        ill = {g.uuid: g for g in seen if is_told(g)}
        for uuid, gpu in ill.items():
            before = self._told_gpus.get(uuid)
            if before is None or before.reason != gpu.reason:
                text = f"{gpu.name}: {gpu.unavailable}"
                self._reports.report_node(NodeReason(gpu.reason), text, warning=True)
        # The health of a released GPU is not known: its last report stands.
        silent = {g.uuid for g in seen if g.reason == GpuReason.RELEASED}
        for uuid, gpu in self._told_gpus.items():
            if uuid in silent:
                ill[uuid] = gpu
            elif uuid not in ill:
                over = "answers again" if gpu.reason == GpuReason.GPU_LOST else f"no {gpu.reason}"
                self._reports.report_node(NodeReason.RECOVERED, f"GPU {uuid}: {over}")
        self._told_gpus = ill

    def _tell_devices(self, gpus: Iterable[Gpu]) -> bool:
        """Report devices whose health has changed; True if any has.

        ``gpus``: all GPUs as last seen, with their known problems.
        """
        by_uuid = {g.uuid: g for g in gpus}
        entries = {e.key: e for e in self._journal.entries() if e.state in HELD}
        told = self._told_devices = {k: p for k, p in self._told_devices.items() if k in entries}
        changed: dict[str, ClaimRef] = {}
        for key, entry in entries.items():
            problem = device_problem(entry, by_uuid.get(entry.gpu))
            if problem == told.get(key):
                continue
            changed[entry.claim.uid] = entry.claim
            if problem is None:
                del told[key]
                continue
            told[key] = problem
            if problem.reason != GpuReason.SLICE_LOST:  # a lost slice has an event of its own
                reason, text = NodeReason(problem.reason), f"{entry.device}: {problem.message}"
                self._reports.report_device(entry.claim, reason, text, warning=True)
        for ref in changed.values():
            self._refresh_status(ref)
        return bool(changed)

    def _turn(self) -> float:
        if self._doubt:
            self._doubt = False
            self._on_doubt()
        self._follow()
        self.review()
        return times.REVIEW_SECONDS

    def _follow(self) -> None:
        """Have one watch for each GPU of the node, and none for a GPU that left or is released."""
        held = {u.uuid for u in self._hardware.units() if not u.released}
        for uuid in self._watches.keys() - held:
            self._watches.pop(uuid).stop()
        if self._readiness.is_ready:
            for uuid in held - self._watches.keys():
                session = self._hardware.session
                self._watches[uuid] = XidWatch(session, uuid, self._hear, clock=self._clock)

    def _hear(self, gpu: str, event: Event | NvmlError) -> None:
        """Take an event of a GPU's watch, or the error for which the watch hears nothing."""
        match event:
            case Xid():
                self.take_xid(gpu, event)
            case Changed.RECOVERY:
                self._on_doubt()
            case Changed.INSTANCES:
                self._hardware.look_soon(gpu)
                self._on_instances()
            case GpuLostError():
                self._hardware.look_soon(gpu)
            case NotSupportedError() if not self._unsupported:
                self._unsupported = True
                text = f"XIDs are not heard on this node, lost GPUs are still noticed: {event}"
                _log.warning("%s", text)
                self._reports.report_node(NodeReason.XIDS_UNSUPPORTED, text)


class XidWatch:
    """Watch of one GPU's events, in a thread of its own: a hanging GPU delays no other.

    ``tell``: called with the GPU's UUID and an event; also with the error if the GPU is lost or
    delivers no events. The watch ends after it has told that the GPU delivers no events.
    """

    def __init__(
        self,
        session: Session,
        gpu: str,
        tell: Callable[[str, Event | NvmlError], None],
        *,
        clock: Clock,
    ) -> None:
        self._session = session
        self._gpu = gpu
        self._tell = tell
        self._events = GpuEvents(session, gpu)
        self._said = ""
        again = Backoff(first=times.XID_AGAIN_SECONDS)
        self._loop = Loop(f"XIDs {gpu}", self._turn, backoff=again, clock=clock)
        self._loop.start()

    def stop(self) -> None:
        """Have the watch end soon; does not wait for that."""
        self._loop.stop()

    def join(self, seconds: float) -> None:
        """Wait for the end of the watch, at most ``seconds``."""
        self._loop.join(seconds)

    def _turn(self) -> float:
        if not self._session.is_open:
            return times.XID_WAIT_SECONDS
        # A wait in which no event comes must not look like a call that hangs.
        wait = min(times.XID_WAIT_SECONDS, self._session.seconds / 2)
        try:
            event = self._events.next(wait, self._loop.is_stopping)
        except NotSupportedError as error:
            self._tell(self._gpu, error)
            self._loop.stop()
        except GpuReleasedError:
            _log.debug("XIDs of GPU %s are not listened to: it is released", self._gpu)
        except NvmlError as error:
            kind = f"{type(error).__name__} {error.operation} {error.code}"
            if kind != self._said:
                _log.warning("XIDs of GPU %s are not heard meanwhile: %s", self._gpu, error)
                self._said = kind
            if isinstance(error, GpuLostError):
                self._tell(self._gpu, error)
        else:
            self._said = ""
            if event is not None:
                self._tell(self._gpu, event)
            return 0.0
        return times.XID_AGAIN_SECONDS
