"""The controller of workloads: it does what ``plans`` say, and looks again after each change."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from dra.common.resources import NODES, PODS, Obj, Resource
from dra.kube.client import KubeApi
from dra.kube.errors import AlreadyExistsError, ConflictError, KubeError, ObjectNotFoundError
from dra.kube.events import EventRecorder
from dra.kube.reflector import Change, Reflector
from sim.daemon import WorkQueue
from sim.workloads.plans import (
    DAEMON_SETS,
    DEPLOYMENTS,
    REPLICA_SETS,
    RULES,
    Plan,
    Surroundings,
)

_KINDS = {resource.kind: resource for resource in RULES}
_log = logging.getLogger(__name__)


class WorkloadController:
    """Follows the objects of ``RULES``, all pods and the nodes, in all namespaces.

    What an object controls goes after it by the API server's garbage collection.
    """

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._events = EventRecorder(api, component="workload-controller")
        self._queue = WorkQueue("workload", self._sync, workers=2, first_retry=0.05)
        self._mirrors = {
            resource: Reflector(api, resource, on_event=partial(self._changed, resource))
            for resource in (*RULES, PODS, NODES)
        }

    def start(self) -> None:
        """Begin."""
        for mirror in self._mirrors.values():
            mirror.start()
        self._queue.start()

    def stop(self) -> None:
        """End after the object at hand."""
        self._queue.stop()
        for mirror in self._mirrors.values():
            mirror.stop()
        self._events.close()

    def _changed(self, resource: Resource, change: Change) -> None:
        metadata = (change.new or change.old or {})["metadata"]
        keys = [(resource, metadata.get("namespace"), metadata["name"])] if change.new else []
        keys += [
            (_KINDS[owner["kind"]], metadata["namespace"], owner["name"])
            for owner in metadata.get("ownerReferences", ())
            if owner.get("controller") and owner["kind"] in _KINDS
        ]
        if resource == NODES:
            every = (each["metadata"] for each in self._mirrors[DAEMON_SETS].store.list())
            keys = [(DAEMON_SETS, own["namespace"], own["name"]) for own in every]
            if change.new is None:
                self._queue.add(f"{NODES.kind} - {metadata['name']}")
        for kind, namespace, name in keys:
            if kind in RULES:
                self._queue.add(f"{kind.kind} {namespace} {name}")

    def _sync(self, key: str) -> float | None:
        if not all(mirror.wait_synced(60.0) for mirror in self._mirrors.values()):
            raise TimeoutError("the objects could not be listed within 60 s")
        kind, namespace, name = key.split(" ")
        if kind == NODES.kind:
            self._collect(name)
            return None
        resource = _KINDS[kind]
        owner = self._mirrors[resource].store.get(name, namespace)
        try:
            plan = self._plan(resource, owner, self._mirrored)
            if plan is not None and (plan.create or plan.delete or plan.scale or plan.ends):
                # What is mirrored may be older than our own last write.
                owner = self._api.get(resource, name, namespace=namespace)
                plan = self._plan(resource, owner, self._listed)
            return self._carry_out(resource, owner, plan) if owner and plan else None
        except ObjectNotFoundError as error:
            _log.debug("%s: %s", key, error)
            return None

    def _collect(self, node: str) -> None:
        """Delete the pods of a node that is gone, as kube-controller-manager does after a while."""
        if self._mirrors[NODES].store.get(node) is not None:
            return
        for pod in self._api.list(PODS).items:
            if pod["spec"].get("nodeName") == node:
                own = pod["metadata"]
                self._api.delete(
                    PODS, own["name"], namespace=own["namespace"], uid=own["uid"], grace_seconds=0
                )

    def _mirrored(self, resource: Resource, namespace: str) -> list[Obj]:
        found = self._mirrors[resource].store.list()
        return [o for o in found if o["metadata"].get("namespace", "") == namespace]

    def _listed(self, resource: Resource, namespace: str) -> list[Obj]:
        return self._api.list(resource, namespace=namespace).items

    def _plan(
        self, resource: Resource, owner: Obj | None, listed: Callable[[Resource, str], list[Obj]]
    ) -> Plan | None:
        if owner is None or "deletionTimestamp" in owner["metadata"]:
            return None
        owner = {**owner, "apiVersion": resource.api_version, "kind": resource.kind}
        namespace, uid = owner["metadata"]["namespace"], owner["metadata"]["uid"]

        def controlled(kind: Resource) -> list[Obj]:
            return [
                each
                for each in listed(kind, namespace)
                if any(
                    o.get("controller") and o["uid"] == uid
                    for o in each["metadata"].get("ownerReferences", ())
                )
            ]

        around = Surroundings(
            pods=controlled(PODS) if resource != DEPLOYMENTS else (),
            replica_sets=controlled(REPLICA_SETS) if resource == DEPLOYMENTS else (),
            nodes=self._mirrors[NODES].store.list() if resource == DAEMON_SETS else (),
            now=datetime.now(UTC).replace(microsecond=0),
        )
        return RULES[resource](owner, around)

    def _carry_out(self, resource: Resource, owner: Obj, plan: Plan) -> float | None:
        metadata = owner["metadata"]
        namespace = metadata["namespace"]
        for pod in plan.delete:
            own = pod["metadata"]
            self._api.delete(PODS, own["name"], namespace=namespace, uid=own["uid"])
            self._events.emit(owner, "SuccessfulDelete", f"Deleted pod: {own['name']}")
        for name, count in plan.scale:
            patch = {"spec": {"replicas": count}}
            self._api.patch(REPLICA_SETS, name, patch, namespace=namespace)
            what = f"Scaled replica set {name} to {count}"
            self._events.emit(owner, "ScalingReplicaSet", what)
        for body in plan.create:
            self._create(owner, body)
        if plan.ends:
            self._api.delete(resource, metadata["name"], namespace=namespace, uid=metadata["uid"])
            return None
        if plan.status != owner.get("status"):
            self._api.replace(resource, owner | {"status": plan.status}, subresource="status")
        return plan.again

    def _create(self, owner: Obj, body: Obj) -> None:
        kind = PODS if body["kind"] == "Pod" else REPLICA_SETS
        try:
            made = self._api.create(kind, body)
        except (AlreadyExistsError, ConflictError):
            return  # of a name that something else has: looked at again once that changes
        except KubeError as error:
            self._events.emit(owner, "FailedCreate", f"Error creating: {error}", warning=True)
            raise
        word = "pod" if kind == PODS else "replica set"
        self._events.emit(owner, "SuccessfulCreate", f"Created {word}: {made['metadata']['name']}")
