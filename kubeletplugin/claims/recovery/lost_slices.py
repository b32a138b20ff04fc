"""Prepared slices compared with the hardware: lost, found again, made again after a reset."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from dra.claims.reasons import NodeReason
from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.ending.claim_fate import ClaimFate
from kubeletplugin.claims.prepare.specs import Specs
from kubeletplugin.errors import IncompleteError, PluginError
from kubeletplugin.gpus.hardware import Hardware
from kubeletplugin.journal.entries import GONE, HELD, Entry, State, complete
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.telemetry.logfields import about, device
from kubeletplugin.telemetry.observer import Action, NodeObserver
from kubeletplugin.telemetry.reports import Reports

_log = logging.getLogger(__name__)
_LOCK_SECONDS = 2.0


class LostSlices:
    """Checks claims, one at a time; the caller sees to it that nothing else works on the claim.

    ``fate`` asks the API server for a claim, ``finish`` prepares one.
    """

    def __init__(  # noqa: PLR0913 - what has to agree
        self,
        hardware: Hardware,
        journal: Journal,
        specs: Specs,
        *,
        fate: Callable[[ClaimRef], ClaimFate],
        finish: Callable[[ClaimRef], object],
        reports: Reports,
        observer: NodeObserver | None = None,
    ) -> None:
        self._hardware = hardware
        self._journal = journal
        self._specs = specs
        self._fate = fate
        self._finish = finish
        self._reports = reports
        self._observer = observer or NodeObserver()

    def check(self, uid: str) -> bool:
        """Compare a claim's prepared slices with the hardware; True if that changed anything."""
        entries = [e for e in self._journal.of_claim(uid) if e.state in HELD]
        if not entries:
            return False
        seen = [self._seen(e) for e in entries]
        if None in seen:
            return False  # what cannot be looked at is neither there nor lost
        changed = False
        for entry, there in zip(entries, seen, strict=True):
            state = State.PREPARED if there else State.LOST
            if state is not entry.state:
                changed = self._turn(entry, state) or changed
            if (unit := self._hardware.unit(entry.gpu)) is not None:
                unit.forget_wiped(entry.key)
        self._align_spec(uid, whole=all(seen))
        return changed

    def restore(self, ref: ClaimRef) -> bool:
        """Make the slices of a claim again that went with a reset or a driver reload.

        Kubelet does not ask for them: for all that it knows, the claim is prepared, and it starts
        containers again and again. What somebody took away is not made again under him. True if
        anything was made; otherwise the place is kept, and the entry says why.
        """
        lost = [e for e in self._journal.of_claim(ref.uid) if e.state is State.LOST]
        if not lost or not all(e.wiped for e in lost) or self._fate(ref) is not ClaimFate.HERE:
            return False
        try:
            self._finish(ref)
        except PluginError as error:
            self._say_why(ref, lost, str(error))
            return False
        names = ", ".join(e.device for e in lost)
        message = (
            f"made again at the same place after a GPU reset or driver reload: {names}; "
            "containers that ran before have to be restarted"
        )
        self._observer.acted(Action.RESTORED)
        _log.warning("slices made again", extra=about(ref, detail=message))
        self._reports.report_claim(ref, NodeReason.RESTORED, message)
        return True

    def _say_why(self, ref: ClaimRef, lost: Iterable[Entry], why: str) -> None:
        note = f"{GONE}, and cannot be made again: {why}"
        found = [c for e in lost if (c := self._journal.get(e)) is not None]
        current = [c for c in found if c.state is State.LOST and c.note != note]
        if not current:
            return
        names = ", ".join(c.device for c in current)
        message = f"{names} cannot be made again: {why}; it is tried again while the pod is there"
        _log.warning("slices cannot be made again", extra=about(ref, detail=message))
        self._reports.report_claim(ref, NodeReason.LOST, message, warning=True)
        for entry in current:
            try:
                self._journal.alter(entry, entry.at(State.LOST, note=note, wiped=True))
            except PluginError as error:
                _log.error("the journal cannot be written", extra=device(entry, error=str(error)))

    def _seen(self, entry: Entry) -> bool | None:
        """True if an entry's slice is there; None if that cannot be told."""
        if entry.placement is not None and entry.boot_id != self._hardware.boot_id:
            return False
        unit = self._hardware.unit(entry.gpu)
        if unit is None:
            return None
        if entry.placement is None:
            return True
        if not unit.lock.enter(_LOCK_SECONDS):
            return None
        try:
            return self._hardware.identity.is_whole(entry)
        except NvmlError as error:
            _log.debug("cannot be checked", extra=device(entry, error=str(error)))
            return None
        finally:
            unit.lock.leave()

    def _turn(self, entry: Entry, state: State) -> bool:
        note = "" if state is State.PREPARED else GONE
        unit = self._hardware.unit(entry.gpu)
        wiped = state is State.LOST and unit is not None and entry.key in unit.known.wiped
        try:
            if not self._journal.alter(entry, entry.at(state, note=note, wiped=wiped)):
                return False
        except PluginError as error:
            _log.error("the journal cannot be written", extra=device(entry, error=str(error)))
            return False
        self._observer.acted(Action.LOST if state is State.LOST else Action.FOUND)
        if state is State.LOST:
            what = f"{entry.device} (GPU instance {entry.gi_id} on GPU {entry.gpu})"
            message = (
                f"{what} is gone with a GPU reset or driver reload; its place is kept"
                if wiped
                else f"{what} is gone from the hardware: a reboot, or somebody destroyed it; its "
                "place is kept, and kubelet asks for it again when the pod starts again; delete "
                "the pod if it runs on"
            )
            _log.warning("slice lost", extra=device(entry, detail=message))
            self._reports.report_claim(entry.claim, NodeReason.LOST, message, warning=True)
        else:
            _log.info("slice found again", extra=device(entry))
        self._hardware.look(entry.gpu)
        return True

    def _align_spec(self, uid: str, *, whole: bool) -> None:
        """A claim that lost a slice has no spec: its numbers may be another claim's by now."""
        entries: Sequence[Entry] = self._journal.of_claim(uid)
        try:
            if not whole:
                self._specs.remove(uid)
            elif complete(entries):
                self._specs.write(entries)
        except IncompleteError as error:  # said of the node already; the spec stays as it is
            _log.debug("CDI spec", extra=about(entries[0].claim, error=str(error)))
        except PluginError as error:
            _log.error("CDI spec", extra=about(entries[0].claim, error=str(error)))
