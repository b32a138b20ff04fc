"""Starts of real pods, with a claim for a slice or without: when each has come how far."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from dra.common.resources import MIG_NODES, PODS, RESOURCE_CLAIMS, Obj, at
from dra.kube.client import KubeApi
from dra.kube.reflector import Change, Reflector
from hack.bench.node.node import NODE
from hack.cluster.nodes import pod
from hack.cluster.waiting import wait_for

TEMPLATE = "bench"
"""Name of the template of the pods' claims."""
STEPS = ("claim made", "claim named", "claim allocated", "refused", "bound", "running")
"""``named``: by the pod's status; ``refused``: by kube-scheduler, which looked too early."""
_CREATORS = 8
_SECONDS = 180.0
_SLEEP = ("sleep", "1000000000")


class PodStarts:
    """Pods, and the times at which they have come to each of STEPS; watch them first.

    ``has_pods`` tells whether their node still has anything of a pod. Kubelet ends pods after they
    are gone from the API server, which the next ones would be measured beside.
    """

    def __init__(self, api: KubeApi, *, has_pods: Callable[[], bool]) -> None:
        self._api = api
        self._has_pods = has_pods
        self._made = 0
        self._reached: dict[str, dict[str, float]] = {step: {} for step in STEPS}
        self._gone: set[str] = set()
        self._changed = threading.Condition()
        self._mirrors = [
            Reflector(api, PODS, namespace="default", on_event=self._take_pod),
            Reflector(api, RESOURCE_CLAIMS, namespace="default", on_event=self._take_claim),
        ]
        self.steps = self._no_steps()
        """Milliseconds from their creation for all pods that ran alone: with claims, and without.
        """

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch them."""
        try:
            for mirror in self._mirrors:
                mirror.start()
                mirror.wait_synced(_SECONDS)
            yield
        finally:
            for mirror in self._mirrors:
                mirror.stop()

    def run(self, count: int, *, claims: bool) -> float:
        """Milliseconds until the last of pods runs that are made at once; they are gone then."""
        bodies = [self._body(claims=claims) for _ in range(count)]
        names = [body["metadata"]["name"] for body in bodies]
        began = time.monotonic()
        with ThreadPoolExecutor(min(count, _CREATORS)) as creators:
            list(creators.map(lambda body: self._api.create(PODS, body), bodies))
        running = self._reached["running"]
        self._wait_for(lambda: running.keys() >= set(names))
        taken = 1e3 * (max(running[name] for name in names) - began)
        if count == 1:
            for step, reached in self._reached.items():
                took = [1e3 * (reached[n] - began) for n in names if n in reached]
                self.steps[claims][step] += took
        self._delete(names)
        return taken

    def begin(self) -> None:
        """Forget the steps of pods so far."""
        self.steps = self._no_steps()

    @staticmethod
    def _no_steps() -> dict[bool, dict[str, list[float]]]:
        return {claims: {step: [] for step in STEPS} for claims in (True, False)}

    def _body(self, *, claims: bool) -> Obj:
        self._made += 1
        named = {"gpu": {"resourceClaimTemplateName": TEMPLATE}} if claims else None
        return pod(f"bench-{self._made}", {"c": _SLEEP}, claims=named)

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:
            self._api.delete(PODS, name, namespace="default", grace_seconds=0)
        self._wait_for(lambda: self._gone >= set(names))
        wait_for("an empty MigNode", self._is_empty, timeout=_SECONDS)
        wait_for("a node without pods", lambda: not self._has_pods(), timeout=_SECONDS)

    def _is_empty(self) -> bool:
        gpus = self._api.get(MIG_NODES, NODE)["status"].get("gpus", ())
        return not any(gpu.get("instances") for gpu in gpus)

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, _SECONDS):
                raise TimeoutError("pods neither run nor end")

    def _take_pod(self, change: Change) -> None:
        name = str(at(change.new or change.old or {}, "metadata", "name"))
        if change.new is None:
            with self._changed:
                self._gone.add(name)
                self._changed.notify_all()
            return
        status = at(change.new, "status", default={})
        if status.get("resourceClaimStatuses"):
            self._note("claim named", name)
        if any(c.get("reason") == "Unschedulable" for c in status.get("conditions") or ()):
            self._note("refused", name)
        if at(change.new, "spec", "nodeName", default=""):
            self._note("bound", name)
        if at(change.new, "status", "phase", default="") == "Running":
            self._note("running", name)

    def _take_claim(self, change: Change) -> None:
        owners = at(change.new or {}, "metadata", "ownerReferences", default=[])
        for owner in owners if isinstance(owners, list) else ():
            self._note("claim made", owner["name"])
            if at(change.new or {}, "status", "allocation", default=None):
                self._note("claim allocated", owner["name"])

    def _note(self, step: str, name: str) -> None:
        with self._changed:
            self._reached[step].setdefault(name, time.monotonic())
            self._changed.notify_all()
