"""NodePrepareResources for one claim: a transaction, undone on the spot when a step fails.

Per GPU, under its lock: intent to the journal, GPU instance, compute instance, read-back. Then the
CDI spec of the whole claim, then ``prepared`` to the journal. Locks of two GPUs are never held
together, so a claim that waits for one GPU holds up nobody on another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dra.allocation import AllocatedDevice
from dra.inventory import ClaimRef
from kubeletplugin.errors import (
    BusyError,
    ClaimError,
    HardwareError,
    PluginError,
    StartingError,
)
from kubeletplugin.hardware import GpuUnit, Hardware
from kubeletplugin.journal import Entry, Journal, State
from kubeletplugin.lookup import ClaimUnreadableError, Wanted, resolve
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.slices import Slices
from kubeletplugin.specs import Specs
from kubeletplugin.undo import Undo

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What kubelet is told of one device."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]


class Preparer:
    """Prepares claims; one call per claim at a time (see ClaimWorks)."""

    def __init__(  # noqa: PLR0913 - the parts that a transaction joins
        self,
        hardware: Hardware,
        journal: Journal,
        slices: Slices,
        specs: Specs,
        undo: Undo,
        *,
        read_devices: Callable[[ClaimRef], tuple[AllocatedDevice, ...]],
    ) -> None:
        self._hardware = hardware
        self._journal = journal
        self._slices = slices
        self._specs = specs
        self._undo = undo
        self._read_devices = read_devices

    def prepare(self, ref: ClaimRef) -> tuple[Prepared, ...]:
        """Make what the claim was given, or find it made; a repeated call changes nothing.

        Raises:
            PluginError: the claim is not prepared, and nothing new is left on the hardware unless
                the message says so.
        """
        entries = self._entries(ref)
        try:
            done = [entry for unit, group in entries for entry in self._on_gpu(unit, group)]
            self._specs.write(done)
            if any(e.state is not State.PREPARED for e in done):
                done = [e.at(State.PREPARED) for e in done]
                self._journal.put(*done)
        except (PluginError, NvmlError) as error:
            left = self._undo.unfinished(ref.uid)
            text = f"{error}; undoing it failed too: {left}" if left else str(error)
            kind = type(error) if isinstance(error, PluginError) else HardwareError
            raise kind(text) from error
        finally:
            self._look_again(entries)
        return tuple(
            Prepared(e.requests, e.pool, e.device, (self._specs.qualified(e),)) for e in done
        )

    def _entries(self, ref: ClaimRef) -> list[tuple[GpuUnit, list[Entry]]]:
        """What is to be there in the end, by GPU: journal entries, new ones as intents."""
        known = self._journal.of_claim(ref.uid)
        try:
            devices = self._read_devices(ref)
        except ClaimUnreadableError:
            if not _complete(known):
                raise
            return self._by_gpu((self._unit(e), e) for e in known)
        names = {d.device for d in devices}
        if {e.device for e in known} - names:
            if any(e.state is State.PREPARED for e in known):
                raise ClaimError(
                    f"the claim is prepared with {_names(e.device for e in known)} but was given "
                    f"{_names(names)} since; end the pods that use it first"
                )
            if left := self._undo.everything(ref.uid):
                raise HardwareError(f"what an earlier allocation left cannot be removed: {left}")
            known = ()
        by_device = {e.device: e for e in known}
        pairs: list[tuple[GpuUnit, Entry]] = []
        for device in devices:
            entry = by_device.get(device.device)
            if entry is not None:
                pairs.append((self._unit(entry), entry))
                continue
            unit, wanted = resolve(device, self._hardware)
            pairs.append((unit, self._intent(ref, wanted, total=len(devices))))
        return self._by_gpu(pairs)

    def _on_gpu(self, unit: GpuUnit, entries: Sequence[Entry]) -> list[Entry]:
        with unit.lock:
            return [self._ensure(unit, entry) for entry in entries]

    def _ensure(self, unit: GpuUnit, entry: Entry) -> Entry:
        """The entry with its slice made; the caller holds the GPU's lock."""
        if entry.placement is None:
            return self._ensure_gpu(unit, entry)
        recorded = next((e for e in self._journal.of_gpu(unit.uuid) if e.key == entry.key), None)
        if recorded is not None:
            if recorded.state is State.PREPARED and self._slices.present(recorded):
                return recorded
            # Half made, or gone with a reboot or a GPU reset: made anew at the same placement.
            _log.info("%s of claim %s is made again", entry.device, entry.claim)
            self._slices.remove(recorded)
        return self._slices.make(unit, entry)

    def _ensure_gpu(self, unit: GpuUnit, entry: Entry) -> Entry:
        for other in self._journal.of_gpu(unit.uuid):
            if other.key != entry.key:
                raise BusyError(
                    f"{unit.name} ({unit.uuid}) is held by claim {other.claim} "
                    f"(UID {other.claim.uid}); it is free once that claim is unprepared"
                )
        if entry.state is not State.PREPARED:
            self._journal.put(entry)
        return entry

    def _look_again(self, groups: Iterable[tuple[GpuUnit, list[Entry]]]) -> None:
        for unit, _ in groups:
            with unit.lock:
                self._hardware.observe(unit)

    def _unit(self, entry: Entry) -> GpuUnit:
        unit = self._hardware.unit(entry.gpu)
        if unit is None:
            raise StartingError(
                f"GPU {entry.gpu} of {entry.device} is not in this node; "
                "put it back, or delete the pod"
            )
        return unit

    def _intent(self, ref: ClaimRef, wanted: Wanted, *, total: int) -> Entry:
        return Entry(
            claim=ref,
            device=wanted.device,
            state=State.INTENT,
            gpu=wanted.gpu,
            boot_id=self._hardware.boot_id,
            pool=wanted.pool,
            requests=wanted.requests,
            total=total,
            profile_id=wanted.profile_id,
            profile=wanted.profile,
            placement=wanted.placement,
        )

    @staticmethod
    def _by_gpu(pairs: Iterable[tuple[GpuUnit, Entry]]) -> list[tuple[GpuUnit, list[Entry]]]:
        groups: dict[str, tuple[GpuUnit, list[Entry]]] = {}
        for unit, entry in pairs:
            groups.setdefault(unit.uuid, (unit, []))[1].append(entry)
        return list(groups.values())


def _complete(entries: Sequence[Entry]) -> bool:
    """Whether these are all the devices that their claim has on this node, and prepared."""
    return bool(entries) and all(
        e.state is State.PREPARED and e.total == len(entries) for e in entries
    )


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
