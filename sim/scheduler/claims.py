"""A pod's claims as the dynamicresources plugin sees them: looked at, waited for, written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from dra.claims.claims import claim_names
from dra.common.resources import PODS, RESOURCE_CLAIMS, Obj, Resource, at
from dra.kube.client import KubeApi
from dra.kube.events import EventRecorder
from dra.kube.timing import rfc3339
from dra.pods.selectors import matches_selector

_MAX_CONSUMERS = 256


class WaitingError(Exception):
    """The pod is not worth a look yet: a claim does not exist (PreEnqueue)."""


class UnresolvableError(Exception):
    """No node will do as long as the claims are what they are (PreFilter)."""


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The claims of one pod, in the order of its spec."""

    pod: Obj
    claims: list[Obj]
    off_node: set[str] = field(default_factory=set)
    """Names of the allocated claims that were the reason to reject a node."""

    def reject_node(self, node: Obj, *, now: datetime, seconds: float) -> str:
        """Filter: the reason why the claims do not go with this node, or "".

        An allocation has ``seconds`` for its binding conditions.
        """
        reason = ""
        for claim in self.claims:
            allocation = at(claim, "status", "allocation", default=None)
            if allocation is None:
                reason = reason or "cannot allocate all claims"
                continue
            metadata = node["metadata"]
            is_there = matches_selector(
                allocation.get("nodeSelector"), metadata.get("labels", {}), metadata["name"]
            )
            if not is_there or is_given_up(claim, now=now, seconds=seconds):
                self.off_node.add(claim["metadata"]["name"])
                reason = "resourceclaim not available on the node"
        return reason

    def to_deallocate(self) -> Obj | None:
        """PostFilter: the first claim whose allocation keeps the pod from other nodes, if any.

        A claim that another consumer holds is left alone.
        """
        for claim in self.claims:
            if claim["metadata"]["name"] not in self.off_node:
                continue
            reserved = claim["status"].get("reservedFor", [])
            if not reserved or [c["uid"] for c in reserved] == [self.pod["metadata"]["uid"]]:
                return claim
        return None


def find_claims(
    pod: Obj,
    get_claim: Callable[[str, str], Obj | None],
    get_class: Callable[[str], Obj | None],
) -> PodClaims:
    """The pod's claims, looked up by name and namespace.

    Raises:
        WaitingError: a claim does not exist yet.
        UnresolvableError: a claim is being deleted or held by too many, or a class is missing.
    """
    namespace = pod["metadata"]["namespace"]
    claims = []
    for pod_claim, name in claim_names(pod).items():
        claim = get_claim(name, namespace) if name is not None else None
        if claim is None:
            raise WaitingError(
                f'waiting for dynamic resource controller to create the resourceclaim "{name}"'
                if name
                else f'pod claim "{pod_claim}": ResourceClaim not created yet'
            )
        if "deletionTimestamp" in claim["metadata"]:
            raise UnresolvableError(f'resourceclaim "{name}" is being deleted')
        _check_consumers(claim, pod)
        if "allocation" not in claim.get("status", {}):
            _check_classes(claim, get_class)
        claims.append(claim)
    return PodClaims(pod, claims)


def _check_consumers(claim: Obj, pod: Obj) -> None:
    reserved = at(claim, "status", "reservedFor")
    mine = any(c["uid"] == pod["metadata"]["uid"] for c in reserved)
    if not mine and len(reserved) >= _MAX_CONSUMERS:
        raise UnresolvableError(f'resourceclaim "{claim["metadata"]["name"]}" in use')


def _check_classes(claim: Obj, get_class: Callable[[str], Obj | None]) -> None:
    for request in at(claim["spec"], "devices", "requests"):
        for name in _classes(request):
            if get_class(name) is None:
                raise UnresolvableError(
                    f"request {request['name']}: device class {name} does not exist"
                )


def _classes(request: dict[str, Any]) -> list[str]:
    alternatives = request.get("firstAvailable") or [request.get("exactly", {})]
    return [a["deviceClassName"] for a in alternatives if a.get("deviceClassName")]


