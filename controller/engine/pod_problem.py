"""The unit of work: a pod that waits to be started, with those of its claims that are ours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from controller.cluster.cluster import Cluster
from controller.cluster.known_claims import KnownClaim
from dra.allocator.admin_access import LOOKS_AND_HOLDS, find_mixture
from dra.allocator.problem import Problem
from dra.claims.reasons import Obstacle, Reason
from dra.claims.wants import ClaimWants, Reader
from dra.common.resources import ObjectKey
from dra.pods.pods import Pod
from dra.pods.rules import find_rules
from dra.pods.volumes.fit import find_obstacle


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Something that others do first is missing: a claim to be made, or one that is going."""


@dataclass(frozen=True, slots=True)
class Satisfied:
    """Nothing is left to allocate; ``ours`` tells whether any claim of the pod is ours."""

    ours: bool


@dataclass(frozen=True, slots=True)
class Blocked:
    """A claim that cannot be allocated whatever is free."""

    claim: ObjectKey
    obstacle: Obstacle


def examine(
    pod: Pod, cluster: Cluster, reader: Reader
) -> Problem | Satisfied | Blocked | Incomplete:
    """Task for ``pod``, which is pending."""
    known = _claims_of(pod, cluster)
    if known is None:
        return Incomplete()
    to_do: list[ClaimWants] = []
    pins: list[dict[str, Any]] = []
    ours = False
    for entry in known:
        allocation = entry.claim.allocation
        if allocation is not None:
            selector = entry.obj["status"]["allocation"].get("nodeSelector")
            if selector is not None:
                pins.append(selector)
            ours = ours or bool(allocation.of_driver(cluster.driver))
            continue
        wants = reader.read(entry.claim)
        if isinstance(wants, Obstacle):
            key = (entry.claim.ref.namespace, entry.claim.ref.name)
            return Blocked(key, wants)
        if wants is not None:
            if entry.claim.deleting:
                return Incomplete()
            to_do.append(wants)
    if not to_do:
        gated = cluster.finalizer in pod.gates
        return _unasked(known, cluster) if gated and not ours else Satisfied(ours)
    obstacle = None if pod.node else find_obstacle(pod, cluster.hosts.volumes)
    if obstacle is not None:
        ref = to_do[0].claim.ref
        return Blocked((ref.namespace, ref.name), obstacle)
    rules = find_rules(pod, cluster.hosts)
    return _mixture(to_do) or Problem(pod, tuple(to_do), tuple(pins), rules=rules)


def _claims_of(pod: Pod, cluster: Cluster) -> list[KnownClaim] | None:
    """All claims of ``pod``, None while one is still to be made."""
    if None in pod.claims.values():
        return None
    found = [cluster.claims.get(key) for key in pod.claim_keys]
    present = [claim for claim in found if claim is not None and _belongs(claim, pod)]
    return present if len(present) == len(found) else None


def _unasked(known: list[KnownClaim], cluster: Cluster) -> Blocked:
    """None of a pod's claims is ours, and nobody else lifts its gate, or says that it is there."""
    ref = known[0].claim.ref
    names = [c.class_name for k in known for r in k.claim.requests for c in r.choices]
    missing = next((name for name in names if name not in cluster.classes), None)
    why = (
        "they ask for devices of other drivers: remove the gate"
        if missing is None
        else f"DeviceClass {missing!r} does not exist: create it, or name another"
    )
    message = (
        f"scheduling gate {cluster.finalizer} is lifted once claims of this driver are allocated, "
        f"and the pod has none; {why}"
    )
    reason = Reason.UNSUPPORTED if missing is None else Reason.NO_SUCH_CLASS
    return Blocked((ref.namespace, ref.name), Obstacle(reason, message))


def _mixture(to_do: list[ClaimWants]) -> Blocked | None:
    ref = find_mixture(to_do)
    return None if ref is None else Blocked((ref.namespace, ref.name), LOOKS_AND_HOLDS)


def without_nodes(problem: Problem, excluded: dict[str, str]) -> Problem:
    """``problem`` with nodes left out."""
    return replace(problem, excluded=excluded) if excluded else problem


def _belongs(claim: KnownClaim, pod: Pod) -> bool:
    """A claim made from a template belongs to one pod; its namesake's successor may be another."""
    owner = claim.claim.owner_pod_uid
    return not owner or owner == pod.uid
