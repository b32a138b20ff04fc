"""Parts that every room of the program uses: journal, readiness, events, and what may change."""

from __future__ import annotations

from dataclasses import dataclass

from dra.kube.client import KubeApi
from dra.kube.events import EventRecorder
from dra.monitoring.metrics import CountingSink
from kubeletplugin.journal.journal import Journal
from kubeletplugin.options import Options
from kubeletplugin.telemetry.listeners import Listeners
from kubeletplugin.telemetry.readiness import Readiness
from kubeletplugin.telemetry.reports import Reports
from kubeletplugin.telemetry.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Common:
    """``changed`` is called whenever something of this node may have changed."""

    options: Options
    api: KubeApi
    telemetry: Telemetry
    changed: Listeners
    events: EventRecorder
    reports: Reports
    readiness: Readiness
    journal: Journal


def build_common(options: Options, api: KubeApi, telemetry: Telemetry) -> Common:
    """Build the common parts.

    Raises:
        HostError: the journal cannot be read.
    """
    changed = Listeners()
    events = EventRecorder(api, component=options.driver_name, host=options.node_name)
    return Common(
        options,
        api,
        telemetry,
        changed,
        events,
        Reports(CountingSink(events, telemetry.registry), options.node_name),
        Readiness(on_change=changed),
        Journal(options.roots.state / "journal.json", on_change=changed),
    )
