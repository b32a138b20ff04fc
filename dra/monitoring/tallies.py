"""Calls as metrics: counted here, shown when somebody asks.

A counter and a histogram of the client library take two dozen function calls to count one, and a
slice needs some fifty calls of NVML and of the API server.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


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
