"""Decisions that a pod's claims and a claim's consumers call for. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from dra.claims.claims import POD_CLAIM, SCHEDULER_FINALIZER
from dra.common.resources import RESOURCE_CLAIMS, Obj, at

_MAX_CONSUMERS = 256
_TERMINAL = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True)
class ClaimChange:
    """Change of a claim.

    ``status`` is the new status or None, ``release`` asks to drop the delete-protection finalizer,
    ``delete`` to delete the claim; in this order.
    """

    status: Obj | None = None
    release: bool = False
    delete: bool = False


@dataclass(frozen=True, slots=True)
class MissingClaim:
    """A claim to be created for a pod: its name in the pod and its template."""

    pod_claim: str
    template: str


@dataclass(frozen=True, slots=True)
class PodClaimNames:
    """Names of the claims that a pod has (pod claim to ResourceClaim), and what it lacks."""

    made: dict[str, str] = field(default_factory=dict)
    missing: list[MissingClaim] = field(default_factory=list)


def is_done(pod: Obj) -> bool:
    """True if the pod will use its claims no more."""
    return at(pod, "status", "phase") in _TERMINAL or (
        "deletionTimestamp" in pod["metadata"] and not pod["spec"].get("nodeName")
    )


def owner_pod(claim: Obj) -> tuple[str, str]:
    """``(name, uid)`` of the pod that a claim was made for, or two ""."""
    for owner in claim["metadata"].get("ownerReferences", ()):
        if owner.get("controller") and owner["kind"] == "Pod" and owner["apiVersion"] == "v1":
            return owner["name"], owner["uid"]
    return "", ""


def template_claims(pod: Obj, owned: Iterable[Obj]) -> PodClaimNames:
    """Template claims of the pod that exist among the claims that it owns."""
    by_pod_claim = {
        claim["metadata"].get("annotations", {}).get(POD_CLAIM): claim["metadata"]["name"]
        for claim in owned
    }
    names = PodClaimNames()
    for entry in pod["spec"].get("resourceClaims", ()):
        if "resourceClaimTemplateName" not in entry:
            continue
        if made := by_pod_claim.get(entry["name"]):
            names.made[entry["name"]] = made
        else:
            names.missing.append(MissingClaim(entry["name"], entry["resourceClaimTemplateName"]))
    return names


def claim_from_template(pod: Obj, template: Obj, *, pod_claim: str) -> Obj:
    """The claim to create."""
    metadata = pod["metadata"]
    wanted = copy.deepcopy(template["spec"])
    given = wanted.get("metadata", {})
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {
            "generateName": f"{metadata['name']}-{pod_claim}-",
            "namespace": metadata["namespace"],
            "labels": given.get("labels", {}),
            "annotations": given.get("annotations", {}) | {POD_CLAIM: pod_claim},
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": wanted["spec"],
    }


def reservation(pod: Obj, claim: Obj) -> Obj | None:
    """The status of an allocated claim with this pod in ``reservedFor``; None if it is there.

    kube-scheduler reserves for the pods that it binds; this is for those that came with a node.
    """
    status: Obj = claim.get("status", {})
    reserved = status.get("reservedFor", [])
    uid = pod["metadata"]["uid"]
    if (
        "allocation" not in status
        or any(c["uid"] == uid for c in reserved)
        or len(reserved) >= _MAX_CONSUMERS
    ):
        return None
    consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": uid}
    return status | {"reservedFor": [*reserved, consumer]}


def claim_change(claim: Obj, find_pod: Callable[[str], Obj | None]) -> ClaimChange:
    """Decides on a claim, given a look-up of the pods of its namespace by name.

    Reservations of pods that are done, gone or replaced end; consumers of other kinds stay. With
    the last reservation an allocation ends only under the delete-protection finalizer: a claim
    without it stays allocated.
    """
    status = claim.get("status", {})
    reserved = status.get("reservedFor", [])
    valid = [c for c in reserved if _uses(c, find_pod)]
    protected = SCHEDULER_FINALIZER in claim["metadata"].get("finalizers", ())
    deleting = "deletionTimestamp" in claim["metadata"]
    change: Obj | None = None
    if len(valid) < len(reserved):
        change = {k: v for k, v in status.items() if k != "reservedFor"}
        if valid:
            change["reservedFor"] = valid
    after = change if change is not None else status
    ends = not valid and protected and (change is not None or deleting)
    if ends and "allocation" in after:
        change = {k: v for k, v in after.items() if k not in {"allocation", "devices"}}
    name, uid = owner_pod(claim)
    pod = find_pod(name) if name else None
    owner_done = pod is not None and pod["metadata"]["uid"] == uid and is_done(pod)
    return ClaimChange(
        status=change, release=ends, delete=not valid and owner_done and not deleting
    )


def _uses(consumer: Obj, find_pod: Callable[[str], Obj | None]) -> bool:
    if consumer.get("apiGroup") or consumer["resource"] != "pods":
        return True
    pod = find_pod(consumer["name"])
    return pod is not None and pod["metadata"]["uid"] == consumer["uid"] and not is_done(pod)
