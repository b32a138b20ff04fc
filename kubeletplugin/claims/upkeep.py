"""Upkeep of claims that kubelet did not ask for: removed, checked, found again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.claim_tasks import ClaimTasks
from kubeletplugin.claims.prepare.rollback import Rollback
from kubeletplugin.claims.recovery.lost_slices import LostSlices
from kubeletplugin.claims.recovery.rebuild import Rebuild
from kubeletplugin.claims.recovery.recovery import Recovery
from kubeletplugin.claims.sharing.sharing import DeviceSharing
from kubeletplugin.errors import PluginError
from kubeletplugin.journal.journal import Journal
from kubeletplugin.publishing.claimstatus import ClaimStatuses
from kubeletplugin.telemetry.logfields import about
from kubeletplugin.telemetry.observer import Action, NodeObserver
from kubeletplugin.times import RPC_SECONDS

_log = logging.getLogger(__name__)


class Upkeep:
    """Works on one claim at a time, with nothing else beside it. Thread-safe.

    Failures of one claim are logged; no method raises PluginError.
    """

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        journal: Journal,
        tasks: ClaimTasks,
        *,
        rollback: Rollback,
        recovery: Recovery,
        lost_slices: LostSlices,
        rebuild: Rebuild,
        statuses: ClaimStatuses,
        sharing: DeviceSharing,
        clock: Callable[[], float] = time.monotonic,
        observer: NodeObserver | None = None,
    ) -> None:
        self._journal = journal
        self._tasks = tasks
        self._rollback = rollback
        self._recovery = recovery
        self._lost_slices = lost_slices
        self._rebuild = rebuild
        self._statuses = statuses
        self._sharing = sharing
        self._clock = clock
        self._observer = observer or NodeObserver()

    def run(
        self, ref: ClaimRef, name: str, work: Callable[[], object], *, seconds: float = RPC_SECONDS
    ) -> None:
        """Do ``work`` for a claim once nothing else is done for it; ``name`` is for logs.

        It is waited for at most ``seconds``, and goes on after them.
        """
        try:
            self._tasks.run(ref.uid, name, work, deadline=self._clock() + seconds)
        except PluginError as error:
            _log.warning("%s failed", name, extra=about(ref, error=str(error)))

    def retry_removal(
        self, ref: ClaimRef, *, patience: float = 0.0, seconds: float = RPC_SECONDS
    ) -> None:
        """Try again to remove what is left of a claim: once, or for ``patience`` seconds.

        That is waited for at most ``seconds``.
        """
        work = partial(self._retry_removal, ref, patience)
        self.run(ref, "reclaim", work, seconds=seconds)

    def undo(self, ref: ClaimRef) -> None:
        """Remove what is left half made of a claim; as part of :meth:`run`."""
        self._rollback.remove_unfinished(ref.uid)
        self._observer.acted(Action.UNDONE)

    def check(self, ref: ClaimRef) -> None:
        """Compare a claim with the hardware, and make again what a reset took from it."""
        self.run(ref, "check", partial(self._check, ref))

    def rebuild(self) -> None:
        """Look for what a lost journal leaves out, if that is still to be done."""
        if not self._rebuild.run():
            return
        for uid in self._recovery.strays():
            self.run(ClaimRef("", "", uid), "sweep", partial(self._recovery.drop_stray, uid))

    def sweep_daemons(self) -> None:
        """Remove MPS daemons of claims that are gone, by what the API server says."""
        self._sharing.sweep()

    def _retry_removal(self, ref: ClaimRef, patience: float) -> None:
        if not str(self._rollback.retry_removal(ref.uid, patience=patience)):
            self._observer.acted(Action.RECLAIMED)
            _log.info("reclaimed", extra=about(ref))

    def _check(self, ref: ClaimRef) -> None:
        changed = self._lost_slices.check(ref.uid)
        changed = self._lost_slices.restore(ref) or changed
        changed = self._sharing.keep(self._journal.of_claim(ref.uid)) or changed
        if changed:
            self._statuses.show_devices(ref, self._journal.of_claim(ref.uid))
