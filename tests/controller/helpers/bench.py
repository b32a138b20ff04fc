"""The engine on a bench: a clock turned by hand, and an API server of one dictionary."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from prometheus_client import CollectorRegistry

from controller.cluster.cluster import Cluster
from controller.leader.engine import Engine
from controller.leader.fence import Fence
from controller.options import Options
from controller.report.metrics import ControllerMetrics
from controller.report.report import PodConditions, Reporter
from controller.serve.evaluations import Evaluations
from controller.serve.world import World
from controller.write.claims import ClaimWriter
from controller.write.in_flight import InFlight, Send
from controller.write.requests import Requests
from dra.cel.kinds import Kinds
from dra.cel.questions import Evaluator
from dra.cel.selectors import Selectors
from dra.common.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, Obj
from dra.kube.client import KubeApi
from tests.controller.helpers.fakeapi import FakeApi
from tests.controller.helpers.objects import DRIVER, FINALIZER, claim, copied, mignode, node, pod
from tests.helpers.fields import checked


def inline(job: Callable[[], None]) -> None:
    """Sends for programs of one thread: what is sent is done at once."""
    job()


def no_metrics() -> ControllerMetrics:
    """Metrics that nobody reads."""
    return ControllerMetrics(CollectorRegistry(), leads=lambda: True, now=lambda: datetime.now(UTC))


class EventList:
    """Keeps events as (kind, name, reason, message)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str]] = []

    def emit(self, regarding: Obj, reason: str, message: str, *, warning: bool = False) -> None:
        self.events.append((regarding["kind"], regarding["metadata"]["name"], reason, message))

    def reasons(self, name: str) -> list[str]:
        return [reason for _, about, reason, _ in self.events if about == name]


