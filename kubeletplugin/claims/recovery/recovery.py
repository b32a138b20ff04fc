"""Recovery after a start: claims left half done, slices lost meanwhile, specs without a claim.

What kubelet was told is kept. What it was not told is finished if the claim is still to run here,
and undone if not. Nothing is removed because the API server could not be asked: it is finished by
kubelet's next call, or collected once the claim is known to have ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial

from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.claim_tasks import ClaimTasks
from kubeletplugin.claims.ending.claim_fate import ClaimFate
from kubeletplugin.claims.prepare.rollback import Rollback
from kubeletplugin.claims.prepare.specs import Specs
from kubeletplugin.claims.recovery.lost_slices import LostSlices
from kubeletplugin.errors import PluginError, StartingError
from kubeletplugin.journal.entries import ARRIVING, LEAVING
from kubeletplugin.journal.journal import Journal
from kubeletplugin.telemetry.logfields import about
from kubeletplugin.telemetry.observer import Action, NodeObserver

_log = logging.getLogger(__name__)
_SECONDS = 5.0
"""Longest wait for claims to be recovered before kubelet's calls are served."""


class Recovery:
    """Checks claims, each as its only task, so that kubelet's calls for it wait their turn.

    ``cut_short`` hears that the last run ended in the middle of a Prepare.
    ``finish`` prepares a claim, ``finish_ahead`` makes what was to be made before kubelet asks.
    """

    def __init__(  # noqa: PLR0913 - what has to agree
        self,
        journal: Journal,
        specs: Specs,
        rollback: Rollback,
        lost_slices: LostSlices,
        tasks: ClaimTasks,
        *,
        fate: Callable[[ClaimRef], ClaimFate],
        finish: Callable[[ClaimRef], object],
        finish_ahead: Callable[[ClaimRef], object],
        cut_short: Callable[[], None] = lambda: None,
        observer: NodeObserver | None = None,
    ) -> None:
        self._observer = observer or NodeObserver()
        self._journal = journal
        self._specs = specs
        self._rollback = rollback
        self._lost_slices = lost_slices
        self._tasks = tasks
        self._fate = fate
        self._finish = finish
        self._cut_short = cut_short
        self._finish_ahead = finish_ahead
        self._unswept = False

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
        tried = [self._tasks.begin(r.uid, "recover", partial(self._check, r)) for r in refs]
        begun = [future for future in tried if future is not None]
        if wait(begun, timeout=_SECONDS).not_done:
            _log.warning("served before all claims of the last run are recovered")
            self._unswept = True
        elif self._journal.rebuild:
            self._unswept = True
        else:
            self._sweep()

    def _check(self, ref: ClaimRef) -> None:
        try:
            self._unfinished(ref)
            self._lost_slices.check(ref.uid)
        except Exception:  # noqa: BLE001 - other claims are served, and this one by kubelet's call
            _log.exception("cannot be recovered", extra=about(ref))

    def _sweep(self) -> None:
        try:
            removed = self._specs.sweep(self._known())
        except PluginError as error:
            _log.error("%s", error)
            return
        if removed:
            _log.info("removed %d CDI specs without a claim", removed)
            for _ in range(removed):
                self._observer.acted(Action.SWEPT)

    def leave(self) -> None:
        """Remove the spec that claims have in common if there is no claim, at the end of this run.

        Never raises. The next claim gets it again.
        """
        journal = self._journal
        if (
            journal.rebuild
            or journal.unread()
            or any(not (e.ready or e.suspect) for e in journal.entries())
        ):
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

    def has_spec(self, uid: str) -> bool:
        """True if a claim has a CDI spec, which it gets when it is prepared; True if in doubt."""
        try:
            return uid in self._specs.claims()
        except PluginError:
            return True

    def drop_stray(self, uid: str) -> None:
        """Remove the CDI spec of a claim that has no record.

        Raises:
            HostError: it cannot be removed.
        """
        if uid not in self._known():
            self._specs.remove(uid)
            self._observer.acted(Action.SWEPT)

    def _known(self) -> set[str]:
        return {e.claim.uid for e in self._journal.entries()} | self._journal.unread()

    def _unfinished(self, ref: ClaimRef) -> None:
        entries = self._journal.of_claim(ref.uid)
        if any(e.state in LEAVING for e in entries):
            self._rollback.retry_removal(ref.uid)
        if not any(e.state in ARRIVING for e in entries):
            return
        fate = self._fate(ref)
        if fate in {ClaimFate.HERE, ClaimFate.UNKNOWN}:
            self._cut_short()
        if fate is ClaimFate.UNKNOWN:
            _log.warning("left half done, until the API server answers", extra=about(ref))
            return
        if fate is ClaimFate.HERE:
            _log.info("left half done, to be finished", extra=about(ref))
            finish = self._finish_ahead if all(e.early for e in entries) else self._finish
            try:
                finish(ref)
            except StartingError as error:
                _log.warning("left as it is", extra=about(ref, error=str(error)))
                return
            except PluginError as error:
                _log.error("cannot be finished", extra=about(ref, error=str(error)))
            else:
                self._observer.acted(Action.FINISHED)
                return
        _log.info("left half done, to be undone", extra=about(ref))
        self._observer.acted(Action.UNDONE)
        self._rollback.remove_unfinished(ref.uid)
