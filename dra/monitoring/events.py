"""Events as metrics: a sink in front of another one, which counts what it passes on."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from dra.common.resources import Obj
from dra.kube.events.sink import EventSink
from dra.monitoring import PREFIX


class CountingSink:
    """Counts events by kind, reason and type before they are merged or limited."""

    def __init__(self, sink: EventSink, registry: CollectorRegistry) -> None:
        self._sink = sink
        self._count = Counter(
            f"{PREFIX}events_total",
            "Events that were to be told, before repeated ones are merged.",
            ["kind", "reason", "type"],
            registry=registry,
        )

    def emit(self, regarding: Obj, reason: str, message: str, *, warning: bool = False) -> None:
        """Report about an object."""
        kind = str(regarding.get("kind", ""))
        self._count.labels(kind, reason, "Warning" if warning else "Normal").inc()
        self._sink.emit(regarding, reason, message, warning=warning)
