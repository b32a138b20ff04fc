"""Observer that counts the node's calls, waits, actions and latencies as metrics.

A cache of facts about claims, for metrics and logs, is here too, and the fields of a log line.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Any

from prometheus_client import CollectorRegistry

from dra.claims.claims import Claim, Consumer
from dra.gpu.inventory import ClaimRef
from dra.kube.timing import seconds_since
from dra.monitoring import WHOLE_GPU
from dra.monitoring.metrics import Meters
from kubeletplugin.errors import PluginError, is_permanent
from kubeletplugin.journal.entries import Entry

_CALL_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40)
_WAIT_SECONDS = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 40)
_LATENCY_SECONDS = (0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600)
_NVML_SECONDS = (0.0001, 0.001, 0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_MOST_CLAIMS = 1024
"""Upper bound on claims in the cache: far more than a node has slices."""

SEVERAL, UNKNOWN = "several", "unknown"
"""Values of the label ``profile``: for a claim with several profiles, and with unknown ones."""


class Action(StrEnum):
    """Action that the node takes, or change that it notices, outside of calls of kubelet.

    ``finished``, ``undone``: a half-prepared claim was finished, or undone. ``lost``, ``found``: a
    prepared slice was gone from the hardware, or was there again. ``restored``: slices of a claim
    were made again after a GPU reset or driver reload. ``reclaimed``: a slice was removed that
    could not be removed at once. ``collected``: a claim was released for which kubelet never called
    Unprepare. ``rebuilt``: an entry of a lost journal was found. ``swept``: a CDI spec without a
    claim was removed. ``ahead``: a claim's slices were made before kubelet asked. ``refused``: they
    could not be. ``met``: kubelet asked for slices made early. ``returned``: it did not, and they
    were given back.
    """

    FINISHED = "finished"
    UNDONE = "undone"
    LOST = "lost"
    FOUND = "found"
    RESTORED = "restored"
    RECLAIMED = "reclaimed"
    COLLECTED = "collected"
    REBUILT = "rebuilt"
    SWEPT = "swept"
    AHEAD = "ahead"
    REFUSED = "refused"
    MET = "met"
    RETURNED = "returned"


class Operation(StrEnum):
    """Call of kubelet, as metrics and logs name it."""

    PREPARE = "prepare"
    UNPREPARE = "unprepare"


@dataclass(frozen=True, slots=True)
class Served:
    """A call of kubelet for one claim that was answered.

    ``entries``: the claim's journal entries before the call, or after it if there were none.
    ``repeated``: the claim was prepared before the call. ``error``: None if the call succeeded.
    """

    ref: ClaimRef
    operation: Operation
    seconds: float
    entries: tuple[Entry, ...]
    repeated: bool
    error: Exception | None


@dataclass(frozen=True, slots=True)
class ClaimFacts:
    """Facts about a claim.

    ``created``: time of creation (RFC 3339). ``users``: the pods that have reserved it.
    ``devices``: names of its allocated devices.
    """

    created: str
    users: tuple[Consumer, ...]
    devices: tuple[str, ...]

    @property
    def pods(self) -> tuple[str, ...]:
        """Names of the pods that have reserved it."""
        return tuple(user.name for user in self.users)


_NOTHING = ClaimFacts("", (), ())


class ClaimCache:
    """Facts about claims as last read from the API server, by UID. Thread-safe.

    For metrics, logs and events only, as kubelet's calls name no pods. Facts may be out of date.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._facts: OrderedDict[str, ClaimFacts] = OrderedDict()

    def see(self, claim: Claim) -> None:
        """Take the facts of a claim that was read from the API server."""
        devices = claim.allocation.devices if claim.allocation else ()
        users = tuple(c for c in claim.reserved_for if c.resource == "pods" and not c.api_group)
        facts = ClaimFacts(claim.created, users, tuple(d.device for d in devices))
        with self._lock:
            self._facts[claim.ref.uid] = facts
            self._facts.move_to_end(claim.ref.uid)
            if len(self._facts) > _MOST_CLAIMS:
                self._facts.popitem(last=False)

    def of(self, uid: str) -> ClaimFacts:
        """Known facts about a claim; all empty if it was not seen."""
        with self._lock:
            return self._facts.get(uid, _NOTHING)

    def add_pods(self, record: logging.LogRecord) -> None:
        """Add the field ``pod`` to a log record that has ``claim`` and ``uid``."""
        claim, uid = getattr(record, "claim", ""), getattr(record, "uid", "")
        if claim and uid and not hasattr(record, "pod"):
            namespace = str(claim).partition("/")[0]
            if pods := ",".join(f"{namespace}/{pod}" for pod in self.of(uid).pods):
                record.pod = pods


