"""The unit of work: a pod that waits to be started, with those of its claims that are ours."""

from __future__ import annotations

from dataclasses import dataclass, replace

from controller.cluster.cluster import Cluster
from dra.allocator.problem import Problem, pose_problem
from dra.claims.reading import Fault, KnownClaim, read_claims
from dra.claims.reasons import Obstacle, Reason
from dra.claims.wants import Reader
from dra.pods.pods import Pod
from dra.pods.volumes.fit import find_obstacle


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Something that others do first is missing: a claim to be made, or one that is going."""


@dataclass(frozen=True, slots=True)
class Satisfied:
    """Nothing is left to allocate; ``ours`` tells whether any claim of the pod is ours."""

    ours: bool


def examine(pod: Pod, cluster: Cluster, reader: Reader) -> Problem | Satisfied | Fault | Incomplete:
    """Task for ``pod``, which is pending."""
    known = _claims_of(pod, cluster)
    if known is None:
        return Incomplete()
    claims = read_claims(known, reader, driver=cluster.driver, stops_early=True)
    if claims.faults:
        return claims.faults[0]
    if claims.going:
        return Incomplete()
    if not claims.wants:
        gated = cluster.finalizer in pod.gates
        return _unasked(known, cluster) if gated and not claims.ours else Satisfied(claims.ours)
    return pose_problem(pod, claims, cluster.hosts)


def find_hindrance(
    pod: Pod,
    found: Problem | Satisfied | Fault | Incomplete,
    cluster: Cluster,
    reader: Reader,
) -> Obstacle | None:
    """Obstacle to running ``pod`` on any node with what it has; ``found`` is what it lacks."""
    if isinstance(found, Incomplete):
        message = "a ResourceClaim that it names does not exist or is being deleted"
        return Obstacle(Reason.UNSUPPORTED, message)
    if isinstance(found, Fault):
        return found.obstacle
    if isinstance(found, Problem) or pod.node or not found.ours:
        return None
    return find_obstacle(pod, cluster.hosts.volumes) or find_other_claim(pod, cluster, reader)


def find_other_claim(pod: Pod, cluster: Cluster, reader: Reader) -> Obstacle | None:
    """The first claim of ``pod`` that another driver has not served, None when there is none."""
    for key in pod.claim_keys:
        known = cluster.claims.get(key)
        if known and known.claim.allocation is None and not reader.concerns(known.claim):
            what = f"ResourceClaim {key[1]}, which is for another driver, stays unallocated"
            return Obstacle(Reason.OTHER_CLAIM, what)
    return None


def _claims_of(pod: Pod, cluster: Cluster) -> list[KnownClaim] | None:
    """All claims of ``pod``, None while one is still to be made."""
    if None in pod.claims.values():
        return None
    found = [cluster.claims.get(key) for key in pod.claim_keys]
    present = [claim for claim in found if claim is not None and _belongs(claim, pod)]
    return present if len(present) == len(found) else None


def _unasked(known: list[KnownClaim], cluster: Cluster) -> Fault:
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
    return Fault(ref, Obstacle(reason, message))


def without_nodes(problem: Problem, excluded: dict[str, str]) -> Problem:
    """``problem`` with nodes left out."""
    return replace(problem, excluded=excluded) if excluded else problem


def _belongs(claim: KnownClaim, pod: Pod) -> bool:
    """A claim made from a template belongs to one pod; its namesake's successor may be another."""
    owner = claim.claim.owner_pod_uid
    return not owner or owner == pod.uid
