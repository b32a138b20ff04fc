"""Writes of the scheduler: reservations, bindings, erased allocations, reasons why a pod waits."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj, Resource, at
from dra.kube.client import KubeApi
from dra.kube.errors import ConflictError
from dra.kube.events import EventRecorder
from dra.kube.timing import rfc3339

_log = logging.getLogger(__name__)

_ATTEMPTS = 5


class SchedulerWrites:
    """The scheduler's requests to the API. Raises the errors of dra.kube.errors."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._events = EventRecorder(api, component="default-scheduler")

    def close(self) -> None:
        """Sends the last events."""
        self._events.close()

    def reserve(self, pod: Obj, claim: Obj) -> None:
        """PreBind: add the pod to ``reservedFor``; nothing is written when it is there.

        An allocation without a timestamp gets one, as from kube-scheduler, and is refused by the
        API server because an allocation never changes.
        """
        metadata = pod["metadata"]
        for attempt in range(_ATTEMPTS):
            fresh = self._api.get(
                RESOURCE_CLAIMS, claim["metadata"]["name"], namespace=metadata["namespace"]
            )
            if fresh["metadata"]["uid"] != claim["metadata"]["uid"]:
                raise ConflictError(f"claim {claim['metadata']['name']} was replaced")
            status = fresh.get("status", {})
            allocation = status.get("allocation")
            if allocation is None:
                raise ConflictError(f"claim {claim['metadata']['name']} is not allocated any more")
            reserved = status.get("reservedFor", [])
            if any(c["uid"] == metadata["uid"] for c in reserved):
                return
            consumer = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
            if "allocationTimestamp" not in allocation:
                allocation = allocation | {"allocationTimestamp": rfc3339(datetime.now(UTC))}
            fresh["status"] = status | {
                "allocation": allocation,
                "reservedFor": [*reserved, consumer],
            }
            try:
                self._api.replace(RESOURCE_CLAIMS, fresh, subresource="status")
            except ConflictError:
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def unreserve(self, pod: Obj, claim: Obj) -> None:
        """Unreserve: take the pod out of ``reservedFor``; the allocation stays."""
        metadata = claim["metadata"]
        entry = {"$patch": "delete", "uid": pod["metadata"]["uid"]}
        self._api.patch(
            RESOURCE_CLAIMS,
            metadata["name"],
            {"metadata": {"uid": metadata["uid"]}, "status": {"reservedFor": [entry]}},
            namespace=metadata["namespace"],
            subresource="status",
            content="strategic",
        )

    def tell(self, pod: Obj, reason: str, message: str) -> None:
        """A normal event of the pod."""
        self._events.emit(pod, reason, message)

    def deallocate(self, claim: Obj) -> None:
        """PostFilter: take the allocation away, with reservations and device status."""
        metadata = claim["metadata"]
        _log.info("deallocating claim %s/%s", metadata["namespace"], metadata["name"])
        self._api.patch(
            RESOURCE_CLAIMS,
            metadata["name"],
            {
                "metadata": {
                    "uid": metadata["uid"],
                    "resourceVersion": metadata["resourceVersion"],
                },
                "status": {"allocation": None, "reservedFor": None, "devices": None},
            },
            namespace=metadata["namespace"],
            subresource="status",
        )

    def bind(self, pod: Obj, node: str) -> None:
        """Binds the pod through its binding subresource."""
        metadata = pod["metadata"]
        binding = Resource("", "v1", f"pods/{metadata['name']}/binding", "Binding", namespaced=True)
        self._api.create(
            binding,
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {
                    "namespace": metadata["namespace"],
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
                "target": {"apiVersion": "v1", "kind": "Node", "name": node},
            },
        )
        where = f"{metadata['namespace']}/{metadata['name']}"
        self._events.emit(pod, "Scheduled", f"Successfully assigned {where} to {node}")

    def report(self, pod: Obj, reason: str, message: str) -> None:
        """Event FailedScheduling, and condition PodScheduled=False if it says something new.

        ``reason`` is ``Unschedulable`` or ``SchedulerError``.
        """
        self._events.emit(pod, "FailedScheduling", message, warning=True)
        metadata = pod["metadata"]
        conditions = at(pod, "status", "conditions")
        old: Obj = next((c for c in conditions if c["type"] == "PodScheduled"), {})
        if (old.get("reason"), old.get("message")) == (reason, message):
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
            "lastProbeTime": None,
            "lastTransitionTime": old.get("lastTransitionTime") or rfc3339(datetime.now(UTC)),
        }
        self._api.patch(
            PODS,
            metadata["name"],
            {"metadata": {"uid": metadata["uid"]}, "status": {"conditions": [condition]}},
            namespace=metadata["namespace"],
            subresource="status",
            content="strategic",
        )
