"""Reports on the Node that the journal cannot be written: without it no claim is prepared."""

from __future__ import annotations

import logging

from dra.claims.reasons import NodeReason
from kubeletplugin.journal.journal import Journal
from kubeletplugin.telemetry.reports import Reports

_log = logging.getLogger(__name__)


class DiskReports:
    """Called when something may have changed; reports when writes begin to fail, and to succeed."""

    def __init__(self, journal: Journal, reports: Reports) -> None:
        self._journal = journal
        self._reports = reports
        self._told = ""

    def __call__(self) -> None:
        """Compare with what was told last."""
        failure = self._journal.failure
        before, self._told = self._told, failure
        if failure == before:
            return
        if failure:
            _log.error("%s", failure)
            text = f"{failure}; until then no claim can be prepared"
            self._reports.report_node(NodeReason.UNWRITABLE, text, warning=True)
        else:
            self._reports.report_node(NodeReason.WRITABLE, "the journal can be written again")
