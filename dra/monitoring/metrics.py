"""Metrics of a daemon: its registry, its requests to the API server and its events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily

from dra.common.resources import Obj
from dra.kube.events import EventSink
from dra.kube.http import Exchange
from dra.monitoring import PREFIX


def daemon_registry() -> CollectorRegistry:
    """A registry that has the figures of this process; one for each daemon.

    It also turns ``_created`` series off, which nobody reads. The library can do that only for all
    registries of a process.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


class Meters:
    """Makes metrics whose names begin with ``PREFIX``, in one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """A number that only grows; its name ends with ``_total``."""
        return Counter(f"{PREFIX}{name}", text, labels, registry=self._registry)

    def gauge(self, name: str, text: str) -> Gauge:
        """A number that is set."""
        return Gauge(f"{PREFIX}{name}", text, registry=self._registry)

    def histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        """Durations by ``buckets`` in seconds; its name ends with ``_seconds``."""
        return Histogram(f"{PREFIX}{name}", text, labels, buckets=buckets, registry=self._registry)


Samples = Iterable[tuple[Sequence[str], float]]
"""Values of the labels, and the number, of each series."""


def family(name: str, text: str, labels: Sequence[str], samples: Samples = ()) -> GaugeMetricFamily:
    """Numbers that are worked out when somebody reads them."""
    made = GaugeMetricFamily(f"{PREFIX}{name}", text, labels=labels)
    for values, value in samples:
        made.add_metric(values, value)
    return made


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_NAMESPACED = 2


class ApiRequests:
    """Counts requests that HttpClient reports, by verb, kind of object and status."""

    def __init__(self, registry: CollectorRegistry) -> None:
        meters = Meters(registry)
        self._requests = meters.counter(
            "api_requests_total",
            "Requests to the API server; code is the HTTP status, or none without an answer.",
            *("method", "resource", "code"),
        )
        text = "Time to the answer of the API server; of a watch, to its beginning."
        name = "api_request_duration_seconds"
        self._times = meters.histogram(name, text, _SECONDS, "method")

    def __call__(self, exchange: Exchange) -> None:
        """Count a request that has ended."""
        code = str(exchange.status) if exchange.status else "none"
        self._requests.labels(exchange.method, resource_of(exchange.path), code).inc()
        self._times.labels(exchange.method).observe(exchange.seconds)


def resource_of(path: str) -> str:
    """Resource and subresource of a path: ``resourceclaims/status``; ``other`` without any."""
    parts = path.strip("/").split("/")
    rest = parts[3:] if parts[0] == "apis" else parts[2:]
    if rest[:1] == ["namespaces"] and len(rest) > _NAMESPACED:
        rest = rest[_NAMESPACED:]
    kind, subresource = rest[:1], rest[2:3]
    return "/".join([*kind, *subresource]) or "other"


class CountingSink:
    """Counts events by kind, reason and type before they are merged or limited."""

    def __init__(self, sink: EventSink, registry: CollectorRegistry) -> None:
        self._sink = sink
        text = "Events that were to be told, before repeated ones are merged."
        self._count = Meters(registry).counter("events_total", text, "kind", "reason", "type")

    def emit(self, regarding: Obj, reason: str, message: str, *, warning: bool = False) -> None:
        """Pass an event on, and count it by kind, reason and type."""
        kind = str(regarding.get("kind", ""))
        self._count.labels(kind, reason, "Warning" if warning else "Normal").inc()
        self._sink.emit(regarding, reason, message, warning=warning)
