"""Parts that all packages of the program use: journal, readiness, events, listeners, retries."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from dra.kube.client import KubeApi
from dra.kube.events import EventRecorder
from dra.kube.loop import Loop
from dra.kube.timing import Backoff, Clock, SystemClock
from dra.monitoring.metrics import CountingSink
from kubeletplugin import times
from kubeletplugin.errors import PluginError
from kubeletplugin.journal.journal import Journal
from kubeletplugin.nvml.errors import NvmlError
from kubeletplugin.options import Options
from kubeletplugin.telemetry.probes import Readiness
from kubeletplugin.telemetry.reports import Reports
from kubeletplugin.telemetry.telemetry import Telemetry

_log = logging.getLogger(__name__)
T = TypeVar("T")


class Listeners:
    """Listeners to changes of this node, called one after another in a thread of their own.

    A caller that reports a change does not wait for them. They are not called at once: they work in
    the same interpreter, and would delay the Prepare that made the change.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._first: list[Callable[[], None]] = []
        self._listeners: list[Callable[[], None]] = []
        self.thread = Loop("changes", self._turn, clock=clock)

    def add(self, *listeners: Callable[[], None]) -> None:
        """Add listeners; to be called before the thread runs."""
        self._listeners.extend(listeners)

    def add_first(self, *first: Callable[[], None]) -> None:
        """Add listeners that find out more changes, and so are called before all others."""
        self._first.extend(first)

    def __call__(self) -> None:
        """Report that something may have changed: all listeners are called soon. Thread-safe."""
        self.thread.notify()

    def tell(self) -> None:
        """Call all listeners now, in the thread of the caller."""
        for listener in (*self._first, *self._listeners):
            listener()

    def _turn(self) -> None:
        if self.thread.gather(times.CHANGES_SECONDS):
            return
        for first in self._first:
            first()
        if not self.thread.gather(0.0):
            for listener in self._listeners:
                listener()


@dataclass(frozen=True, slots=True)
class Common:
    """Common parts of the program. ``changed``: to be called when this node may have changed."""

    options: Options
    api: KubeApi
    telemetry: Telemetry
    changed: Listeners
    events: EventRecorder
    reports: Reports
    readiness: Readiness
    journal: Journal
    clock: Clock = field(default_factory=SystemClock)


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
        Reports(
            CountingSink(events, telemetry.registry),
            options.node_name,
            users=lambda uid: telemetry.claims.of(uid).users,
        ),
        Readiness(on_change=changed),
        Journal(options.roots.state / "journal.json", on_change=changed),
    )


def patiently(attempt: Callable[[], T], *, end: float, longest: float, clock: Clock) -> T:
    """Call ``attempt`` until it succeeds or fails with an error that is not ``passing``.

    Returns the result of the attempt that succeeded.

    Pauses between attempts double up to ``longest`` seconds; no attempt begins after ``end``, a
    time of ``clock``. The caller must hold no lock, so that others can work meanwhile.

    Raises:
        PluginError, NvmlError: the error is not ``passing``, or there is no time left.
    """
    backoff = Backoff(first=times.RETRY_SECONDS, limit=longest, jitter=0.0)
    while True:
        delay = backoff.next_delay()
        try:
            return attempt()
        except (PluginError, NvmlError) as error:
            if not error.passing or clock.monotonic() + delay > end:
                raise
            _log.info("tried again: %s", error)
        clock.sleep(delay)
