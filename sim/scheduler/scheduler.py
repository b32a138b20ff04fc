"""Scheduling of one pod after the other; one that fits nowhere is tried again after a change."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import click

from dra.claims.claims import claim_names
from dra.common.resources import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, Obj, at
from dra.kube.client import KubeApi
from dra.kube.errors import KubeError
from dra.kube.reflector import Change, Reflector
from dra.pods.nodefit import NodeFacts, find_misfit, read_node
from dra.pods.pods import Amounts, PodNeeds, effective_request, read_needs
from sim.daemon import WorkQueue, configure_logging, run_until_signal
from sim.scheduler.claims import (
    BindingFailedError,
    PodClaims,
    SchedulerWrites,
    UnresolvableError,
    WaitingError,
    are_ready,
    find_claims,
    waits_for,
)

FIRST_BACKOFF = 1.0
LAST_BACKOFF = 10.0
FLUSH_SECONDS = 300.0
"""After this long a rejected pod is tried again although nothing changed."""


_log = logging.getLogger(__name__)

NAME = "default-scheduler"
BINDING_SECONDS = 600.0
LOOK_SECONDS = 5.0
_TERMINAL = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node, and what its pods ask for together."""

    node: Obj
    facts: NodeFacts
    used: Amounts


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
        self._queue = WorkQueue(
            "scheduling", self._look_at, first_retry=FIRST_BACKOFF, last_retry=LAST_BACKOFF
        )
        self._assumed_lock = threading.Lock()
        self._assumed: dict[str, tuple[str, Obj]] = {}
        self._pods = Reflector(api, PODS, on_event=self._pod_changed)
        self._nodes = Reflector(api, NODES, on_event=self._changed)
        self._claims = Reflector(api, RESOURCE_CLAIMS, on_event=self._claim_changed)
        self._classes = Reflector(api, DEVICE_CLASSES, on_event=self._changed)

    def start(self) -> None:
        """Begin."""
        for reflector in self._reflectors():
            reflector.start()
        self._queue.start()

    def stop(self) -> None:
        """Ends after the pod at hand."""
        self._stopping.set()
        self._queue.stop()
        for reflector in self._reflectors():
            reflector.stop()
        self._writes.close()

    def _reflectors(self) -> Sequence[Reflector]:
        return (self._nodes, self._classes, self._claims, self._pods)

    def _look_at(self, uid: str) -> float | None:
        for reflector in self._reflectors():
            reflector.wait_synced(None)
        pod = next((p for p in self._pods.store.list() if p["metadata"]["uid"] == uid), None)
        with self._assumed_lock:
            is_being_bound = uid in self._assumed
        if pod is None or not _wants_node(pod) or is_being_bound or self._schedule(pod):
            return None
        return FLUSH_SECONDS

    def _schedule(self, pod: Obj) -> bool:
        """True if a node was found for the pod; else it says why not, unless a claim is to come."""
        nodes = self._views()
        try:
            claims = find_claims(pod, self._claims.store.get, self._classes.store.get)
        except WaitingError as error:
            _log.debug("pod %s: %s", _name(pod), error)
            return False
        except UnresolvableError as error:
            message = _explain(Counter({str(error): len(nodes)}), total=len(nodes))
            self._writes.report(pod, "Unschedulable", message)
            return False
        fitting, reasons = _filter(pod, claims, nodes, seconds=self._binding_seconds)
        if fitting:
            self._bind(pod, claims, fitting)
            return True
        message = _explain(reasons, total=len(nodes))
        if (claim := claims.to_deallocate()) is not None:
            self._writes.deallocate(claim)
            message += " preemption: deallocation of ResourceClaim completed"
        self._writes.report(pod, "Unschedulable", message)
        return False

    def _bind(self, pod: Obj, claims: PodClaims, fitting: Sequence[NodeView]) -> None:
        needs = read_needs(pod["spec"])
        node = max(fitting, key=lambda view: _free_share(needs, view)).facts.name
        if not any(map(waits_for, claims.claims)):
            self._finish(pod, claims, node)
            return
        # PreBind runs beside the scheduling of others.
        threading.Thread(
            target=self._bind_later, args=(pod, claims, node), name="binding", daemon=True
        ).start()

    def _bind_later(self, pod: Obj, claims: PodClaims, node: str) -> None:
        try:
            self._finish(pod, claims, node)
        except (KubeError, BindingFailedError) as error:
            _log.warning("pod %s: %s", _name(pod), error)
            self._stopping.wait(FIRST_BACKOFF)
            self._queue.add(pod["metadata"]["uid"])

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
        used: dict[str, Counter[str]] = {}
        for name, pod in placed:
            used.setdefault(name, Counter()).update(effective_request(pod["spec"]))
        facts = {obj["metadata"]["name"]: (obj, read_node(obj)) for obj in self._nodes.store.list()}
        return [NodeView(*facts[name], used.get(name, {})) for name in sorted(facts)]

    def _pod_changed(self, change: Change) -> None:
        pod = change.new or change.old
        if pod is None:
            return
        uid = pod["metadata"]["uid"]
        gone = change.new is None or at(pod, "status", "phase") in _TERMINAL
        if gone or pod["spec"].get("nodeName"):
            with self._assumed_lock:
                self._assumed.pop(uid, None)
        wants = change.new is not None and _wants_node(change.new)
        if wants and (change.old is None or _worth_a_try(change.old, pod)):
            self._queue.add(uid)
        if gone:
            self._wake()

    def _changed(self, change: Change) -> None:
        if change.new is not None:
            self._wake()

    def _wake(self, claim: Obj | None = None) -> None:
        """Has the waiting pods tried again: those that use a claim, or all."""
        for pod in self._pods.store.list():
            if _wants_node(pod) and (claim is None or _uses(pod, claim)):
                self._queue.add(pod["metadata"]["uid"])

    def _claim_changed(self, change: Change) -> None:
        """Wakes the claim's pods when its status changed, all pods when a device became free."""
        claim = change.new or change.old
        if claim is None:
            return
        before, after = ((o or {}).get("status", {}) for o in (change.old, change.new))
        if "allocation" in before and "allocation" not in after:
            self._wake()
        elif change.old is None or before != after:
            self._wake(claim)


def _uses(pod: Obj, claim: Obj) -> bool:
    metadata = claim["metadata"]
    is_near = pod["metadata"]["namespace"] == metadata["namespace"]
    return is_near and metadata["name"] in claim_names(pod).values()


def _filter(
    pod: Obj, claims: PodClaims, nodes: Sequence[NodeView], *, seconds: float
) -> tuple[list[NodeView], Counter[str]]:
    """Nodes that fit, and how many were rejected for each reason.

    Claims are asked last, so a node that fails for another reason is not blamed on a claim.
    """
    now, needs = datetime.now(UTC), read_needs(pod["spec"])
    fitting: list[NodeView] = []
    reasons: Counter[str] = Counter()
    for view in nodes:
        misfit = find_misfit(needs, view.facts, view.used)
        if misfit is not None:
            reasons[misfit.message] += 1
        elif reason := claims.reject_node(view.node, now=now, seconds=seconds):
            reasons[reason] += 1
        else:
            fitting.append(view)
    return fitting, reasons


def _free_share(needs: PodNeeds, view: NodeView) -> float:
    """Share of CPU and memory together that stays free with the pod: least allocated first."""
    free = 0.0
    for name in ("cpu", "memory"):
        if whole := view.facts.allocatable.get(name, 0):
            free += 1 - (view.used.get(name, 0) + needs.requests.get(name, 0)) / whole
    return free


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
