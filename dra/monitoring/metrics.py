"""Metrics of a daemon: its registry, its requests to the API server and its events."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

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


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_NAMESPACED = 2


class ApiRequests:
    """Counts requests that HttpClient reports, by verb, kind of object and status."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            f"{PREFIX}api_requests_total",
            "Requests to the API server; code is the HTTP status, or none without an answer.",
            ["method", "resource", "code"],
            registry=registry,
        )
        self._times = Histogram(
            f"{PREFIX}api_request_duration_seconds",
            "Time to the answer of the API server; of a watch, to its beginning.",
            ["method"],
            buckets=_SECONDS,
            registry=registry,
        )

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
        self._count = Counter(
            f"{PREFIX}events_total",
            "Events that were to be told, before repeated ones are merged.",
            ["kind", "reason", "type"],
            registry=registry,
        )

    def emit(self, regarding: Obj, reason: str, message: str, *, warning: bool = False) -> None:
        """Pass an event on, and count it by kind, reason and type."""
        kind = str(regarding.get("kind", ""))
        self._count.labels(kind, reason, "Warning" if warning else "Normal").inc()
        self._sink.emit(regarding, reason, message, warning=warning)
