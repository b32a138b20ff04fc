"""Scheduling of one pod after the other, and the queue of those that wait.

As kube-scheduler's queue since 1.33: a pod that was rejected and is worth another try waits for its
back-off only while other pods are ready; after an error it waits in any case.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction

import click

from dra.claims.claims import claim_names
from dra.common.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, Obj, at
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError
from dra.kube.reflector import Change, Reflector
from dra.kube.timing import Backoff
from sim.daemon import configure_logging, run_until_signal
from sim.scheduler.claims import (
    PLUGIN,
    BindingFailedError,
    PodClaims,
    SchedulerWrites,
    UnresolvableError,
    WaitingError,
    are_ready,
    find_claims,
    waits_for,
)
from sim.scheduler.nodefit import NodeView, least_allocated, rejection, requests

FIRST_BACKOFF = 1.0
LAST_BACKOFF = 10.0
FLUSH_SECONDS = 300.0
"""After this long a rejected pod is tried again although nothing changed."""


def _backoff() -> Backoff:
    return Backoff(first=FIRST_BACKOFF, limit=LAST_BACKOFF, jitter=0)


@dataclass(slots=True)
class _Entry:
    uid: str
    backoff: Backoff = field(default_factory=_backoff)
    ready: bool = True
    failed: bool = False
    rejected_by: frozenset[str] = frozenset()
    not_before: float = 0.0
    flush_at: float = 0.0


class SchedulingQueue:
    """Pods by UID. Thread-safe; one thread takes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._entries: dict[str, _Entry] = {}
        self._missed: set[str] = set()
        self._aside: set[str] = set()
        self._taken = ""
        self._closed = False

    def add(self, uid: str) -> None:
        """A pod that is to be scheduled; a known one is tried again when its back-off allows."""
        with self._changed:
            entry = self._entries.setdefault(uid, _Entry(uid))
            entry.ready = True
            if uid == self._taken:
                self._missed.add(uid)
            self._changed.notify()

    def remove(self, uid: str) -> None:
        """A pod that needs no node any more."""
        with self._changed:
            self._entries.pop(uid, None)
            self._aside.discard(uid)
            if uid == self._taken:
                self._taken = ""

    def set_aside(self, uid: str) -> None:
        """The taken pod is being bound elsewhere, until it is removed or has failed."""
        with self._changed:
            self._aside.add(uid)
            self._taken = ""

    def wake(self, plugins: Iterable[str], uids: Iterable[str] | None = None) -> None:
        """Something changed for pods that one of ``plugins`` rejected, or for some of them only."""
        wanted = frozenset(plugins)
        with self._changed:
            for uid in self._entries if uids is None else uids:
                entry = self._entries.get(uid)
                if entry is None:
                    continue
                if uid == self._taken:
                    self._missed.add(uid)
                elif entry.rejected_by & wanted:
                    entry.ready = True
            self._changed.notify()

    def reject(self, uid: str, plugins: Iterable[str]) -> None:
        """The taken pod fits nowhere, because of ``plugins``."""
        self._put_back(uid, rejected_by=frozenset(plugins), failed=False)

    def fail(self, uid: str) -> None:
        """Something went wrong with the taken pod, or one set aside: again after its back-off."""
        self._put_back(uid, rejected_by=frozenset(), failed=True)

    def take(self, timeout: float | None = None) -> str | None:
        """The next pod; None after ``timeout`` seconds or when closed."""
        until = None if timeout is None else self._clock() + timeout
        with self._changed:
            while not self._closed:
                now = self._clock()
                if (entry := self._next(now)) is not None:
                    self._taken = entry.uid
                    self._missed.discard(entry.uid)
                    return entry.uid
                if until is not None and now >= until:
                    return None
                self._changed.wait(self._pause(now, until))
            return None

    def close(self) -> None:
        """Wakes the taker for the last time."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _put_back(self, uid: str, *, rejected_by: frozenset[str], failed: bool) -> None:
        with self._changed:
            entry = self._entries.get(uid)
            self._aside.discard(uid)
            if uid == self._taken:
                self._taken = ""
            if entry is None:
                return
            now = self._clock()
            entry.failed = failed
            entry.rejected_by = rejected_by
            entry.not_before = now + entry.backoff.next_delay()
            entry.flush_at = now + FLUSH_SECONDS
            # What happened while the pod was looked at may have made it fit.
            entry.ready = failed or uid in self._missed
            self._changed.notify()

    def _next(self, now: float) -> _Entry | None:
        waiting = [e for e in self._here() if e.ready or e.flush_at <= now]
        for entry in waiting:
            if entry.not_before <= now:
                return entry
        return next((entry for entry in waiting if not entry.failed), None)

    def _here(self) -> list[_Entry]:
        return [e for e in self._entries.values() if e.uid not in self._aside]

    def _pause(self, now: float, until: float | None) -> float | None:
        times = [e.not_before if e.ready else e.flush_at for e in self._here()]
        times += [until] if until is not None else []
        return max(0.0, min(times) - now) if times else None


_log = logging.getLogger(__name__)

NAME = "default-scheduler"
BINDING_SECONDS = 600.0
LOOK_SECONDS = 5.0
_TERMINAL = frozenset({"Succeeded", "Failed"})
_PRE_ENQUEUE = "PreEnqueue"
_NODE_PLUGINS = ("NodeUnschedulable", "TaintToleration", "NodeAffinity", "NodeResourcesFit", PLUGIN)


class Scheduler:
    """Schedules the pods of ``schedulerName: default-scheduler``."""

    def __init__(
        self,
        api: KubeApi,
        *,
        binding_seconds: float = BINDING_SECONDS,
        look_seconds: float = LOOK_SECONDS,
    ) -> None:
        """``binding_seconds`` are for binding conditions, looked at every ``look_seconds``."""
        self._writes = SchedulerWrites(api)
        self._binding_seconds = binding_seconds
        self._look_seconds = look_seconds
        self._stopping = threading.Event()
        self._queue = SchedulingQueue()
        self._assumed_lock = threading.Lock()
        self._assumed: dict[str, tuple[str, Obj]] = {}
        self._pods = Reflector(api, PODS, on_event=self._pod_changed)
        self._nodes = Reflector(api, NODES, on_event=self._node_changed)
        self._claims = Reflector(api, RESOURCE_CLAIMS, on_event=self._claim_changed)
        self._classes = Reflector(api, DEVICE_CLASSES, on_event=self._class_changed)
        self._thread = threading.Thread(target=self._run, name="scheduling", daemon=True)

    def start(self) -> None:
        """Begin."""
        for reflector in self._reflectors():
            reflector.start()
        self._thread.start()

    def stop(self) -> None:
        """Ends after the pod at hand."""
        self._stopping.set()
        self._queue.close()
        self._thread.join(5.0)
        for reflector in self._reflectors():
            reflector.stop()
        self._writes.close()

    def _reflectors(self) -> Sequence[Reflector]:
        return (self._nodes, self._classes, self._claims, self._pods)

    def _run(self) -> None:
        for reflector in self._reflectors():
            reflector.wait_synced(None)
        while (uid := self._queue.take()) is not None:
            pod = next((p for p in self._pods.store.list() if p["metadata"]["uid"] == uid), None)
            if pod is None or not _wants_node(pod):
                self._queue.remove(uid)
                continue
            try:
                self._schedule(pod)
            except KubeError as error:
                _log.warning("pod %s: %s", _name(pod), error)
                self._queue.fail(uid)
            except Exception:  # noqa: BLE001 - the loop must live on
                _log.exception("pod %s", _name(pod))
                self._queue.fail(uid)

    def _schedule(self, pod: Obj) -> None:
        uid = pod["metadata"]["uid"]
        nodes = self._views()
        try:
            claims = find_claims(pod, self._claims.store.get, self._classes.store.get)
        except WaitingError as error:
            _log.debug("pod %s: %s", _name(pod), error)
            self._queue.reject(uid, [_PRE_ENQUEUE])
            return
        except UnresolvableError as error:
            message = _explain(Counter({str(error): len(nodes)}), total=len(nodes))
            self._writes.report(pod, "Unschedulable", message)
            self._queue.reject(uid, [PLUGIN])
            return
        fitting, reasons, plugins = _filter(pod, claims, nodes, seconds=self._binding_seconds)
        if fitting:
            self._bind(pod, claims, fitting)
            return
        message = _explain(reasons, total=len(nodes))
        if (claim := claims.to_deallocate()) is not None:
            self._writes.deallocate(claim)
            message += " preemption: deallocation of ResourceClaim completed"
        self._writes.report(pod, "Unschedulable", message)
        self._queue.reject(uid, plugins)

    def _bind(self, pod: Obj, claims: PodClaims, fitting: Sequence[NodeView]) -> None:
        best = max(fitting, key=lambda view: least_allocated(pod, view))
        if not any(map(waits_for, claims.claims)):
            self._finish(pod, claims, best.name)
            return
        # PreBind runs beside the scheduling of others.
        self._queue.set_aside(pod["metadata"]["uid"])
        threading.Thread(
            target=self._bind_later, args=(pod, claims, best.name), name="binding", daemon=True
        ).start()

    def _bind_later(self, pod: Obj, claims: PodClaims, node: str) -> None:
        try:
            self._finish(pod, claims, node)
        except (KubeError, BindingFailedError) as error:
            _log.warning("pod %s: %s", _name(pod), error)
            self._queue.fail(pod["metadata"]["uid"])

    def _finish(self, pod: Obj, claims: PodClaims, node: str) -> None:
        """PreBind and Bind; undone if something goes wrong.

        Raises:
            KubeError: a write failed.
            BindingFailedError: a binding condition says so, or did not come in time.
        """
        uid = pod["metadata"]["uid"]
        with self._assumed_lock:
            self._assumed[uid] = (node, pod)
        try:
            for claim in claims.claims:
                self._writes.reserve(pod, claim)
            self._await(pod, claims, node)
            self._writes.bind(pod, node)
        except (KubeError, BindingFailedError) as error:
            with self._assumed_lock:
                self._assumed.pop(uid, None)
            self._writes.report(pod, "SchedulerError", f"running PreBind or Bind: {error}")
            if isinstance(error, BindingFailedError):
                for claim in claims.claims:
                    self._writes.unreserve(pod, claim)
            raise
        _log.info("pod %s bound to %s", _name(pod), node)
        self._queue.remove(uid)

    def _await(self, pod: Obj, claims: PodClaims, node: str) -> None:
        """Wait for binding conditions: a look at once, then one every few seconds."""
        if not any(map(waits_for, claims.claims)):
            return
        text = f"waiting for binding conditions for device on node {node}"
        self._writes.tell(pod, "BindingConditionsPending", text)
        while True:
            found = [
                self._claims.store.get(c["metadata"]["name"], c["metadata"]["namespace"]) or c
                for c in claims.claims
            ]
            if are_ready(found, now=datetime.now(UTC), seconds=self._binding_seconds):
                return
            if self._stopping.wait(self._look_seconds):
                raise BindingFailedError("the scheduler ends")

    def _views(self) -> list[NodeView]:
        """Every node with what its pods, seen or just bound, ask for; in the order of names."""
        placed = [
            (p["spec"]["nodeName"], p)
            for p in self._pods.store.list()
            if p["spec"].get("nodeName") and at(p, "status", "phase") not in _TERMINAL
        ]
        with self._assumed_lock:
            placed += self._assumed.values()
        requested: dict[str, dict[str, Fraction]] = {}
        for node, pod in placed:
            total = requested.setdefault(node, {})
            for name, amount in requests(pod).items():
                total[name] = total.get(name, Fraction()) + amount
        nodes = sorted(self._nodes.store.list(), key=lambda n: str(n["metadata"]["name"]))
        return [NodeView(n, requested.get(n["metadata"]["name"], {})) for n in nodes]

    def _pod_changed(self, change: Change) -> None:
        pod = change.new or change.old
        if pod is None:
            return
        uid = pod["metadata"]["uid"]
        gone = change.new is None or at(pod, "status", "phase") in _TERMINAL
        if gone or pod["spec"].get("nodeName"):
            with self._assumed_lock:
                self._assumed.pop(uid, None)
        if change.new is None or not _wants_node(change.new):
            self._queue.remove(uid)
        elif change.old is None or _worth_a_try(change.old, change.new):
            self._queue.add(uid)
        if gone:
            self._queue.wake(["NodeResourcesFit"])

    def _node_changed(self, change: Change) -> None:
        if change.new is not None:
            self._queue.wake(_NODE_PLUGINS)

    def _class_changed(self, change: Change) -> None:
        if change.new is not None:
            self._queue.wake([PLUGIN])

    def _claim_changed(self, change: Change) -> None:
        """Wakes the claim's pods when its status changed, all pods when a device became free."""
        claim = change.new or change.old
        if claim is None:
            return
        before, after = ((o or {}).get("status", {}) for o in (change.old, change.new))
        if "allocation" in before and "allocation" not in after:
            self._queue.wake([PLUGIN])
        if change.old is not None and before == after:
            return
        metadata = claim["metadata"]
        users = [
            pod["metadata"]["uid"]
            for pod in self._pods.store.list()
            if pod["metadata"]["namespace"] == metadata["namespace"]
            and metadata["name"] in claim_names(pod).values()
        ]
        self._queue.wake([PLUGIN, _PRE_ENQUEUE], users)


