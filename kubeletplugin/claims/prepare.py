"""NodePrepareResources for one claim: a transaction, undone at once when a step fails.

Per GPU, under its lock: ``intent`` to the journal, GPU instance, compute instance, read-back. Then
the CDI spec of the whole claim, then ``prepared`` to the journal. Failures that pass are retried
here, as kubelet asks again only after a minute or more. Locks of two GPUs are never held together,
so that a claim that waits for one GPU delays nothing on another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from dra.claims.allocation import AllocatedDevice
from dra.claims.claims import Claim
from dra.claims.reasons import NodeReason
from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.lookup import ClaimUnreadableError
from kubeletplugin.claims.removal import ClaimRemoval
from kubeletplugin.claims.sharing.sharing import DeviceSharing
from kubeletplugin.claims.slices import Slices
from kubeletplugin.claims.specs import Specs
from kubeletplugin.claims.wanted import check_available, check_room_on_gpu, intent, mps_limits
from kubeletplugin.common import patiently
from kubeletplugin.errors import ClaimError, HardwareError, PluginError, StartingError
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.journal.entries import ARRIVING, HELD, Entry, State, complete
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.telemetry.observer import about
from kubeletplugin.times import PREPARE_PAUSE_SECONDS, PREPARE_SECONDS, UNDO_SECONDS

_log = logging.getLogger(__name__)
_Given = tuple[Claim | None, tuple[AllocatedDevice, ...]]
_Read = Callable[[ClaimRef], _Given]
_ByGpu = list[tuple[GpuUnit, list[Entry]]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Answer to kubelet about one device; the fields are those of the DRAPlugin protocol."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str = ""


class Preparer:
    """Prepares claims; one call per claim at a time (see ClaimTasks in node.py).

    ``read``: reads a claim for which kubelet asks, and its devices. ``read_early``: the same for a
    claim for which kubelet has not asked yet.
    """

    def __init__(  # noqa: PLR0913 - the parts that a transaction joins
        self,
        slices: Slices,
        specs: Specs,
        sharing: DeviceSharing,
        removal: ClaimRemoval,
        *,
        read: _Read,
        read_early: _Read,
    ) -> None:
        self._slices = slices
        self._hardware = slices.hardware
        self._journal = slices.journal
        self._specs = specs
        self._sharing = sharing
        self._removal = removal
        self._read = read
        self._read_early = read_early
        self._clock = removal.clock

    def prepare(self, ref: ClaimRef) -> tuple[Prepared, ...]:
        """Make the claim's devices, or find them made; a repeated call changes nothing.

        Raises:
            PluginError: the claim is not prepared; nothing new is left on the hardware unless the
                message says so.
        """
        return patiently(
            lambda: self._attempt(ref),
            end=self._clock.monotonic() + PREPARE_SECONDS,
            longest=PREPARE_PAUSE_SECONDS,
            clock=self._clock,
        )

    def make_early(self, ref: ClaimRef) -> bool:
        """Make a claim's slices before kubelet asks; False if a GPU was busy: to be tried again.

        It does not wait for busy GPUs. A claim for which kubelet has asked is left alone.

        Raises:
            PluginError: nothing new is left on the hardware unless the message says so.
        """
        if not all(e.early or e.idle for e in self._journal.of_claim(ref.uid)):
            return True
        (_, groups), read_back = self._entries(ref, self._read_early), False
        try:
            self._specs.check()
            self._specs.check_writable()
            read_back = all(self._early_on_gpu(unit, entries) for unit, entries in groups)
        except Exception as error:
            self._undo(ref, error)
            raise
        finally:
            self._look_again(groups, read_back=read_back)
        return read_back

    def _attempt(self, ref: ClaimRef) -> tuple[Prepared, ...]:
        (claim, groups), read_back = self._entries(ref, self._read), False
        self._check_containers(claim, [e for _, entries in groups for e in entries])
        try:
            needs = self._specs.check()
            self._specs.check_writable()
            done: list[Entry] = []
            for unit, entries in groups:
                with unit.lock:
                    done += [self._ensure(unit, entry) for entry in entries]
            for entry in done:
                if entry.mps is not None:
                    self._sharing.daemons.begin(entry)
            is_new = any(e.state is not State.PREPARED for e in done)
            done = [e if e.state is State.PREPARED else e.at(State.PREPARED) for e in done]
            self._specs.write(done, needs)
            if is_new:
                self._journal.put(*done)
            read_back = True
        except Exception as error:
            self._undo(ref, error)
            raise
        finally:
            self._look_again(groups, read_back=read_back)
        return tuple(
            Prepared(e.requests, e.pool, e.device, self._specs.qualified(e), e.share_id)
            for e in done
        )

    # -- devices of the claim

    def _entries(self, ref: ClaimRef, read: _Read) -> tuple[Claim | None, _ByGpu]:
        """The claim, None if it cannot be read, and its entries by GPU.

        A device without an entry in the journal gets a new one in state ``intent``.
        """
        known = self._journal.of_claim(ref.uid)
        try:
            claim, devices = read(ref)
        except ClaimUnreadableError:
            if not complete(known):
                raise
            return None, _by_gpu((self._unit(e), e) for e in known)
        names = {(d.device, d.share_id) for d in devices}
        if {(e.device, e.share_id) for e in known} - names:
            if any(e.kubelet_knows for e in known):
                raise ClaimError(
                    f"the claim is prepared with {_names(e.device for e in known)} but was given "
                    f"{_names(d.device for d in devices)} since; end the pods that use it first"
                )
            if left := str(self._removal.remove_all(ref.uid, patience=UNDO_SECONDS)):
                raise HardwareError(f"what an earlier allocation left cannot be removed: {left}")
            known = ()
        by_device = {(e.device, e.share_id): e for e in known}
        pairs: list[tuple[GpuUnit, Entry]] = []
        for device in devices:
            entry = by_device.get((device.device, device.share_id))
            if entry is not None:
                pairs.append((self._unit(entry), self._as_configured(entry, device)))
                continue
            unit, entry = intent(device, ref, self._hardware, total=len(devices))
            self._check_sharing(entry)
            pairs.append((unit, entry))
        return claim, _by_gpu(pairs)

    def _check_sharing(self, entry: Entry) -> None:
        if entry.interval or entry.mps is not None:
            self._sharing.check(entry)

    def _check_containers(self, claim: Claim | None, entries: Sequence[Entry]) -> None:
        """Raise ClaimError if containers cannot use the claim as shared; not if it is prepared."""
        if claim is None or any(e.state in HELD for e in entries):
            return
        is_shared = any(e.share is not None or e.mps is not None for e in entries)
        if is_shared or self._journal.has_mps(claim.ref.namespace):
            self._sharing.containers.check(claim, entries)

    def _as_configured(self, entry: Entry, device: AllocatedDevice) -> Entry:
        """The entry with the MPS limits of the allocation.

        Its class may have changed since a slice was made early.
        """
        limits = mps_limits(device, entry.share)
        if entry.state not in ARRIVING or entry.mps == limits:
            return entry
        entry = replace(entry, mps=limits)
        self._check_sharing(entry)
        self._journal.put(entry)
        return entry

    def _unit(self, entry: Entry) -> GpuUnit:
        unit = self._hardware.unit(entry.gpu)
        if unit is None:
            raise StartingError(
                f"GPU {entry.gpu} of {entry.device} is not in this node; "
                "put it back, or delete the pod"
            )
        return unit

    # -- on a GPU

    def _early_on_gpu(self, unit: GpuUnit, entries: Sequence[Entry]) -> bool:
        slices = [replace(e, early=True) for e in entries if e.placement is not None]
        if not slices:
            return True
        if not unit.lock.try_enter():
            return False
        try:
            for entry in slices:
                self._slices.ensure(unit, entry)
        finally:
            unit.lock.leave()
        return True

    def _ensure(self, unit: GpuUnit, entry: Entry) -> Entry:
        if entry.placement is not None:
            return self._slices.ensure(unit, entry)
        return self._ensure_view(unit, entry) if entry.view else self._ensure_gpu(unit, entry)

    def _ensure_view(self, unit: GpuUnit, entry: Entry) -> Entry:
        if entry.state in ARRIVING:
            conflict = unit.conflict
            if unit.released or (conflict and conflict.reason == NodeReason.PAUSED):
                check_available(unit)  # raises: a pod with a view would keep the GPU open
            self._journal.put(entry)
        return entry

    def _ensure_gpu(self, unit: GpuUnit, entry: Entry) -> Entry:
        others = [e for e in self._journal.of_gpu(unit.uuid) if e.key != entry.key]
        check_room_on_gpu(unit, entry, others)
        if entry.state in ARRIVING:
            check_available(unit)
            self._journal.put(entry)
        elif entry.boot_id != self._hardware.boot_id:
            entry = replace(entry, boot_id=self._hardware.boot_id)
            self._journal.put(entry)
        if entry.interval:
            self._sharing.time_slices.set(entry.gpu, entry.interval)
        return entry

    # -- the end of an attempt

    def _undo(self, ref: ClaimRef, error: Exception) -> None:
        """Remove what is half made, after any ``error``, a defect of this program included.

        Raises:
            PluginError: ``error`` in the words for kubelet, unless it is a defect of this program.
        """
        left = str(self._removal.remove_unfinished(ref.uid, patience=UNDO_SECONDS))
        if isinstance(error, PluginError | NvmlError):
            text = f"{error}; undoing it failed too: {left}" if left else str(error)
            kind = type(error) if isinstance(error, PluginError) else HardwareError
            raise kind(text, passing=error.passing) from error
        if left:
            _log.error("undoing it failed too", extra=about(ref, error=left))

    def _look_again(self, groups: _ByGpu, *, read_back: bool) -> None:
        """Have the GPUs of an attempt published as they are now.

        A GPU with entries that were prepared before is looked at here: a slice that was lost and is
        made again must not be shown as lost. ``read_back``: all slices are made and were seen.
        """
        for unit, entries in groups:
            if not any(e.state in HELD for e in entries):
                keys = [e.key for e in entries] if read_back else None
                self._hardware.look_soon(unit.uuid, keys)
                continue
            with unit.lock:
                self._hardware.observe(unit)


def _by_gpu(pairs: Iterable[tuple[GpuUnit, Entry]]) -> _ByGpu:
    groups: dict[str, tuple[GpuUnit, list[Entry]]] = {}
    for unit, entry in pairs:
        groups.setdefault(unit.uuid, (unit, []))[1].append(entry)
    return list(groups.values())


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
