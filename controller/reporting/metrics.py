"""Metrics of the controller's work for Prometheus."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from controller.reporting.observer import ControllerObserver
from dra.claims.reasons import Reason
from dra.common.resources import Obj
from dra.kube.timing import seconds_since
from dra.monitoring import PREFIX, WHOLE_GPU
from dra.pods.pods import Pod

_DECISION_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_LATENCY_SECONDS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600)


class ControllerMetrics(ControllerObserver):
    """Turns what it hears into metrics. ``leads`` says whether this controller does now."""

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

    def waiting(self, pod: Pod, reason: Reason, claims: Iterable[Obj]) -> None:
        """These are now the claims of the pod that wait."""
        self._waiting.put(pod.uid, reason, claims)

    def no_longer_waits(self, *, pod_uid: str = "", claim_uid: str = "") -> None:
        """Nothing of a pod, or not a claim, waits any more."""
        self._waiting.forget(pod_uid=pod_uid, claim_uid=claim_uid)

    def unreadable(self, mignodes: int) -> None:
        """Number of MigNodes that cannot be read, and whose nodes are left out."""
        self._unreadable.set(mignodes)

    def begins(self) -> None:
        """Leadership begins, or has ended: nothing is known of what was before."""
        self._waiting.clear()
        self._unreadable.set(0)


class _Waiting(Collector):
    """The claims that wait, by pod. Thread-safe; counted when they are asked for."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._pods: dict[str, dict[str, tuple[Reason, str]]] = {}
        self._pods_of: dict[str, set[str]] = {}

    def put(self, pod_uid: str, reason: Reason, claims: Iterable[Obj]) -> None:
        found = {
            c["metadata"]["uid"]: (reason, c["metadata"].get("creationTimestamp", ""))
            for c in claims
        }
        with self._lock:
            self._drop(pod_uid)
            self._pods[pod_uid] = found
            for claim in found:
                self._pods_of.setdefault(claim, set()).add(pod_uid)

    def forget(self, *, pod_uid: str = "", claim_uid: str = "") -> None:
        with self._lock:
            self._drop(pod_uid)
            for pod in self._pods_of.pop(claim_uid, ()):
                self._pods[pod].pop(claim_uid, None)

    def _drop(self, pod_uid: str) -> None:
        for claim in self._pods.pop(pod_uid, ()):
            pods = self._pods_of[claim]
            pods.discard(pod_uid)
            if not pods:
                del self._pods_of[claim]

    def clear(self) -> None:
        with self._lock:
            self._pods = {}
            self._pods_of = {}

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Number that waits for each reason, and the age of the oldest."""
        with self._lock:
            claims = {uid: c for found in self._pods.values() for uid, c in found.items()}
        now = self._now()
        ages: dict[Reason, list[float]] = defaultdict(list)
        for reason, created in claims.values():
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
