"""Metrics of the node program's work for Prometheus: calls, waits, actions, latencies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Histogram

from dra.claims.claims import Claim
from dra.kube.timing import seconds_since
from dra.monitoring import PREFIX, WHOLE_GPU
from kubeletplugin.errors import PluginError, is_permanent
from kubeletplugin.telemetry.claim_cache import ClaimCache
from kubeletplugin.telemetry.nvmlcalls import nvml_calls
from kubeletplugin.telemetry.observer import Action, NodeObserver, Operation, Served

_CALL_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40)
_WAIT_SECONDS = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 40)
_LATENCY_SECONDS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600)

SEVERAL, UNKNOWN = "several", "unknown"
"""The label ``profile`` of a claim with different ones, and of a claim that was never seen."""


class PluginMetrics(NodeObserver):
    """Turns what it hears into metrics. ``profile_of`` gives the profile of a device's name."""

    def __init__(
        self,
        registry: CollectorRegistry,
        claims: ClaimCache,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.profile_of: Callable[[str], str] = lambda _: UNKNOWN
        self._claims = claims
        self._now = now
        self._calls = {
            operation: Histogram(
                f"{PREFIX}{operation}_duration_seconds",
                f"Time to answer kubelet's call to {operation} one claim.",
                ["profile", "result"],
                registry=registry,
                buckets=_CALL_SECONDS,
            )
            for operation in Operation
        }
        self._prepared = Histogram(
            f"{PREFIX}claim_prepared_seconds",
            "From the creation of a claim, which has whole seconds, to its slices being ready.",
            registry=registry,
            buckets=_LATENCY_SECONDS,
        )
        self._lock_wait = Histogram(
            f"{PREFIX}gpu_lock_wait_seconds",
            "Time waited for a GPU that was being worked on.",
            registry=registry,
            buckets=_WAIT_SECONDS,
        )
        self._nvml_calls = nvml_calls()
        registry.register(self._nvml_calls)
        self._actions = Counter(
            f"{PREFIX}recovery_actions_total",
            "What the plugin did without being asked to.",
            ["action"],
            registry=registry,
        )
        for action in Action:
            self._actions.labels(action.value)

    def served(self, served: Served) -> None:
        """A call of kubelet was answered."""
        profiles = {e.profile or WHOLE_GPU for e in served.entries}
        facts = self._claims.of(served.ref.uid)
        profile = _one(profiles or {self.profile_of(d) for d in facts.devices})
        self._calls[served.operation].labels(profile, _result(served.error)).observe(served.seconds)
        if served.operation is Operation.PREPARE and served.error is None and not served.repeated:
            latency = seconds_since(facts.created, self._now())
            if latency is not None:
                self._prepared.observe(latency)

    def nvml_call(self, operation: str, code: str, seconds: float) -> None:
        """A function of NVML was called; ``code`` is an nvmlReturn_t by name, or HANG."""
        self._nvml_calls.take((operation, code), seconds)

    def lock_wait(self, seconds: float) -> None:
        """A GPU's lock was waited for, with or without getting it."""
        self._lock_wait.observe(seconds)

    def acted(self, action: Action) -> None:
        """The node did something of its own accord."""
        self._actions.labels(action.value).inc()

    def claim_seen(self, claim: Claim) -> None:
        """The API server showed a claim."""
        self._claims.see(claim)


def _one(profiles: Iterable[str]) -> str:
    found = set(profiles)
    return found.pop() if len(found) == 1 else SEVERAL if found else UNKNOWN


def _result(error: Exception | None) -> str:
    if error is None:
        return "ok"
    if not isinstance(error, PluginError):
        return "internal"
    return "permanent" if is_permanent(error) else "retry"
