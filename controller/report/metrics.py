"""Metrics of the controller's work for Prometheus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dra.claims.reasons import Reason
from dra.common.resources import Obj
from dra.kube.timing import seconds_since
from dra.monitoring import PREFIX, WHOLE_GPU

_DECISION_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_LATENCY_SECONDS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600)


WaitingClaims = Callable[[], Iterable[tuple[str, Reason, str]]]
"""UID, reason and time of creation of each claim that waits, as often as pods wait with it."""


class ControllerMetrics:
    """Turns what it hears into metrics. ``leads`` says whether this controller does now.

    Called by the controller's one thread, in passing: no method blocks or raises. Claims are
    objects as JSON.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        leads: Callable[[], bool],
        now: Callable[[], datetime],
    ) -> None:
        self._now = now
        self._decisions = Histogram(
            f"{PREFIX}decision_duration_seconds",
            "Time to decide where the claims of one pod go; outcome is placed or none.",
            ["outcome"],
            registry=registry,
            buckets=_DECISION_SECONDS,
        )
        self._latency = Histogram(
            f"{PREFIX}claim_allocated_seconds",
            "From the creation of a claim, which has whole seconds, to its allocation.",
            registry=registry,
            buckets=_LATENCY_SECONDS,
        )
        self._devices = Counter(
            f"{PREFIX}allocated_devices_total",
            "Devices that were allocated.",
            ["profile"],
            registry=registry,
        )
        leader = Gauge(
            f"{PREFIX}leader", "1 while this controller allocates, 0 otherwise.", registry=registry
        )
        leader.set_function(lambda: float(leads()))
        self._unreadable = Gauge(
            f"{PREFIX}unreadable_mignodes",
            "Nodes on which nothing is allocated, as their MigNodes cannot be read.",
            registry=registry,
        )
        self._waiting = _Waiting(now)
        registry.register(self._waiting)

    def decided(self, seconds: float, *, placed: bool) -> None:
        """A pod's claims were looked at as a problem of placement; ``placed``: they fit."""
        self._decisions.labels("placed" if placed else "none").observe(seconds)

    def allocated(self, claim: Obj, profiles: Iterable[str]) -> None:
        """A claim was allocated: its devices' profiles, "" for a whole GPU."""
        seconds = seconds_since(claim["metadata"].get("creationTimestamp", ""), self._now())
        if seconds is not None:
            self._latency.observe(seconds)
        for profile in profiles:
            self._devices.labels(profile or WHOLE_GPU).inc()

    def unreadable(self, mignodes: int) -> None:
        self._unreadable.set(mignodes)

    def begins(self, waits: WaitingClaims = tuple) -> None:
        """Leadership begins, and ``waits`` gives the claims that wait; or it has ended.

        ``waits`` is called by any thread.
        """
        self._waiting.waits = waits
        self._unreadable.set(0)


class _Waiting(Collector):
    """The claims that wait, counted when they are asked for."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self.waits: WaitingClaims = tuple

    def collect(self) -> Iterable[GaugeMetricFamily]:
        now = self._now()
        ages: dict[Reason, list[float]] = defaultdict(list)
        for reason, created in {uid: (reason, at) for uid, reason, at in self.waits()}.values():
            ages[reason].append(seconds_since(created, now) or 0.0)
        count = GaugeMetricFamily(
            f"{PREFIX}waiting_claims", "Claims that wait for an allocation.", labels=["reason"]
        )
        oldest = GaugeMetricFamily(
            f"{PREFIX}waiting_claim_oldest_seconds",
            "Age of the oldest claim that waits.",
            labels=["reason"],
        )
        for reason, found in sorted(ages.items()):
            count.add_metric([reason.value], len(found))
            oldest.add_metric([reason.value], max(found))
        return [count, oldest]
