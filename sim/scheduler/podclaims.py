"""A pod's claims as the dynamicresources plugin sees them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dra.claims.claims import claim_names
from dra.common.resources import Obj, at
from sim.scheduler.bindingconditions import is_given_up
from sim.scheduler.nodefit import matches_selector

PLUGIN = "DynamicResources"
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
            selector = allocation.get("nodeSelector")
            if (selector is not None and not matches_selector(selector, node)) or is_given_up(
                claim, now=now, seconds=seconds
            ):
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
