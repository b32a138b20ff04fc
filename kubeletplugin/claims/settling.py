"""End of a Prepare: what it showed of GPUs and claims is told to whoever can act on it."""

from __future__ import annotations

from dra.claims.conditions import PREPARE_FAILING
from dra.claims.reasons import NodeReason
from dra.gpu.inventory import ClaimRef
from kubeletplugin.claims.failed_claims import FailedClaims
from kubeletplugin.errors import PluginError, denied_gpu, failing_gpu, is_permanent
from kubeletplugin.gpus.health.monitor import HealthMonitor
from kubeletplugin.journal.entries import HELD
from kubeletplugin.journal.journal import Journal
from kubeletplugin.publishing.claimstatus import ClaimStatuses
from kubeletplugin.publishing.slices.failed_gpus import FailedGpus
from kubeletplugin.telemetry.reports import Reports

SEVERAL = 3
"""Failures in a row after which a claim's status tells of them."""


class Settling:
    """Tells the controller what failed, and by the claim's status what stays so. Thread-safe."""

    def __init__(  # noqa: PLR0913 - whom it tells
        self,
        journal: Journal,
        monitor: HealthMonitor,
        statuses: ClaimStatuses,
        reports: Reports,
        *,
        failed_claims: FailedClaims,
        failed_gpus: FailedGpus,
        pool: str,
    ) -> None:
        self._journal = journal
        self._monitor = monitor
        self._statuses = statuses
        self._reports = reports
        self._failed_claims = failed_claims
        self._failed_gpus = failed_gpus
        self._pool = pool

    def not_made_ahead(self, ref: ClaimRef, error: PluginError) -> None:
        """Take note of slices for which kubelet has not asked yet, and which cannot be made."""
        self._failed_claims.not_made_ahead(ref, error)
        self._note_gpu(error)

    def settle(self, ref: ClaimRef, error: PluginError | None) -> None:
        """Take note of a Prepare that is over; ``error`` is None if it succeeded."""
        if error is None:
            self._failed_claims.made(ref)
            for entry in self._journal.of_claim(ref.uid):
                self._monitor.clear_denial(entry.gpu)
            return
        failures = self._failed_claims.failed(ref, error)
        self._note_gpu(error)
        if gpu := denied_gpu(error):
            self._monitor.take_denial(gpu, str(error))
        held = any(e.state in HELD for e in self._journal.of_claim(ref.uid))
        if is_permanent(error, held=held):
            self._statuses.show_failure(ref, str(error), pool=self._pool)
            self._reports.report_claim(ref, NodeReason.PREPARE_FAILED, str(error), warning=True)
        elif failures >= SEVERAL and not held:
            self._statuses.show_failure(
                ref,
                f"{failures} times in a row: {error}",
                pool=self._pool,
                reason=PREPARE_FAILING,
            )

    def _note_gpu(self, error: PluginError) -> None:
        if gpu := failing_gpu(error):
            self._failed_gpus.failed([gpu])
