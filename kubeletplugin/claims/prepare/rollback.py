"""Removal of a claim's devices from the node: for Unprepare, for rollback, in the background.

What cannot be removed on the spot stays in the journal, and its placement unavailable: kubelet gets
its answer, and the pod can end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from dra.claims.reasons import NodeReason
from dra.gpu.inventory import ClaimRef
from dra.kube.timing import Clock, SystemClock
from kubeletplugin.claims.prepare.patience import patiently
from kubeletplugin.claims.prepare.ready_entries import is_declared
from kubeletplugin.claims.prepare.removal import Removal
from kubeletplugin.claims.prepare.specs import Specs
from kubeletplugin.claims.sharing.sharing import DeviceSharing
from kubeletplugin.errors import HardwareError, PluginError
from kubeletplugin.gpus.gpuunit import GpuUnit
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.host.processes import Holders, nobody_seen
from kubeletplugin.journal.entries import HELD, LEAVING, Entry, EntryKey, State
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.errors import GpuLostError, InUseError, NvmlError
from kubeletplugin.telemetry.logfields import device
from kubeletplugin.telemetry.reports import Reports

_log = logging.getLogger(__name__)
_Keep = Callable[[Entry], bool]
_LONGEST_DELAY = 1.0
_LEAST_PATIENCE = 0.1


@dataclass(slots=True)
class Remainder:
    """Devices that could not be removed, as texts with the reason.

    ``recorded``: in the journal, to be removed later; ``failed``: not even that.
    """

    recorded: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "; ".join([*self.failed, *self.recorded])


class _AbsentError(HardwareError):
    """The GPU is not in the node now."""


class Rollback:
    """Removes what the journal lists. No method raises PluginError or NvmlError.

    ``holders`` says who holds what is in use.
    """

    def __init__(  # noqa: PLR0913 - the parts that it joins
        self,
        hardware: Hardware,
        journal: Journal,
        removal: Removal,
        specs: Specs,
        *,
        sharing: DeviceSharing,
        look: Callable[[str, Iterable[EntryKey] | None], None],
        reports: Reports,
        holders: Holders = nobody_seen,
        clock: Clock | None = None,
    ) -> None:
        self._hardware = hardware
        self._journal = journal
        self._removal = removal
        self._specs = specs
        self._sharing = sharing
        self._look = look
        self._holders = holders
        self._reports = reports
        self._clock = clock or SystemClock()

    def remove_all(
        self,
        uid: str,
        *,
        patience: float = 0.0,
        otherwise: State = State.LEFTOVER,
        keep: _Keep = lambda _: False,
    ) -> Remainder:
        """Remove all devices of a claim, and its CDI spec.

        What passes is tried again for ``patience`` seconds. What is left then is put into the state
        ``otherwise``, or in that which tells more. ``keep`` says of which entries the GPU instance
        stays, idle.
        """
        left = Remainder()
        try:
            # First, so that no container gets what is about to go.
            self._specs.remove(uid)
            self._journal.forget_unread(uid)
            self._take_back(uid)
        except PluginError as error:
            left.failed.append(str(error))
        self._entries(self._journal.of_claim(uid), left, patience, otherwise, keep=keep)
        return left

    def remove_unfinished(self, uid: str, *, patience: float = 0.0) -> Remainder:
        """Remove the devices of a claim that kubelet was not told of; the spec goes if all do.

        What it was told of before it was to be made again is lost then, and its place is kept.
        """
        entries = self._journal.of_claim(uid)
        if not any(e.kubelet_knows for e in entries):
            return self.remove_all(uid, patience=patience, otherwise=State.ORPHAN)
        left = Remainder()
        rest = [e for e in entries if e.state not in HELD]
        self._entries(rest, left, patience, State.ORPHAN)
        return left

    def _take_back(self, uid: str) -> None:
        """Record of what is made again for a claim that nobody waits for it any more."""
        if remade := [e for e in self._journal.of_claim(uid) if e.remade]:
            self._journal.put(*(replace(e, remade=False, wiped=False) for e in remade))

    def retry_removal(self, uid: str, *, patience: float = 0.0) -> Remainder:
        """Try again to remove what is on its way out: once, or for ``patience`` seconds."""
        left = Remainder()
        entries = self._journal.of_claim(uid)
        rest = [e for e in entries if e.state in LEAVING and not e.quarantined and not e.ready]
        self._entries(rest, left, patience, State.LEFTOVER)
        return left

    def processes(self, ref: ClaimRef) -> tuple[int, ...]:
        """Ids of the processes in the slices of a claim, as far as NVML tells."""
        found: set[int] = set()
        for entry in self._journal.of_claim(ref.uid):
            if self._hardware.unit(entry.gpu) is not None:
                try:
                    found.update(self._removal.processes(entry))
                except NvmlError as error:
                    _log.debug("processes of %s: %s", entry.device, error)
        return tuple(sorted(found))

    def _entries(
        self,
        entries: Iterable[Entry],
        left: Remainder,
        patience: float,
        otherwise: State,
        *,
        keep: _Keep = lambda _: False,
    ) -> None:
        end = self._clock.monotonic() + max(patience, _LEAST_PATIENCE)
        for entry in entries:
            try:
                self._entry(entry, end, keep)
            except (PluginError, NvmlError) as error:
                self._keep(entry, error, left, otherwise)

    def _entry(self, entry: Entry, end: float, keep: _Keep) -> None:
        if entry.mps is not None:
            patiently(
                lambda: self._sharing.stop(entry),
                end=end,
                longest=_LONGEST_DELAY,
                clock=self._clock,
            )
        is_whole = entry.placement is None and not entry.interval
        if is_whole or entry.boot_id != self._hardware.boot_id:
            self._removal.forget(entry)  # there is nothing on the hardware
            return
        unit = self._hardware.unit(entry.gpu)
        if unit is None:
            why = "; ".join(self._hardware.problems)
            raise _AbsentError(f"GPU {entry.gpu} is not in this node now{': ' if why else ''}{why}")
        patiently(
            lambda: self._remove(unit, entry, end, keep=keep),
            end=end,
            longest=_LONGEST_DELAY,
            clock=self._clock,
        )

    def _remove(self, unit: GpuUnit, entry: Entry, end: float, *, keep: _Keep) -> None:
        if not unit.lock.enter(max(_LEAST_PATIENCE, end - self._clock.monotonic())):
            raise HardwareError(
                f"{unit.name} is busy with another claim; "
                f"{self._hardware.session.hangs(unit.uuid) or 'it is tried again'}"
            )
        read_back: list[EntryKey] | None = None
        try:
            gpu = unit.known
            if gpu.conflict is not None and gpu.conflict.frozen:
                raise HardwareError(f"nothing is changed on {gpu.name}: {gpu.conflict.problem}")
            if gpu.released:
                raise HardwareError(f"{gpu.name} is {gpu.released}")
            current = self._journal.get(entry)
            if current is None:
                return
            self._sharing.end(current)
            if current.placement is None:
                self._journal.remove(current)
                return
            declared = is_declared(unit, current)
            stays = not current.remade and (keep(current) or declared)
            other = self._hardware.session.as_one(
                lambda: self._removal.remove(current, keep=stays, ready=declared), gpu=unit.uuid
            )
            if other:
                _log.warning("%s", other)
                self._reports.report_node(NodeReason.FOREIGN, other, warning=True)
            elif not stays:
                read_back = [current.key]
        finally:
            unit.lock.leave()
            self._look(unit.uuid, read_back)

    def _keep(
        self, entry: Entry, error: PluginError | NvmlError, left: Remainder, otherwise: State
    ) -> None:
        """Record that what could not be removed is to go, and why it did not."""
        why = f"{error}{self._held_by(entry, error)}"
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
        reason = NodeReason.IN_USE if isinstance(error, InUseError) else NodeReason.NOT_REMOVED
        if entry.suspect:
            self._reports.report_node(
                reason,
                f"{entry.device} cannot be removed yet, and its placement is unavailable: {why}",
                warning=True,
            )
        else:
            text = f"{entry.device} cannot be removed yet: {why}"
            self._reports.report_claim(entry.claim, reason, text, warning=True)
        self._look(entry.gpu, None)

    def _held_by(self, entry: Entry, error: PluginError | NvmlError) -> str:
        """Programs that hold the slice, or have its GPU open where NVML names none."""
        return self._holders(entry.gpu, error.pids) if isinstance(error, InUseError) else ""


def _kept_as(entry: Entry, error: Exception, otherwise: State) -> State:
    if isinstance(error, GpuLostError | _AbsentError):
        return State.TOMBSTONE
    if entry.state in {State.CI_DESTROYED, State.ORPHAN}:
        return entry.state
    return otherwise