class Bench:
    """An engine with nodes that each have one empty A100."""

    def __init__(
        self,
        *nodes: str,
        send: Send = inline,
        metrics: ControllerMetrics | None = None,
        api: FakeApi | None = None,
        finalizer_at_creation: bool = False,
        node_labels: bool = False,
        node_classes: Path | None = None,
        eager_creation: bool = True,
        evict_failed: bool = True,
        moves_per_hour: int = 0,
        preemption: bool = False,
        autoscaler: bool = False,
        evaluator: Evaluator | None = None,
        asking: Send = inline,
    ) -> None:
        """With an evaluator it is asked beforehand, as in a controller, through ``asking``."""
        self.send = send
        self.time = 1000.0
        self.ahead = 0.0  # seconds by which the time of day was set
        self.api = api or FakeApi()
        self.recorder = EventList()
        self.leads = True
        kinds = Kinds(None if evaluator else Selectors())
        self.cluster = Cluster(DRIVER, FINALIZER, kinds)
        evaluations = None
        if evaluator is not None:
            evaluations = Evaluations(
                self.cluster, evaluator, send=asking, wake=lambda: None, now=self.now
            )
        self.requests = Requests(
            kube=cast("KubeApi", self.api),
            driver=DRIVER,
            leads=lambda: self.leads,
            now=self.time_of_day,
        )
        self.writer = ClaimWriter(self.requests, finalizer=FINALIZER, labels_nodes=eager_creation)
        metrics = metrics or no_metrics()
        metrics.begins(self.cluster.waiting_claims, self.cluster.fleet)
        in_flight = InFlight(send)
        conditions = PodConditions(self.requests, in_flight, now=self.now)
        options = Options(
            driver_name=DRIVER,
            finalizer_at_creation=finalizer_at_creation,
            eager_creation=eager_creation,
            node_labels=node_labels,
            evict_failed=evict_failed,
            moves_per_hour=moves_per_hour,
            preemption=preemption,
            autoscaler=autoscaler,
            node_classes=node_classes,
        )
        self.world = World(
            self.cluster,
            self.writer,
            in_flight,
            Reporter(self.recorder, conditions, self.cluster, metrics, self.now),
            options,
            now=self.now,
            evaluations=evaluations,
        )
        self.engine = Engine(self.world)
        for name in nodes:
            self.add_node(name)
        self.run()
        self.api.writes.clear()

    def now(self) -> float:
        return self.time

    def time_of_day(self) -> datetime:
        return datetime.fromtimestamp(1767225600 + self.ahead + self.time - 1000, UTC)

    def succeeded_by(self, *nodes: str, send: Send = inline) -> Bench:
        """The next leader, with these nodes: it has listed everything and decided nothing."""
        self.leads = False
        new = Bench(*nodes, send=send, api=self.api)
        for (plural, _), obj in self.api.objects.items():
            if plural == RESOURCE_CLAIMS.plural:
                new.cluster.set_claim(obj)
            elif plural == PODS.plural:
                new.cluster.set_pod(obj)
        return new

    def fence(self, mark: str = "fence") -> Fence:
        """The fence that this leader raises around the claims that it knows."""
        in_flight = InFlight(self.send)
        return Fence(self.cluster, self.writer, in_flight, mark=mark, now=self.now)

    def run(self, *, seconds: float = 0.0) -> None:
        """Let time pass, then do all work that is due; the answers of writes are watched."""
        self.time += seconds
        for _ in range(1000):
            self.engine.absorb()
            if not self.engine.work():
                return
        raise AssertionError("the engine does not come to rest")

    def add_node(self, name: str, **fields: Any) -> None:
        """A node with an empty A100 comes."""
        self.cluster.set_node(node(name, **fields))
        self.cluster.set_mignode(mignode(name))

    def claim(self, obj: Obj) -> Obj:
        stored = self.api.put(RESOURCE_CLAIMS, obj)
        self.cluster.set_claim(stored)
        return stored

    def pod(self, obj: Obj) -> Obj:
        stored = self.api.put(PODS, obj)
        self.cluster.set_pod(stored)
        return stored

    def ask(self, pod_name: str, claim_name: str, *requests: Obj, **spec: Any) -> None:
        """A pod with a claim is created."""
        self.claim(claim(claim_name, *requests))
        self.pod(pod(pod_name, claim_name, **spec))

    def serve(self, pod_name: str, claim_name: str, *requests: Obj, **spec: Any) -> None:
        """As ``ask``, and what is due is done."""
        self.ask(pod_name, claim_name, *requests, **spec)
        self.run()

    def bind(self, name: str, node: str, *, phase: str = "Pending") -> None:
        """kube-scheduler binds a pod; kubelet has brought it to ``phase``."""
        obj = copied(self.api.get(PODS, name))
        obj["spec"]["nodeName"] = node
        obj.setdefault("status", {})["phase"] = phase
        self.pod(obj)

    def remove_pod(self, name: str) -> None:
        """A pod goes, and nobody has looked at its reservations yet."""
        del self.api.objects["pods", name]
        self.cluster.remove_pod(("default", name))

    def delete_pod(self, name: str) -> None:
        self.remove_pod(name)
        self.end_reservations()

    def end_reservations(self) -> None:
        """Reservations for pods that are gone end, as kube-controller-manager does it."""
        for obj in self.api.without_stale_reservations():
            self.claim(obj)

    def delete_claim(self, name: str) -> None:
        """Somebody deletes a claim, which its finalizers keep."""
        obj = copied(self.api.get(RESOURCE_CLAIMS, name))
        obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.claim(obj)

    def lose_claim(self, name: str) -> None:
        """A claim is gone."""
        del self.api.objects[RESOURCE_CLAIMS.plural, name]
        self.cluster.remove_claim(("default", name))

    def change_claim(self, name: str, **status: Any) -> None:
        """Somebody else changes a claim's status; None removes a field."""
        obj = copied(self.api.get(RESOURCE_CLAIMS, name))
        merged = {**obj.get("status", {}), **checked("V1ResourceClaimStatus", status)}
        obj["status"] = {k: v for k, v in merged.items() if v is not None}
        self.claim(obj)

    def devices(self, name: str) -> list[str]:
        """The devices that a claim has, empty when it is not allocated."""
        allocation = self.api.get(RESOURCE_CLAIMS, name).get("status", {}).get("allocation")
        return [r["device"] for r in allocation["devices"]["results"]] if allocation else []

    def results(self, name: str) -> list[Obj]:
        """The results of a claim's allocation."""
        status = self.api.get(RESOURCE_CLAIMS, name)["status"]
        found: list[Obj] = status["allocation"]["devices"]["results"]
        return found

    def condition(self, name: str) -> Obj:
        """What a pod says about its claims, empty when it says nothing."""
        conditions = self.api.get(PODS, name).get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == f"{DRIVER}/ClaimsAllocated"), {})

    def node_of(self, name: str) -> str:
        allocation = self.api.get(RESOURCE_CLAIMS, name)["status"]["allocation"]
        (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
        node: str = term["matchFields"][0]["values"][0]
        return node

    def finalizers(self, name: str) -> list[str]:
        found: list[str] = self.api.get(RESOURCE_CLAIMS, name)["metadata"].get("finalizers", [])
        return found

    def classes(self) -> set[str]:
        return {name for plural, name in self.api.objects if plural == DEVICE_CLASSES.plural}