def _filter(
    pod: Obj, claims: PodClaims, nodes: Sequence[NodeView], *, seconds: float
) -> tuple[list[NodeView], Counter[str], set[str]]:
    """Nodes that fit; besides, how many were rejected for each reason, and by which plugins.

    Claims are asked last, so a node that fails for another reason is not blamed on a claim.
    """
    now = datetime.now(UTC)
    fitting: list[NodeView] = []
    reasons: Counter[str] = Counter()
    plugins: set[str] = set()
    for view in nodes:
        plugin, reason = rejection(pod, view)
        if not reason:
            plugin, reason = PLUGIN, claims.reject_node(view.node, now=now, seconds=seconds)
        if reason:
            plugins.add(plugin)
            reasons.update(reason.split(", "))
        else:
            fitting.append(view)
    return fitting, reasons, plugins or {"NodeUnschedulable"}


def _explain(reasons: Counter[str], *, total: int) -> str:
    if not total:
        return "no nodes available to schedule pods"
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    return f"0/{total} nodes are available: {listed}."


def _wants_node(pod: Obj) -> bool:
    spec = pod["spec"]
    return (
        not spec.get("nodeName")
        and "deletionTimestamp" not in pod["metadata"]
        and at(pod, "status", "phase") not in _TERMINAL
        and spec.get("schedulerName", NAME) == NAME
        and not spec.get("schedulingGates")
    )


def _worth_a_try(old: Obj, new: Obj) -> bool:
    """True if a waiting pod changed in a way that may make it fit; its conditions do not."""
    fields = ("labels", "annotations", "deletionTimestamp")
    return (
        old["spec"] != new["spec"]
        or any(old["metadata"].get(f) != new["metadata"].get(f) for f in fields)
        or claim_names(old) != claim_names(new)
    )


def _name(pod: Obj) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


@click.command()
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False))
@click.option("--log-level", default="info", show_default=True)
def main(kubeconfig: str | None, log_level: str) -> None:
    """Stand in for kube-scheduler; it allocates no devices itself."""
    configure_logging(log_level)
    run_until_signal(Scheduler(KubeApi.connect(kubeconfig, user_agent="scheduler-stand-in")))
