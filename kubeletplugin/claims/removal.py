"""Removal of a claim's devices from the node: at Unprepare, after a failure, in the background.

A device that cannot be removed at once stays in the journal and its placement unavailable; kubelet
gets a good answer all the same, so that the pod can end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from dra.claims.reasons import NodeReason
from dra.gpu.shares import ANY_TENANT
from dra.kube.timing import Clock
from kubeletplugin.claims.sharing.sharing import DeviceSharing
from kubeletplugin.claims.slices import Slices
from kubeletplugin.claims.specs import Specs
from kubeletplugin.common import Common, patiently
from kubeletplugin.errors import HardwareError, PluginError
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.journal.entries import HELD, LEAVING, Entry, EntryKey, State, occupant_of
from kubeletplugin.nvml.errors import GpuLostError, InUseError, NvmlError
from kubeletplugin.telemetry.observer import device
from kubeletplugin.times import BUSY_GPU_SECONDS, REMOVAL_PAUSE_SECONDS

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Remainder:
    """Devices that could not be removed, as texts with the reason.

    ``recorded``: devices that the journal has as to be removed later. ``failed``: devices without
    such a record, as the journal could not be written.
    """

    recorded: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "; ".join([*self.failed, *self.recorded])


class _AbsentError(HardwareError):
    """The GPU is not in the node now."""


class IdleSlices:
    """GPU instances whose claims are gone, kept for a while for claims of the same namespace.

    Their compute instances are destroyed: the next claim gets its own. A kept GPU instance is
    destroyed early if another slice needs its memory slices. ``seconds``: how long one is kept; 0:
    none is. ``leaves``: True for the name of a GPU that this program is to close, for a drain or
    pause; nothing is kept on such a GPU.
    """

    def __init__(
        self,
        hardware: Hardware,
        *,
        seconds: float,
        leaves: Callable[[str], bool],
        clock: Clock,
    ) -> None:
        self._hardware = hardware
        self._seconds = seconds
        self._leaves = leaves
        self._clock = clock
        self._since: dict[EntryKey, float] = {}

    def keeps(self, entry: Entry) -> bool:
        """True if the GPU instance of an entry stays when its claim is released.

        A slice that claims of any namespace could share does not stay.
        """
        if entry.share is not None and entry.share.tenant == ANY_TENANT:
            return False
        is_fit = entry.idle or (entry.state is State.PREPARED and entry.placement is not None)
        return bool(self._seconds) and is_fit and self._may_stay(entry)

    def due(self, entries: Iterable[Entry]) -> frozenset[str]:
        """UIDs of claims whose idle slices are to go. For one thread.

        ``entries``: all entries of the journal.
        """
        idle = [e for e in entries if e.idle and not e.ready]
        now = self._clock.monotonic()
        self._since = {e.key: self._since.get(e.key, now) for e in idle}
        return frozenset(
            e.claim.uid
            for e in idle
            if now - self._since[e.key] >= self._seconds or not self._may_stay(e)
        )

    def _may_stay(self, entry: Entry) -> bool:
        unit = self._hardware.unit(entry.gpu)
        if unit is None:
            return False
        return not (unit.conflict or unit.released or unit.unwell or self._leaves(unit.name))


class ClaimRemoval:
    """Removes what the journal lists. No method raises PluginError or NvmlError."""

    def __init__(
        self,
        common: Common,
        slices: Slices,
        specs: Specs,
        sharing: DeviceSharing,
        *,
        idle: IdleSlices,
    ) -> None:
        self.hardware = slices.hardware
        self.idle = idle
        self._journal = common.journal
        self._reports = common.reports
        self.clock = common.clock
        self._slices = slices
        self._specs = specs
        self._sharing = sharing

    def remove_all(
        self,
        uid: str,
        *,
        patience: float = 0.0,
        otherwise: State = State.LEFTOVER,
        keep_idle: bool = False,
    ) -> Remainder:
        """Remove all devices of a claim, and its CDI spec.

        ``patience``: seconds for which failures that pass are retried. ``otherwise``: state of
        devices that are left, unless another state says more (``tombstone`` for a lost GPU).
        ``keep_idle``: keep GPU instances for other claims (IdleSlices).
        """
        failed = []
        try:
            # First, so that no container gets what is about to go.
            self._specs.remove(uid)
            entries = self._journal.of_claim(uid)
            if remade := [e for e in entries if e.remade]:
                self._journal.put(*(replace(e, remade=False, wiped=False) for e in remade))
        except PluginError as error:
            failed.append(str(error))
        entries = self._journal.of_claim(uid)
        left = self._entries(entries, patience, otherwise, keep_idle=keep_idle)
        left.failed[:0] = failed
        return left

    def remove_unfinished(self, uid: str, *, patience: float = 0.0) -> Remainder:
        """Remove the devices of a claim of which kubelet was not told.

        The CDI spec is removed if kubelet was told of none. A device that was being remade becomes
        ``lost``, and its placement is kept.
        """
        entries = self._journal.of_claim(uid)
        if not any(e.kubelet_knows for e in entries):
            return self.remove_all(uid, patience=patience, otherwise=State.ORPHAN)
        return self._entries([e for e in entries if e.state not in HELD], patience, State.ORPHAN)

    def retry(self, uid: str, *, patience: float = 0.0) -> Remainder:
        """Remove those devices of a claim that are to go: once, or for ``patience`` seconds."""
        entries = self._journal.of_claim(uid)
        rest = [e for e in entries if e.state in LEAVING and not e.ready]
        return self._entries(rest, patience, State.LEFTOVER)

    def has_spec(self, uid: str) -> bool:
        """True if a claim has a CDI spec, so was prepared here; True also if that is not known."""
        try:
            return uid in self._specs.claims()
        except PluginError:
            return True

    def _entries(
        self,
        entries: Iterable[Entry],
        patience: float,
        otherwise: State,
        *,
        keep_idle: bool = False,
    ) -> Remainder:
        left, end = Remainder(), self.clock.monotonic() + max(patience, BUSY_GPU_SECONDS)
        for entry in entries:
            try:
                self._entry(entry, end, keep_idle=keep_idle)
            except (PluginError, NvmlError) as error:
                self._keep(entry, error, left, otherwise)
        return left

    def _entry(self, entry: Entry, end: float, *, keep_idle: bool) -> None:
        if entry.mps is not None:
            self._patiently(lambda: self._sharing.daemons.stop(entry.claim.uid), end)
        is_whole = entry.placement is None and not entry.interval
        if is_whole or entry.boot_id != self.hardware.boot_id:
            self._slices.forget(entry)  # there is nothing on the hardware
            self.hardware.look_soon(entry.gpu)
            return
        unit = self.hardware.unit(entry.gpu)
        if unit is None:
            why = "; ".join(self.hardware.problems)
            raise _AbsentError(f"GPU {entry.gpu} is not in this node now{': ' if why else ''}{why}")
        self._patiently(lambda: self._from_gpu(unit, entry, end, keep_idle=keep_idle), end)

    def _patiently(self, attempt: Callable[[], None], end: float) -> None:
        patiently(attempt, end=end, longest=REMOVAL_PAUSE_SECONDS, clock=self.clock)

    def _from_gpu(self, unit: GpuUnit, entry: Entry, end: float, *, keep_idle: bool) -> None:
        if not unit.lock.enter(max(BUSY_GPU_SECONDS, end - self.clock.monotonic())):
            raise HardwareError(
                f"{unit.name} is busy with another claim; "
                f"{self.hardware.session.hangs(unit.uuid) or 'it is tried again'}"
            )
        read_back: list[EntryKey] | None = None
        try:
            conflict, layout = unit.conflict, unit.layout
            if conflict is not None and conflict.frozen:
                raise HardwareError(f"nothing is changed on {unit.name}: {conflict.problem}")
            if unit.released:
                raise HardwareError(f"{unit.name} is {unit.released}")
            current = self._journal.get(entry)
            if current is None:
                return
            if current.interval:
                self._sharing.end(current)
            if current.placement is None:
                self._journal.remove(current)
                return
            ready = layout is not None and occupant_of(current) in layout.slices
            kept = ready or (keep_idle and self.idle.keeps(current))
            stays = kept and not current.remade
            other = self.hardware.session.as_one(
                lambda: self._slices.remove(current, keep=stays, ready=ready), gpu=unit.uuid
            )
            if other:
                _log.warning("%s", other)
                self._reports.report_node(NodeReason.FOREIGN, other, warning=True)
            elif not stays:
                read_back = [current.key]
        finally:
            unit.lock.leave()
            self.hardware.look_soon(unit.uuid, read_back)

    def _keep(
        self, entry: Entry, error: PluginError | NvmlError, left: Remainder, otherwise: State
    ) -> None:
        """Record and report that a device could not be removed, and why."""
        why, reason = str(error), NodeReason.NOT_REMOVED
        if isinstance(error, InUseError):
            # Programs that hold the slice, or have its GPU open where NVML names none.
            why, reason = f"{why}{self._slices.holders(entry.gpu, error.pids)}", NodeReason.IN_USE
        text = f"{entry.device}: {why}"
        current = self._journal.get(entry)
        if current is None:
            return
        kept = current.at(_kept_as(current, error, otherwise), note=why, idle=False)
        if kept == current:
            left.recorded.append(text)
            return
        try:
            self._journal.alter(current, kept)
        except PluginError as problem:
            _log.warning("the journal cannot be written", extra=device(entry, error=str(problem)))
            if current.state not in LEAVING:
                left.failed.append(text)
                return
        left.recorded.append(text)
        _log.warning("placement unavailable", extra=device(current, error=why))
        if entry.suspect:
            text = f"{entry.device} cannot be removed yet, and its placement is unavailable: {why}"
            self._reports.report_node(reason, text, warning=True)
        else:
            text = f"{entry.device} cannot be removed yet: {why}"
            self._reports.report_claim(entry.claim, reason, text, warning=True)
        self.hardware.look_soon(entry.gpu, None)


def _kept_as(entry: Entry, error: Exception, otherwise: State) -> State:
    if isinstance(error, GpuLostError | _AbsentError):
        return State.TOMBSTONE
    if entry.state in {State.CI_DESTROYED, State.ORPHAN}:
        return entry.state
    return otherwise
