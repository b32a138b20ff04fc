"""Calls of NVML as metrics, of which a slice needs some sixty: counted here, shown when asked for.

A counter and a histogram of the client library take two dozen function calls to count one.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dra.monitoring import PREFIX

_BOUNDS = (0.0001, 0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds of the buckets, in seconds."""


@dataclass(slots=True)
class _Tally:
    """Calls of one function: how many by code and by bucket, and the seconds of them all."""

    codes: dict[str, int] = field(default_factory=dict)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(_BOUNDS) + 1))
    seconds: float = 0.0


class NvmlCalls(Collector):
    """Counts them by function and code, and how long they took by function. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tallies: dict[str, _Tally] = {}

    def take(self, operation: str, code: str, seconds: float) -> None:
        """Take note of a call; ``code`` is an nvmlReturn_t by name, or HANG."""
        with self._lock:
            tally = self._tallies.get(operation)
            if tally is None:
                tally = self._tallies[operation] = _Tally()
            tally.codes[code] = tally.codes.get(code, 0) + 1
            tally.buckets[bisect_left(_BOUNDS, seconds)] += 1
            tally.seconds += seconds

    def collect(self) -> Iterable[Metric]:
        """Collect both series."""
        with self._lock:
            tallies = deepcopy(self._tallies)
        calls = CounterMetricFamily(
            f"{PREFIX}nvml_calls_total",
            "Calls of NVML; code is an nvmlReturn_t without its prefix, or HANG.",
            labels=["operation", "code"],
        )
        for operation, tally in tallies.items():
            for code, count in tally.codes.items():
                calls.add_metric([operation, code], count)
        yield calls
        times = HistogramMetricFamily(
            f"{PREFIX}nvml_call_duration_seconds",
            "Time that calls of NVML took, or until they were given up.",
            labels=["operation"],
        )
        bounds = [*map(str, _BOUNDS), "+Inf"]
        for operation, tally in tallies.items():
            up_to = zip(bounds, accumulate(tally.buckets), strict=True)
            times.add_metric([operation], list(up_to), sum_value=tally.seconds)
        yield times
