"""Calls of NVML as metrics, of which a slice needs some sixty: counted here, shown when asked for.

A counter and a histogram of the client library take two dozen function calls to count one.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dra.monitoring import PREFIX

_BOUNDS = (0.0001, 0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds of the buckets, in seconds."""


class NvmlCalls(Collector):
    """Counts them by function and code, and how long they took by function. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._codes: dict[tuple[str, str], int] = {}
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def take(self, operation: str, code: str, seconds: float) -> None:
        """Take note of a call; ``code`` is an nvmlReturn_t by name, or HANG."""
        bucket = bisect_left(_BOUNDS, seconds)
        with self._lock:
            self._codes[operation, code] = self._codes.get((operation, code), 0) + 1
            buckets = self._buckets.get(operation)
            if buckets is None:
                buckets = self._buckets[operation] = [0] * (len(_BOUNDS) + 1)
            buckets[bucket] += 1
            self._seconds[operation] = self._seconds.get(operation, 0.0) + seconds

    def collect(self) -> Iterable[Metric]:
        """Collect both series."""
        with self._lock:
            codes, seconds = dict(self._codes), dict(self._seconds)
            buckets = {operation: [*counts] for operation, counts in self._buckets.items()}
        calls = CounterMetricFamily(
            f"{PREFIX}nvml_calls_total",
            "Calls of NVML; code is an nvmlReturn_t without its prefix, or HANG.",
            labels=["operation", "code"],
        )
        for labels, count in codes.items():
            calls.add_metric(labels, count)
        yield calls
        times = HistogramMetricFamily(
            f"{PREFIX}nvml_call_duration_seconds",
            "Time that calls of NVML took, or until they were given up.",
            labels=["operation"],
        )
        bounds = [*map(str, _BOUNDS), "+Inf"]
        for operation, counts in buckets.items():
            up_to = zip(bounds, accumulate(counts), strict=True)
            times.add_metric([operation], list(up_to), sum_value=seconds[operation])
        yield times
