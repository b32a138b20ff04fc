"""Metrics of a daemon: its registry, its requests to the API server and its events."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dra.common.resources import Obj
from dra.kube.events import EventSink
from dra.kube.http import Exchange
from dra.monitoring import PREFIX


def daemon_registry() -> CollectorRegistry:
    """A registry that has the figures of this process; one for each daemon.

    In this process no counter or histogram has a ``_created`` series beside it: nobody reads them,
    and the library knows that setting for all registries only.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


@dataclass(frozen=True, slots=True)
class Series:
    """Name, help and labels of a metric."""

    name: str
    text: str
    labels: tuple[str, ...]


@dataclass(slots=True)
class _Tally:
    """Calls of one kind: how many by labels and by bucket, and the seconds of them all."""

    buckets: list[int]
    counts: dict[tuple[str, ...], int] = field(default_factory=dict)
    seconds: float = 0.0


class Tallies(Collector):
    """Counter of ``calls``, and histogram of their ``times`` by the first label. Thread-safe.

    ``bounds`` are upper bounds of the histogram's buckets, in seconds.
    """

    def __init__(self, calls: Series, times: Series, *, bounds: Sequence[float]) -> None:
        self._calls = calls
        self._times = times
        self._bounds = bounds
        self._lock = threading.Lock()
        self._tallies: dict[str, _Tally] = {}

    def take(self, labels: tuple[str, ...], seconds: float) -> None:
        """Take note of a call, by the values of the counter's labels."""
        with self._lock:
            tally = self._tallies.get(labels[0])
            if tally is None:
                tally = self._tallies[labels[0]] = _Tally([0] * (len(self._bounds) + 1))
            tally.counts[labels] = tally.counts.get(labels, 0) + 1
            tally.buckets[bisect_left(self._bounds, seconds)] += 1
            tally.seconds += seconds

    def collect(self) -> Iterable[Metric]:
        """Collect both series."""
        with self._lock:
            tallies = deepcopy(self._tallies)
        calls = CounterMetricFamily(self._calls.name, self._calls.text, labels=self._calls.labels)
        for tally in tallies.values():
            for labels, count in tally.counts.items():
                calls.add_metric(labels, count)
        yield calls
        times = HistogramMetricFamily(self._times.name, self._times.text, labels=self._times.labels)
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for kind, tally in tallies.items():
            up_to = zip(bounds, accumulate(tally.buckets), strict=True)
            times.add_metric([kind], list(up_to), sum_value=tally.seconds)
        yield times


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_NAMESPACED = 2


class ApiRequests:
    """Counts requests that HttpClient reports, by verb, kind of object and status."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._tallies = Tallies(
            Series(
                f"{PREFIX}api_requests_total",
                "Requests to the API server; code is the HTTP status, or none without an answer.",
                ("method", "resource", "code"),
            ),
            Series(
                f"{PREFIX}api_request_duration_seconds",
                "Time to the answer of the API server; of a watch, to its beginning.",
                ("method",),
            ),
            bounds=_SECONDS,
        )
        registry.register(self._tallies)

    def __call__(self, exchange: Exchange) -> None:
        """One request has ended."""
        code = str(exchange.status) if exchange.status else "none"
        labels = exchange.method, resource_of(exchange.path), code
        self._tallies.take(labels, exchange.seconds)


def resource_of(path: str) -> str:
    """``resourceclaims/status`` from a path of Resource.path."""
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
        """Report about an object."""
        kind = str(regarding.get("kind", ""))
        self._count.labels(kind, reason, "Warning" if warning else "Normal").inc()
        self._sink.emit(regarding, reason, message, warning=warning)
