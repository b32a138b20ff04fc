"""Janitor: makes journal, hardware, CDI specs and claims agree, at a start and repeatedly after it.

Devices of which kubelet was told are kept. Half-made devices are finished if the claim is still to
run here, and undone if not. While the API server does not answer, they stay: kubelet's next call
finishes them, or they are removed once the claim is known to have ended. Claims that kubelet has
forgotten are removed too: kubelet unprepares claims only of pods that it knows, and not of a pod
that was force-deleted while kubelet and plugin were down. Whether anybody still uses them is asked
in holders.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial

from dra.claims.reasons import NodeReason
from dra.gpu.inventory import ClaimRef
from dra.kube.loop import Loop
from dra.kube.timing import Backoff
from kubeletplugin.claims.early import EarlySlices
from kubeletplugin.claims.lookup import ClaimFate
from kubeletplugin.claims.node import Node
from kubeletplugin.claims.sharing.sharing import DeviceSharing
from kubeletplugin.claims.specs import Specs
from kubeletplugin.claims.takeover import Takeover
from kubeletplugin.common import Common
from kubeletplugin.errors import IncompleteError, PluginError, StartingError
from kubeletplugin.journal.entries import ARRIVING, GONE, HELD, LEAVING, Entry, State, complete
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.telemetry.observer import Action, about, device
from kubeletplugin.times import (
    CHECK_SECONDS,
    CLAIMS_SECONDS,
    CLOSED_SECONDS,
    LAST_REMOVALS_SECONDS,
    LONGEST_REMOVAL_PAUSE_SECONDS,
    LOOK_SECONDS,
    RECOVERY_SECONDS,
    ROUND_SECONDS,
    RPC_SECONDS,
)

_log = logging.getLogger(__name__)


def _removal_pause() -> Backoff:
    return Backoff(first=ROUND_SECONDS, limit=LONGEST_REMOVAL_PAUSE_SECONDS)


@dataclass(slots=True)
class _Claim:
    """Work of the janitor on one claim.

    ``removal``: pause before the next attempt to remove it. ``ended``: monotonic time at which the
    claim was first seen ended; None if it was not.
    """

    removal: Backoff = field(default_factory=_removal_pause)
    ended: float | None = None


class Janitor:
    """Janitor, with a thread of its own, as it asks the API server and waits for GPUs.

    Its work on a claim is the claim's only task, so kubelet's calls for the claim wait for it.
    Failures of a claim are logged. ``forgotten_seconds``: time that kubelet has to unprepare a
    claim that has ended, before the janitor removes it.
    """

    def __init__(  # noqa: PLR0913 - what it looks at
        self,
        common: Common,
        node: Node,
        early: EarlySlices,
        specs: Specs,
        sharing: DeviceSharing,
        *,
        takeover: Takeover,
        forgotten_seconds: float,
    ) -> None:
        self._journal = common.journal
        self._reports = common.reports
        self._readiness = common.readiness
        self._clock = common.clock
        self._acted = common.telemetry.metrics.acted
        self._beat = common.telemetry.liveness.janitor.beat
        self._node = node
        self._tasks = node.tasks
        self._removal = node.removal
        self._hardware = node.removal.hardware
        self._early = early
        self._specs = specs
        self._sharing = sharing
        self._takeover = takeover
        self._forgotten_seconds = forgotten_seconds
        self._unswept = False
        self._next_claims = self._next_check = self._clock.monotonic()
        self._claims: dict[str, _Claim] = {}
        self.thread = Loop(
            "janitor",
            self._turn,
            beat=self._beat,
            backoff=Backoff(first=ROUND_SECONDS),
            clock=self._clock,
        )

    # -- at a start and at an end

    def recover(self) -> None:
        """Remove files that belong to no claim, then check every claim of the journal.

        Never raises. Claims are checked in parallel; a check that takes longer than
        ``RECOVERY_SECONDS`` goes on afterwards. While entries may be missing from the journal, all
        CDI specs stay.
        """
        self._unswept = self._journal.rebuild
        try:
            self._journal.sweep()
            if not self._unswept:
                for _ in range(self._specs.sweep(self._known())):
                    self._acted(Action.SWEPT)
        except PluginError as error:
            _log.error("%s", error)
        refs = dict.fromkeys(e.claim for e in self._journal.entries())
        # A call of kubelet that waits for this start finishes the claim itself.
        tried = [self._tasks.begin(r.uid, "recover", partial(self._recover, r)) for r in refs]
        begun = [future for future in tried if future is not None]
        if wait(begun, timeout=RECOVERY_SECONDS).not_done:
            _log.warning("served before all claims of the last run are recovered")

    def _recover(self, ref: ClaimRef) -> None:
        try:
            entries = self._journal.of_claim(ref.uid)
            if any(e.state in LEAVING for e in entries):
                self._removal.retry(ref.uid)
            if any(e.state in ARRIVING for e in entries):
                self._finish_or_undo(ref, is_early=all(e.early for e in entries))
            self.check(ref.uid)
        except Exception:  # noqa: BLE001 - other claims are served, and this one by kubelet's call
            _log.exception("cannot be recovered", extra=about(ref))

    def _finish_or_undo(self, ref: ClaimRef, *, is_early: bool) -> None:
        fate = self._early.reader.fate(ref)
        if fate in {ClaimFate.HERE, ClaimFate.UNKNOWN}:
            self._node.outcomes.cut_short()
        if fate is ClaimFate.UNKNOWN:
            _log.warning("left half done, until the API server answers", extra=about(ref))
            return
        if fate is ClaimFate.HERE:
            try:
                if is_early:
                    self._node.preparer.make_early(ref)
                else:
                    self._node.preparer.prepare(ref)
                    self._node.outcomes.statuses.show(ref)
            except StartingError as error:
                _log.warning("left half done", extra=about(ref, error=str(error)))
                return
            except PluginError as error:
                _log.error("cannot be finished", extra=about(ref, error=str(error)))
            else:
                _log.info("was left half done, and is finished", extra=about(ref))
                self._acted(Action.FINISHED)
                return
        self._undo(ref)

    def _undo(self, ref: ClaimRef) -> None:
        _log.info("left half done, to be undone", extra=about(ref))
        self._acted(Action.UNDONE)
        self._removal.remove_unfinished(ref.uid)

    def leave(self) -> None:
        """At the end of this run, remove the common CDI spec if there are no claims. Never raises.

        It is written again with the next claim.
        """
        is_used = any(not (e.ready or e.suspect) for e in self._journal.entries())
        if self._journal.rebuild or is_used:
            return
        try:
            self._specs.remove_common()
        except PluginError as error:
            _log.error("%s", error)

    def give_up_idle(self) -> None:
        """Remove idle GPU instances, which nothing would remove after the end of this program.

        A removal that fails is retried, for all instances together ``LAST_REMOVALS_SECONDS`` long.
        """
        end = self._clock.monotonic() + LAST_REMOVALS_SECONDS
        idle = (e for e in self._journal.entries() if e.idle and not e.ready)
        for ref in dict.fromkeys(e.claim for e in idle):
            patience = end - self._clock.monotonic()
            if patience <= 0:
                return  # the next start removes the rest
            self._run(ref, "reclaim", partial(self._remove, ref, patience), seconds=patience)

    # -- now and then

    def check_soon(self) -> None:
        """Check all prepared claims and their CDI specs in the next round."""
        self._next_check = self._clock.monotonic()

    def tend(self, *, everything: bool = False) -> None:
        """Do one round: retry removals that are due, and check prepared claims if due.

        Every ``CLAIMS_SECONDS`` the API server is asked for every claim. ``everything``: do all of
        this in this round.
        """
        self._journal.retry()
        now = self._clock.monotonic()
        ask = everything or now >= self._next_claims
        check = everything or now >= self._next_check
        if ask:
            self._next_claims = now + CLAIMS_SECONDS
            self._sharing.sweep()
        if check:
            self._next_check = now + CHECK_SECONDS
            self._rebuild()
        self._takeover.tend(is_due=check)
        entries = self._journal.entries()
        due = {e.claim.uid for e in entries if not e.idle} | self._removal.idle.due(entries)
        refs = dict.fromkeys(e.claim for e in entries if e.claim.uid in due)
        self._claims = {ref.uid: self._claims.get(ref.uid) or _Claim() for ref in refs}
        for ref in refs:
            if self.thread.is_stopping():
                return
            self._beat()
            if self._tasks.idle(ref.uid):
                self._tend_claim(ref, ask=ask, check=check, at_once=everything)

    def _turn(self) -> float:
        if not self._readiness.is_ready:
            return CLOSED_SECONDS
        self.tend()
        return ROUND_SECONDS

    def _tend_claim(self, ref: ClaimRef, *, ask: bool, check: bool, at_once: bool) -> None:
        entries, claim = self._journal.of_claim(ref.uid), self._claims[ref.uid]
        if not any(e.state in LEAVING for e in entries):
            claim.removal = _removal_pause()
        elif at_once or not claim.removal.left(self._clock.monotonic()):
            self._run(ref, "reclaim", partial(self._remove, ref))
            claim.removal.fail(self._clock.monotonic())
        ask = ask or (check and ref.uid in self._node.unprepared)
        if ask and entries and all(e.early for e in entries):
            self._early.doubt(ref)
        elif ask and not any(e.suspect for e in entries):
            self._run(ref, "collect", partial(self._collect, ref, claim))
        if check and any(e.state in HELD for e in self._journal.of_claim(ref.uid)):
            self._run(ref, "check", partial(self._check, ref))

    def _run(
        self, ref: ClaimRef, name: str, work: Callable[[], object], *, seconds: float = RPC_SECONDS
    ) -> None:
        """Do ``work`` as the claim's only task; ``name`` is for logs.

        Waits at most ``seconds``; after that the work goes on by itself. Failures are logged.
        """
        try:
            self._tasks.run(ref.uid, name, work, deadline=self._clock.monotonic() + seconds)
        except PluginError as error:
            _log.warning("%s failed", name, extra=about(ref, error=str(error)))

    def _remove(self, ref: ClaimRef, patience: float = 0.0) -> None:
        """Try again to remove what is left of a claim: once, or for ``patience`` seconds."""
        if not str(self._removal.retry(ref.uid, patience=patience)):
            self._acted(Action.RECLAIMED)
            _log.info("reclaimed", extra=about(ref))

    def _rebuild(self) -> None:
        """Continue the rebuild of a lost journal; once it is done, remove specs without a claim."""
        if not self._node.rebuild.run() or not self._unswept:
            return
        self._unswept = False
        try:
            strays = self._specs.claims() - self._known()
        except PluginError as error:
            _log.error("%s", error)
            return
        for uid in strays:
            self._run(ClaimRef("", "", uid), "sweep", partial(self._drop_stray, uid))

    def _drop_stray(self, uid: str) -> None:
        if uid not in self._known():
            self._specs.remove(uid)
            self._acted(Action.SWEPT)

    def _known(self) -> set[str]:
        return {e.claim.uid for e in self._journal.entries()}

    # -- claims that kubelet will not unprepare

    def _collect(self, ref: ClaimRef, claim: _Claim) -> None:
        """Release a claim that kubelet will not unprepare, unless somebody uses its devices.

        It runs as the claim's only task.
        """
        if ref.uid in self._node.unprepared:
            self._node.release(ref)
            return
        fate = self._early.reader.fate(ref)
        if fate is ClaimFate.IDLE and any(
            e.state in ARRIVING for e in self._journal.of_claim(ref.uid)
        ):
            self._undo(ref)  # left so by a start, as the API server did not answer
            return
        if fate is ClaimFate.ENDED and not self._is_forgotten(claim):
            self._ask_soon()
            return
        if fate not in {ClaimFate.GONE, ClaimFate.FREED, ClaimFate.ENDED}:
            if fate is not ClaimFate.UNKNOWN:
                claim.ended = None
            return
        if self._node.release(ref, fate):
            self._ask_soon()
            return
        _log.info("gone, its slices are removed", extra=about(ref, reason=fate.name.lower()))
        self._acted(Action.COLLECTED)

    def _ask_soon(self) -> None:
        self._next_claims = min(self._next_claims, self._clock.monotonic() + CHECK_SECONDS)

    def _is_forgotten(self, claim: _Claim) -> bool:
        """True if an ended claim has waited ``forgotten_seconds`` for kubelet's Unprepare.

        A kubelet that lost its checkpoint of claims never unprepares those of earlier pods, and
        such a claim cannot be deleted before its devices are released.
        """
        now = self._clock.monotonic()
        if claim.ended is None:
            claim.ended = now
        return now - claim.ended >= self._forgotten_seconds

    # -- lost slices: the caller makes sure that nothing else works on the claim

    def _check(self, ref: ClaimRef) -> None:
        """Compare a claim with the hardware, make again what a reset removed, keep MPS running."""
        changed = self.check(ref.uid)
        changed = self.restore(ref) or changed
        changed = self._sharing.keep(self._journal.of_claim(ref.uid)) or changed
        if changed:
            self._node.outcomes.statuses.show(ref)

    def check(self, uid: str) -> bool:
        """Compare a claim's prepared slices with the hardware; True if an entry was changed."""
        entries = [e for e in self._journal.of_claim(uid) if e.state in HELD]
        seen = [self._seen(e) for e in entries]
        if not entries or None in seen:
            return False  # a slice that cannot be looked at counts neither as there nor as lost
        changed = False
        for entry, there in zip(entries, seen, strict=True):
            state = State.PREPARED if there else State.LOST
            if state is not entry.state:
                changed = self._turn_to(entry, state) or changed
            if (unit := self._hardware.unit(entry.gpu)) is not None:
                unit.forget_wiped(entry.key)
        self._align_spec(uid, whole=all(seen))
        return changed

    def restore(self, ref: ClaimRef) -> bool:
        """Make a claim's slices again that were lost by a GPU reset or driver reload.

        Kubelet does not ask for them: it takes the claim for prepared, and restarts containers.
        Slices that somebody destroyed are not made again. Returns True if slices were made;
        otherwise their placements are kept, and a failure is noted in their entries.
        """
        lost = [e for e in self._journal.of_claim(ref.uid) if e.state is State.LOST]
        if not lost or not all(e.wiped for e in lost):
            return False
        if self._early.reader.fate(ref) is not ClaimFate.HERE:
            return False
        try:
            self._node.preparer.prepare(ref)
        except PluginError as error:
            self._say_why(ref, lost, str(error))
            return False
        names = ", ".join(e.device for e in lost)
        message = (
            f"made again at the same place after a GPU reset or driver reload: {names}; "
            "containers that ran before have to be restarted"
        )
        self._acted(Action.RESTORED)
        _log.warning("slices made again", extra=about(ref, detail=message))
        self._reports.report_device(ref, NodeReason.RESTORED, message)
        return True

    def _say_why(self, ref: ClaimRef, lost: Sequence[Entry], why: str) -> None:
        note = f"{GONE}, and cannot be made again: {why}"
        found = [c for e in lost if (c := self._journal.get(e)) is not None]
        current = [c for c in found if c.state is State.LOST and c.note != note]
        if not current:
            return
        names = ", ".join(c.device for c in current)
        message = f"{names} cannot be made again: {why}; it is tried again while the pod is there"
        _log.warning("slices cannot be made again", extra=about(ref, detail=message))
        self._reports.report_device(ref, NodeReason.LOST, message, warning=True)
        for entry in current:
            self._alter(entry, entry.at(State.LOST, note=note, wiped=True))

    def _seen(self, entry: Entry) -> bool | None:
        """True if an entry's slice is on the hardware; None if that is not known."""
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

    def _turn_to(self, entry: Entry, state: State) -> bool:
        """Record and report that a slice is lost, or there again; False if it was not recorded."""
        unit = self._hardware.unit(entry.gpu)
        is_lost = state is State.LOST
        wiped = is_lost and unit is not None and entry.key in unit.wiped
        if not self._alter(entry, entry.at(state, note=GONE if is_lost else "", wiped=wiped)):
            return False
        self._acted(Action.LOST if is_lost else Action.FOUND)
        if is_lost:
            what = f"{entry.device} (GPU instance {entry.gi_id} on GPU {entry.gpu})"
            message = (
                f"{what} is gone with a GPU reset or driver reload; its place is kept"
                if wiped
                else f"{what} is gone from the hardware: a reboot, or somebody destroyed it; its "
                "place is kept, and kubelet asks for it again when the pod starts again; delete "
                "the pod if it runs on"
            )
            _log.warning("slice lost", extra=device(entry, detail=message))
            self._reports.report_device(entry.claim, NodeReason.LOST, message, warning=True)
        else:
            _log.info("slice found again", extra=device(entry))
        self._hardware.look_soon(entry.gpu)
        return True

    def _alter(self, entry: Entry, changed: Entry) -> bool:
        try:
            return self._journal.alter(entry, changed)
        except PluginError as error:
            _log.error("the journal cannot be written", extra=device(entry, error=str(error)))
            return False

    def _align_spec(self, uid: str, *, whole: bool) -> None:
        """Write the claim's CDI spec, or remove it if the claim has lost a slice (not ``whole``).

        The device nodes in the spec of a lost slice may be another claim's by now.
        """
        entries = self._journal.of_claim(uid)
        try:
            if not whole:
                self._specs.remove(uid)
            elif complete(entries):
                self._specs.write(entries)
        except IncompleteError as error:  # NodeNeeds reports it; the spec stays as it is
            _log.debug("CDI spec", extra=about(entries[0].claim, error=str(error)))
        except PluginError as error:
            _log.error("CDI spec", extra=about(entries[0].claim, error=str(error)))
