"""Release of a claim: all its devices off the node, asked for by kubelet or not."""

from __future__ import annotations

from collections.abc import Callable

from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.prepare.rollback import Rollback
from kubeletplugin.claims.recovery.rebuild import Rebuild
from kubeletplugin.claims.recovery.recovery import Recovery
from kubeletplugin.errors import HardwareError, StartingError
from kubeletplugin.journal.entries import Entry
from kubeletplugin.journal.journal import Journal
from kubeletplugin.publishing.claimstatus import ClaimStatuses
from kubeletplugin.telemetry.readiness import Readiness
from kubeletplugin.times import START_SECONDS, UNPREPARE_SECONDS


class Release:
    """Takes claims off the node. Thread-safe; nothing else works on the claim (see ClaimTasks).

    ``keep`` says of which entries the GPU instance stays for another claim.
    """

    def __init__(  # noqa: PLR0913 - all that may know of a claim
        self,
        journal: Journal,
        rollback: Rollback,
        *,
        readiness: Readiness,
        recovery: Recovery,
        rebuild: Rebuild,
        statuses: ClaimStatuses,
        keep: Callable[[Entry], bool],
    ) -> None:
        self._journal = journal
        self._rollback = rollback
        self._readiness = readiness
        self._recovery = recovery
        self._rebuild = rebuild
        self._statuses = statuses
        self._keep = keep

    def release(self, ref: ClaimRef) -> None:
        """Take everything of a claim off the node; what is left is unavailable and goes later.

        Raises:
            StartingError: the GPUs cannot be asked yet, or it cannot be told yet whether anything
                of the claim is there.
            HardwareError: something is left of which there is no record that it is to go.
        """
        known = self._journal.of_claim(ref.uid)
        if any(e.placement is not None for e in known):
            self._readiness.wait_ready(START_SECONDS)
        if not known and self._forgotten(ref):
            raise StartingError(
                "the journal was lost, and what it said of this claim is not found again yet, as "
                "the API server or a GPU does not answer; it is tried again"
            )
        known = self._journal.of_claim(ref.uid)
        left = self._rollback.remove_all(ref.uid, patience=UNPREPARE_SECONDS, keep=self._keep)
        if left.failed:
            raise HardwareError(str(left))
        if known:
            self._statuses.clear(ref)

    def _forgotten(self, ref: ClaimRef) -> bool:
        """True if a claim was prepared here by its CDI spec, and a lost journal hides with what."""
        if not self._recovery.has_spec(ref.uid):
            return False
        self._rebuild.run(about=ref)
        return self._rebuild.may_miss(ref.uid)
