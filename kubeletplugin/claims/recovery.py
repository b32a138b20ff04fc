"""Journal, hardware, CDI specs and claims brought to agree: at a start, and now and then after it.

What kubelet was told is kept. What it was not told is finished if the claim is still to run here,
and undone if not. Nothing is removed because the API server could not be asked: it is finished by
kubelet's next call, or collected once the claim is known to have ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from functools import partial

from dra.claims.reasons import NodeReason
from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.context import Context
from kubeletplugin.claims.lookup import ClaimFate
from kubeletplugin.claims.outcomes import Outcomes
from kubeletplugin.claims.prepare import Preparer
from kubeletplugin.claims.removal import ClaimRemoval
from kubeletplugin.claims.specs import Specs
from kubeletplugin.claims.tasks import ClaimTasks
from kubeletplugin.errors import IncompleteError, PluginError, StartingError
from kubeletplugin.journal.entries import ARRIVING, GONE, HELD, LEAVING, Entry, State, complete
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.telemetry.observer import Action
from kubeletplugin.telemetry.reports import about, device
from kubeletplugin.times import LOOK_SECONDS, RECOVERY_SECONDS

_log = logging.getLogger(__name__)


class Recovery:
    """Checks claims, each as its only task, so that kubelet's calls for it wait their turn.

    ``fate`` asks the API server for a claim.
    """

    def __init__(  # noqa: PLR0913 - what has to agree
        self,
        context: Context,
        preparer: Preparer,
        removal: ClaimRemoval,
        specs: Specs,
        tasks: ClaimTasks,
        *,
        outcomes: Outcomes,
        fate: Callable[[ClaimRef], ClaimFate],
    ) -> None:
        self._context = context
        self._journal = context.journal
        self._hardware = removal.hardware
        self._preparer = preparer
        self._removal = removal
        self._specs = specs
        self._tasks = tasks
        self._outcomes = outcomes
        self._fate = fate
        self._unswept = False

    # -- at a start

    def run(self) -> None:
        """Check every claim of the journal, then remove files that belong to none. Never raises.

        At rest this changes nothing: no instance, no file. Claims are checked beside each other;
        one that takes more than seconds goes on afterwards. While something may be missing from the
        journal, or changes in it, no spec is one that belongs to no claim (see ``strays``).
        """
        try:
            self._journal.sweep()
        except PluginError as error:
            _log.error("%s", error)
        refs = dict.fromkeys(e.claim for e in self._journal.entries())
        # A call of kubelet that waits for this start finishes the claim itself.
        tried = [self._tasks.begin(r.uid, "recover", partial(self._recover, r)) for r in refs]
        begun = [future for future in tried if future is not None]
        if wait(begun, timeout=RECOVERY_SECONDS).not_done:
            _log.warning("served before all claims of the last run are recovered")
            self._unswept = True
        elif self._journal.rebuild:
            self._unswept = True
        else:
            self._sweep()

    def leave(self) -> None:
        """Remove the spec that claims have in common if there is no claim, at the end of this run.

        Never raises. The next claim gets it again.
        """
        journal = self._journal
        is_used = any(not (e.ready or e.suspect) for e in journal.entries())
        if journal.rebuild or is_used:
            return
        try:
            self._specs.remove_common()
        except PluginError as error:
            _log.error("%s", error)

    def strays(self) -> frozenset[str]:
        """Claims with a CDI spec and no record, if ``run`` could not tell; once. Never raises."""
        if not self._unswept or self._journal.rebuild:
            return frozenset()
        self._unswept = False
        try:
            return self._specs.claims() - self._known()
        except PluginError as error:
            _log.error("%s", error)
            return frozenset()

    def drop_stray(self, uid: str) -> None:
        """Remove the CDI spec of a claim that has no record.

        Raises:
            HostError: it cannot be removed.
        """
        if uid not in self._known():
            self._specs.remove(uid)
            self._context.observer.acted(Action.SWEPT)

    def _sweep(self) -> None:
        try:
            removed = self._specs.sweep(self._known())
        except PluginError as error:
            _log.error("%s", error)
            return
        if removed:
            _log.info("removed %d CDI specs without a claim", removed)
            for _ in range(removed):
                self._context.observer.acted(Action.SWEPT)

    def _known(self) -> set[str]:
        return {e.claim.uid for e in self._journal.entries()}

    def _recover(self, ref: ClaimRef) -> None:
        try:
            self._finish_or_undo(ref)
            self.check(ref.uid)
        except Exception:  # noqa: BLE001 - other claims are served, and this one by kubelet's call
            _log.exception("cannot be recovered", extra=about(ref))

    def _finish_or_undo(self, ref: ClaimRef) -> None:
        entries = self._journal.of_claim(ref.uid)
        if any(e.state in LEAVING for e in entries):
            self._removal.retry(ref.uid)
        if not any(e.state in ARRIVING for e in entries):
            return
        fate = self._fate(ref)
        if fate in {ClaimFate.HERE, ClaimFate.UNKNOWN}:
            self._outcomes.cut_short()
        if fate is ClaimFate.UNKNOWN:
            _log.warning("left half done, until the API server answers", extra=about(ref))
            return
        if fate is ClaimFate.HERE:
            _log.info("left half done, to be finished", extra=about(ref))
            try:
                if all(e.early for e in entries):
                    self._preparer.make_early(ref)
                else:
                    self._preparer.prepare(ref)
                    self._outcomes.show(ref)
            except StartingError as error:
                _log.warning("left as it is", extra=about(ref, error=str(error)))
                return
            except PluginError as error:
                _log.error("cannot be finished", extra=about(ref, error=str(error)))
            else:
                self._context.observer.acted(Action.FINISHED)
                return
        _log.info("left half done, to be undone", extra=about(ref))
        self._context.observer.acted(Action.UNDONE)
        self._removal.remove_unfinished(ref.uid)

    # -- lost slices: the caller sees to it that nothing else works on the claim

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
            self._preparer.prepare(ref)
        except PluginError as error:
            self._say_why(ref, lost, str(error))
            return False
        names = ", ".join(e.device for e in lost)
        message = (
            f"made again at the same place after a GPU reset or driver reload: {names}; "
            "containers that ran before have to be restarted"
        )
        self._context.observer.acted(Action.RESTORED)
        _log.warning("slices made again", extra=about(ref, detail=message))
        self._context.reports.report_claim(ref, NodeReason.RESTORED, message)
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
        self._context.reports.report_claim(ref, NodeReason.LOST, message, warning=True)
        for entry in current:
            self._alter(entry, entry.at(State.LOST, note=note, wiped=True))

    def _seen(self, entry: Entry) -> bool | None:
        """True if an entry's slice is there; None if that cannot be told."""
        if entry.placement is not None and entry.boot_id != self._hardware.boot_id:
            return False
        unit = self._hardware.unit(entry.gpu)
        if unit is None:
            return None
        if entry.placement is None:
            return True
        if not unit.lock.enter(LOOK_SECONDS):
            return None
        try:
            return self._hardware.identity.is_whole(entry)
        except NvmlError as error:
            _log.debug("cannot be checked", extra=device(entry, error=str(error)))
            return None
        finally:
            unit.lock.leave()

    def _turn(self, entry: Entry, state: State) -> bool:
        """Record that a slice is lost, or there again; False if it is not recorded."""
        unit = self._hardware.unit(entry.gpu)
        if state is State.PREPARED:
            if not self._alter(entry, entry.at(state, wiped=False)):
                return False
            self._context.observer.acted(Action.FOUND)
            _log.info("slice found again", extra=device(entry))
        else:
            wiped = unit is not None and entry.key in unit.known.wiped
            if not self._alter(entry, entry.at(state, note=GONE, wiped=wiped)):
                return False
            what = f"{entry.device} (GPU instance {entry.gi_id} on GPU {entry.gpu})"
            message = (
                f"{what} is gone with a GPU reset or driver reload; its place is kept"
                if wiped
                else f"{what} is gone from the hardware: a reboot, or somebody destroyed it; its "
                "place is kept, and kubelet asks for it again when the pod starts again; delete "
                "the pod if it runs on"
            )
            self._context.observer.acted(Action.LOST)
            _log.warning("slice lost", extra=device(entry, detail=message))
            reports = self._context.reports
            reports.report_claim(entry.claim, NodeReason.LOST, message, warning=True)
        self._hardware.look(entry.gpu)
        return True

    def _alter(self, entry: Entry, changed: Entry) -> bool:
        try:
            return self._journal.alter(entry, changed)
        except PluginError as error:
            _log.error("the journal cannot be written", extra=device(entry, error=str(error)))
            return False

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
