"""The engine on a bench: a clock turned by hand, and an API server of one dictionary."""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from controller.cluster.cluster import Cluster
from controller.engine.engine import Engine
from controller.engine.fence import Fence
from controller.reporting.observer import ControllerObserver
from controller.reporting.podconditions import PodConditions
from controller.reporting.report import Reporter
from controller.serving.evaluations import Evaluations
from controller.writing.in_flight import InFlight
from controller.writing.outbox import Outbox
from controller.writing.writers import make_writers
from dra.cel.cel import Selectors
from dra.cel.kinds.kinds import Kinds
from dra.cel.questions import Evaluator
from dra.claims.requests.reader import Reader
from dra.common.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, Obj, Resource
from dra.gpu.layouts.choosing import Classes
from dra.kube.client.patch import PatchContent
from dra.kube.errors import ConflictError, InvalidError, KubeError, ObjectNotFoundError
from tests.controller.objects import DRIVER, FINALIZER, mignode, node, versioned


class FakeApi:
    """Stores claims, pods and classes; ``refuse`` may raise instead of a write.

    ``lost`` answers are written all the same.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Obj] = {}
        self.writes: list[str] = []
        self.evicted: list[Obj] = []
        self.refuse: Callable[[str], KubeError | None] = lambda _: None
        self.lost: Callable[[str], KubeError | None] = lambda _: None

    def put(self, resource: Resource, obj: Obj) -> Obj:
        stored = versioned(obj)
        self.objects[resource.plural, obj["metadata"]["name"]] = stored
        return stored

    def get(self, resource: Resource, name: str) -> Obj:
        return self.objects[resource.plural, name]

    def without_stale_reservations(self) -> list[Obj]:
        """The claims that are reserved for pods which are gone, as they are to be."""
        present = {o["metadata"]["uid"] for (kind, _), o in self.objects.items() if kind == "pods"}
        found = []
        for (plural, _), obj in self.objects.items():
            reserved = obj.get("status", {}).get("reservedFor", [])
            left = [c for c in reserved if c["uid"] in present]
            if plural == RESOURCE_CLAIMS.plural and left != reserved:
                status = {k: v for k, v in obj["status"].items() if k != "reservedFor"}
                status |= {"reservedFor": left} if left else {}
                found.append({**copy.deepcopy(obj), "status": status})
        return found

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        *,
        namespace: str = "",
        subresource: str = "",
        content: PatchContent = "merge",
        field_manager: str = "",
    ) -> Obj:
        what = f"{resource.plural}/{subresource}" if subresource else resource.plural
        if error := self.refuse(what):
            raise error
        found = self.objects.get((resource.plural, name))
        if found is None:
            raise ObjectNotFoundError(f"{name} not found", status=404)
        obj = copy.deepcopy(found)
        if content == "json":
            _take_steps(obj, body)
        elif content == "strategic":
            _set_conditions(obj, body["status"]["conditions"])
        else:
            _merge(obj, body)
            if obj == found:
                return obj
            if "reservedFor" in obj.get("status", {}) and "allocation" not in obj["status"]:
                raise InvalidError(f"{name} is reserved", status=422)
        if "status" in body and resource is RESOURCE_CLAIMS:
            own_allocation(obj, field_manager)
        stored = self.put(resource, obj)
        self.writes.append(what)
        if error := self.lost(what):
            raise error
        return stored

    def create(
        self, resource: Resource, body: Obj, *, subresource: str = "", field_manager: str = ""
    ) -> Obj:
        """Take note of an eviction; nothing else is created."""
        assert (resource, subresource) == (PODS, "eviction")
        if error := self.refuse("pods/eviction"):
            raise error
        self.evicted.append(body)
        return body

    def delete(self, resource: Resource, name: str, *, namespace: str = "", uid: str = "") -> None:
        if error := self.refuse(f"delete {resource.plural}"):
            raise error
        found = self.objects.get((resource.plural, name))
        if found is None:
            raise ObjectNotFoundError(f"{name} not found", status=404)
        if uid != found["metadata"]["uid"]:
            raise ConflictError("precondition failed: UID", status=409)
        del self.objects[resource.plural, name]

    def apply(
        self,
        resource: Resource,
        body: Obj,
        *,
        field_manager: str,
        subresource: str = "",
        force: bool = True,
    ) -> Obj:
        if error := self.refuse(resource.plural):
            raise error
        self.writes.append(resource.plural)
        return self.put(resource, body)


def once(what: str, error: KubeError) -> Callable[[str], KubeError | None]:
    """Refuses the first write of that kind."""
    left = [error]
    return lambda write: left.pop() if left and write == what else None


def from_the_second(what: str, error: KubeError) -> Callable[[str], KubeError | None]:
    """Refuses all writes of that kind but the first."""
    seen: list[str] = []

    def refuse(write: str) -> KubeError | None:
        seen.append(write)
        return error if write == what and seen.count(what) > 1 else None

    return refuse


class Inline:
    """An outbox for programs of one thread: what is sent is done at once."""

    def send(self, job: Callable[[], None]) -> None:
        job()


def _merge(obj: Obj, body: Obj) -> None:
    """Apply a merge patch of metadata and status, and refuse it as the API server does."""
    known, metadata = obj["metadata"], dict(body["metadata"])
    if metadata.pop("resourceVersion", known["resourceVersion"]) != known["resourceVersion"]:
        raise ConflictError(f"{known['name']} has been modified", status=409)
    if metadata.pop("uid") != known["uid"]:
        causes = [{"field": "metadata.uid", "message": "field is immutable"}]
        raise InvalidError("metadata.uid: immutable", status=422, details={"causes": causes})
    for field in ("annotations", "labels"):
        if added := metadata.pop(field, None):
            known[field] = known.get(field, {}) | added
    known |= {k: v for k, v in metadata.items() if v is not None}
    for key in [k for k, v in metadata.items() if v is None]:
        known.pop(key, None)
    if "status" in body:
        status = {**obj.get("status", {}), **body["status"]}
        obj["status"] = {k: v for k, v in status.items() if v is not None}


def own_allocation(obj: Obj, manager: str) -> None:
    """Say of a claim that ``manager`` wrote its allocation, if it has one."""
    fields: Obj = {"f:status": {"f:allocation": {}}}
    entry = {"manager": manager, "subresource": "status", "fieldsV1": fields}
    allocated = "allocation" in obj.get("status", {})
    obj["metadata"]["managedFields"] = [entry] if allocated else []


def _take_steps(obj: Obj, steps: list[Obj]) -> None:
    """Apply a JSON patch; what is tested and missing counts as null, as for the API server."""
    for step in steps:
        where: Any = obj
        *parents, last = step["path"].split("/")[1:]
        for name in parents:
            where = where[int(name)] if isinstance(where, list) else where.setdefault(name, {})
        key: Any = int(last) if isinstance(where, list) else last
        if step["op"] == "remove":
            del where[key]
        elif step["op"] == "add":
            where[key] = step["value"]
        elif (where[key] if isinstance(where, list) else where.get(key)) != step["value"]:
            raise InvalidError(f"testing value {step['path']} failed", status=422)


def _set_conditions(obj: Obj, entries: list[Obj]) -> None:
    """Merge by type, as the API server does it."""
    known = {c["type"]: c for c in obj.setdefault("status", {}).get("conditions", [])}
    obj["status"]["conditions"] = [*(known | {e["type"]: e for e in entries}).values()]


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
        outbox: Outbox | None = None,
        observer: ControllerObserver | None = None,
        api: FakeApi | None = None,
        finalizer_at_creation: bool = False,
        node_labels: bool = False,
        class_files: Callable[[], Classes | None] | None = None,
        eager_creation: bool = True,
        evict_failed: bool = False,
        evaluator: Evaluator | None = None,
        asking: Outbox | None = None,
    ) -> None:
        """With an evaluator it is asked beforehand, as in a controller, through ``asking``."""
        self.outbox = outbox or Inline()
        self.time = 1000.0
        self.api = api or FakeApi()
        self.recorder = EventList()
        self.leads = True
        kinds = Kinds(None if evaluator else Selectors())
        self.cluster = Cluster(DRIVER, FINALIZER, kinds)
        evaluations = None
        if evaluator is not None:
            evaluations = Evaluations(
                self.cluster,
                evaluator,
                outbox=asking or Inline(),
                wake=lambda: None,
                now=lambda: self.time,
            )
        self.writers = make_writers(
            self.api,
            driver=DRIVER,
            finalizer=FINALIZER,
            now=lambda: datetime.fromtimestamp(1767225600 + self.time - 1000, UTC),
            leads=lambda: self.leads,
            labels_nodes=eager_creation,
            evicts=evict_failed,
        )
        self.engine = Engine(
            self.cluster,
            Reader(DRIVER, kinds, self.cluster.classes),
            writers=self.writers,
            reporter=Reporter(
                self.recorder,
                PodConditions(self.writers.pods, self.outbox, driver=DRIVER, now=lambda: self.time),
                lambda: self.time,
                observer=observer,
            ),
            outbox=self.outbox,
            gate=FINALIZER,
            now=lambda: self.time,
            observer=observer,
            finalizer_at_creation=finalizer_at_creation,
            node_labels=node_labels,
            class_files=class_files,
            evaluations=evaluations,
        )
        for name in nodes:
            self.cluster.set_node(node(name))
            self.cluster.set_mignode(mignode(name))
        self.run()
        self.api.writes.clear()

    def succeeded_by(self, *nodes: str, outbox: Outbox | None = None) -> Bench:
        """The next leader, with these nodes: it has listed everything and decided nothing."""
        self.leads = False
        new = Bench(*nodes, outbox=outbox, api=self.api)
        for (plural, _), obj in self.api.objects.items():
            if plural == RESOURCE_CLAIMS.plural:
                new.cluster.set_claim(obj)
            elif plural == PODS.plural:
                new.cluster.set_pod(obj)
        return new

    def fence(self, mark: str = "fence") -> Fence:
        """The fence that this leader raises around the claims that it knows."""
        in_flight = InFlight(self.outbox, lambda: None)
        return Fence(self.cluster, self.writers.claims, in_flight, mark=mark, now=lambda: self.time)

    def run(self, *, seconds: float = 0.0) -> None:
        """Let time pass, then do all work that is due; the answers of writes are watched."""
        self.time += seconds
        for _ in range(1000):
            self.engine.absorb()
            if not self.engine.work():
                return
        raise AssertionError("the engine does not come to rest")

    def claim(self, obj: Obj) -> Obj:
        stored = self.api.put(RESOURCE_CLAIMS, obj)
        self.cluster.set_claim(stored)
        return stored

    def pod(self, obj: Obj) -> Obj:
        stored = self.api.put(PODS, obj)
        self.cluster.set_pod(stored)
        return stored

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
        obj = copy.deepcopy(self.api.get(RESOURCE_CLAIMS, name))
        obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.claim(obj)

    def change_claim(self, name: str, **status: Any) -> None:
        """Somebody else changes a claim's status; None removes a field."""
        obj = copy.deepcopy(self.api.get(RESOURCE_CLAIMS, name))
        merged = {**obj.get("status", {}), **status}
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