class NodeObserver:
    """Counts the node's work in metrics. Thread-safe; no method blocks or raises.

    ``profile_of``: returns the profile of a device, given the device's name.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        claims: ClaimCache | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        registry = registry or CollectorRegistry()
        self.profile_of: Callable[[str], str] = lambda _: UNKNOWN
        self._claims = claims or ClaimCache()
        self._now = now
        meters = Meters(registry)
        self._calls = {
            operation: meters.histogram(
                f"{operation}_duration_seconds",
                f"Time to answer kubelet's call to {operation} one claim.",
                _CALL_SECONDS,
                *("profile", "result"),
            )
            for operation in Operation
        }
        self._prepared = meters.histogram(
            "claim_prepared_seconds",
            "From the creation of a claim, which has whole seconds, to its slices being ready.",
            _LATENCY_SECONDS,
        )
        text = "Time waited for a GPU that was being worked on."
        self._lock_wait = meters.histogram("gpu_lock_wait_seconds", text, _WAIT_SECONDS)
        text = "Calls of NVML; code is an nvmlReturn_t without its prefix, or HANG."
        nvml_calls = meters.counter("nvml_calls_total", text, "operation", "code")
        text = "Time that calls of NVML took, or until they were given up."
        name = "nvml_call_duration_seconds"
        nvml_times = meters.histogram(name, text, _NVML_SECONDS, "operation")
        # A Prepare makes dozens of calls, and looking a series up takes as long as counting.
        self._nvml_calls, self._nvml_times = cache(nvml_calls.labels), cache(nvml_times.labels)
        text = "What the plugin did without being asked to."
        self._actions = meters.counter("recovery_actions_total", text, "action")
        for action in Action:
            self._actions.labels(action.value)

    def served(self, served: Served) -> None:
        """Count a call of kubelet that was answered."""
        profiles = {e.profile or WHOLE_GPU for e in served.entries}
        facts = self._claims.of(served.ref.uid)
        profile = _one(profiles or {self.profile_of(d) for d in facts.devices})
        self._calls[served.operation].labels(profile, _result(served.error)).observe(served.seconds)
        if served.operation is Operation.PREPARE and served.error is None and not served.repeated:
            latency = seconds_since(facts.created, self._now())
            if latency is not None:
                self._prepared.observe(latency)

    def nvml_call(self, operation: str, code: str, seconds: float) -> None:
        """Count a call of NVML; ``code``: an nvmlReturn_t without its prefix, or HANG."""
        self._nvml_calls(operation, code).inc()
        self._nvml_times(operation).observe(seconds)

    def lock_wait(self, seconds: float) -> None:
        """Count a wait for a GPU's lock, whether or not the lock was got."""
        self._lock_wait.observe(seconds)

    def acted(self, action: Action) -> None:
        """Count an action of the node itself."""
        self._actions.labels(action.value).inc()


def _one(profiles: Iterable[str]) -> str:
    found = set(profiles)
    return found.pop() if len(found) == 1 else SEVERAL if found else UNKNOWN


def _result(error: Exception | None) -> str:
    if error is None:
        return "ok"
    if not isinstance(error, PluginError):
        return "internal"
    return "permanent" if is_permanent(error) else "retry"


def about(ref: ClaimRef, **more: Any) -> dict[str, Any]:
    """Fields that name a claim, for ``extra`` of a log call, with the names the controller uses.

    ClaimCache adds the pods if they are known.
    """
    return {"claim": str(ref), "uid": ref.uid, **more}


def device(entry: Entry, **more: Any) -> dict[str, Any]:
    """Fields that name a claim and its device, for ``extra`` of a log call."""
    return about(
        entry.claim,
        device=entry.device,
        gpu=entry.device.partition("-mig-")[0],
        gpu_uuid=entry.gpu,
        profile=entry.profile or "gpu",
        placement="whole" if entry.placement is None else str(entry.placement),
        **{k: v for k, v in (("gi", entry.gi_id), ("ci", entry.ci_id)) if v is not None},
        **more,
    )