class BindingFailedError(Exception):
    """The pod is not bound to the devices of a claim: a failure condition, or no time is left."""


def waits_for(claim: Obj) -> bool:
    """True if a device of the claim has binding conditions."""
    return any(True for _ in _awaited(claim))


def are_ready(claims: Sequence[Obj], *, now: datetime, seconds: float) -> bool:
    """True if all binding conditions are True; an allocation may wait for that many seconds.

    Raises:
        BindingFailedError: says of which claim.
    """
    for claim in claims:
        if not _is_ready(claim):
            if _is_overdue(claim, now=now, seconds=seconds):
                name = claim["metadata"]["name"]
                raise BindingFailedError(f"device binding timeout: claim={name}")
            return False
    return True


def is_given_up(claim: Obj, *, now: datetime, seconds: float) -> bool:
    """True if the allocated claim will not become ready: it is to be allocated anew."""
    try:
        are_ready([claim], now=now, seconds=seconds)
    except BindingFailedError:
        return True
    return False


def _is_ready(claim: Obj) -> bool:
    if at(claim, "status", "allocation", default=None) is None:
        return False
    for result in _awaited(claim):
        conditions = _conditions(claim, result)
        if conditions is None:
            return False
        for name in at(result, "bindingFailureConditions"):
            found = conditions.get(name, {})
            if found.get("status") == "True":
                raise BindingFailedError(
                    f"device binding failed: claim={claim['metadata']['name']}, "
                    f"reason={found.get('reason')}, message={found.get('message')!r}"
                )
        if any(conditions.get(n, {}).get("status") != "True" for n in result["bindingConditions"]):
            return False
    return True


def _is_overdue(claim: Obj, *, now: datetime, seconds: float) -> bool:
    stamp = at(claim, "status", "allocation", "allocationTimestamp", default="")
    if not stamp or not waits_for(claim):
        return False
    return datetime.fromisoformat(stamp) + timedelta(seconds=seconds) < now


def _awaited(claim: Obj) -> Iterator[Obj]:
    results = at(claim, "status", "allocation", "devices", "results")
    yield from (result for result in results if at(result, "bindingConditions"))


def _conditions(claim: Obj, result: Obj) -> dict[str, Obj] | None:
    """The conditions of an allocated device by type; None if nothing is said of it."""
    wanted = [result[field] for field in ("driver", "pool", "device")]
    for device in at(claim, "status", "devices"):
        if [device[field] for field in ("driver", "pool", "device")] == wanted:
            return {c["type"]: c for c in at(device, "conditions")}
    return None


_log = logging.getLogger(__name__)


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
        user, status = pod["metadata"], claim["status"]
        if any(c["uid"] == user["uid"] for c in status.get("reservedFor", ())):
            return
        consumer = {"resource": "pods", "name": user["name"], "uid": user["uid"]}
        change: Obj = {"reservedFor": [consumer]}
        if "allocationTimestamp" not in status["allocation"]:
            change["allocation"] = {"allocationTimestamp": rfc3339(datetime.now(UTC))}
        self._patch_claim(claim, change)

    def unreserve(self, pod: Obj, claim: Obj) -> None:
        """Unreserve: take the pod out of ``reservedFor``; the allocation stays."""
        entry = {"$patch": "delete", "uid": pod["metadata"]["uid"]}
        self._patch_claim(claim, {"reservedFor": [entry]})

    def _patch_claim(self, claim: Obj, status: Obj, **metadata: str) -> None:
        """Changes the status of this claim, and of none that came in its place."""
        have = claim["metadata"]
        self._api.patch(
            RESOURCE_CLAIMS,
            have["name"],
            {"metadata": {"uid": have["uid"], **metadata}, "status": status},
            namespace=have["namespace"],
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
        nothing = dict.fromkeys(("allocation", "reservedFor", "devices"))
        self._patch_claim(claim, nothing, resourceVersion=metadata["resourceVersion"])

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
