"""Things that all work on claims has at hand."""

from __future__ import annotations

from dataclasses import dataclass

from dra.kube.timing import Clock
from kubeletplugin.journal.journal import Journal
from kubeletplugin.telemetry.observer import NodeObserver
from kubeletplugin.telemetry.probes import Readiness
from kubeletplugin.telemetry.reports import Reports


@dataclass(frozen=True, slots=True)
class Context:
    """The journal, whether claims are served, where events and deeds are told, and the time."""

    journal: Journal
    readiness: Readiness
    reports: Reports
    observer: NodeObserver
    clock: Clock
