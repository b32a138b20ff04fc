"""The unit of work: a pod that waits to be started, with those of its claims that are ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dra.allocator.problem import Problem, pose_problem
from dra.claims.claims import container_uses, crowded, find_crowd
from dra.claims.classes import DeviceClass
from dra.claims.reader import Fault, KnownClaim, ReadClaims, Reader, read_claims
from dra.claims.reasons import Obstacle, Reason
from dra.claims.requests import requested_settings
from dra.common.resources import ObjectKey
from dra.pods.pods import Pod
from dra.pods.residents import Hosts
from dra.pods.rules import find_obstacle

_SHOWN = 63
"""Length of names in messages, of which a user chooses any."""


class Surroundings(Protocol):
    """Objects among which a pod is examined.

    ``finalizer`` is also the scheduling gate of ours. ``schedulers`` are those whose pods are
    served.
    """

    driver: str
    finalizer: str
    schedulers: frozenset[str]
    hosts: Hosts
    classes: dict[str, DeviceClass]

    @property
    def claims(self) -> Mapping[ObjectKey, KnownClaim]:
        """Every known claim."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """Something that others do first is missing: a claim to be made, or one that is going."""


@dataclass(frozen=True, slots=True)
class Satisfied:
    """Nothing is left to allocate; ``ours`` tells whether any claim of the pod is ours."""

    ours: bool


class Examined(NamedTuple):
    """A pod's need: ``found`` is what it lacks.

    ``hindrance`` keeps it from running on any node with what it has. ``foreign`` is the first of
    its claims that another driver has not served.
    """

    found: Problem | Satisfied | Fault | Incomplete
    hindrance: Obstacle | None = None
    foreign: Obstacle | None = None


def examine(pod: Pod, known: Surroundings, reader: Reader) -> Examined:
    """Need of ``pod``, which is pending."""
    present = _claims_of(pod, known)
    if present is None:
        return _INCOMPLETE
    claims = read_claims(present, reader, driver=known.driver, stops_early=True)
    if faults := claims.faults or _find_crowded(pod, present, claims, known):
        return _faulty(faults[0])
    if claims.going:
        return _INCOMPLETE
    foreign = _find_foreign(claims)
    if claims.wants:
        found = _unserved(pod, claims, known) or pose_problem(pod, claims, known.hosts)
        return _faulty(found) if isinstance(found, Fault) else Examined(found, None, foreign)
    if known.finalizer in pod.gates and not claims.ours:
        return _faulty(_unasked(present, known, reader))
    hindrance = None
    if claims.ours and not pod.node:
        hindrance = find_obstacle(pod, known.hosts.volumes) or foreign
    return Examined(Satisfied(claims.ours), hindrance, foreign)


_INCOMPLETE = Examined(
    Incomplete(),
    Obstacle(
        Reason.UNSUPPORTED, "a ResourceClaim that it names does not exist or is being deleted"
    ),
)


def _faulty(fault: Fault) -> Examined:
    return Examined(fault, fault.obstacle)


def _unserved(pod: Pod, claims: ReadClaims, known: Surroundings) -> Fault | None:
    """Fault of a pod that nobody may ever bind: what it had would be lost to others."""
    if pod.node or pod.scheduler in known.schedulers:
        return None
    message = (
        f"pods of scheduler {pod.scheduler[:_SHOWN]!r} are not served, but those of "
        f"{', '.join(sorted(known.schedulers))}: leave schedulerName out, or have the "
        "administrator name this scheduler to the controller (chart: schedulers, option "
        "--scheduler), if it runs"
    )
    return Fault(claims.wants[0].claim.ref, Obstacle(Reason.SCHEDULER, message))


def _find_foreign(claims: ReadClaims) -> Obstacle | None:
    for claim in claims.foreign[:1]:
        what = f"ResourceClaim {claim.ref.name}, which is for another driver, stays unallocated"
        return Obstacle(Reason.OTHER_CLAIM, what)
    return None


def _find_crowded(
    pod: Pod, present: list[KnownClaim], claims: ReadClaims, known: Surroundings
) -> tuple[Fault, ...]:
    """Fault of a container that uses a device shared by MPS beside another of ours."""
    if len(present) == 1 and len(present[0].claim.requests) == 1:
        return ()
    wanted = {wants.claim.ref for wants in claims.wants}
    ours = {
        k.claim.ref.name: k.claim
        for k in present
        if (k.claim.allocation is not None and k.claim.allocation.of_driver(known.driver))
        or k.claim.ref in wanted
    }
    by_mps = {
        name: requested_settings(claim.config, known.classes, known.driver).by_mps(claim.requests)
        for name, claim in ours.items()
    }
    is_shared = any(any(requests.values()) for requests in by_mps.values())
    for container, uses in container_uses(pod.obj, pod.claims) if is_shared else ():
        if crowd := find_crowd(uses, by_mps):
            problem = crowded(container, crowd)
            return (Fault(ours[crowd[0].claim].ref, Obstacle(Reason.BAD_CONFIG, problem)),)
    return ()


def _claims_of(pod: Pod, known: Surroundings) -> list[KnownClaim] | None:
    """All claims of ``pod``, None while one is still to be made."""
    if None in pod.claims.values():
        return None
    found = [known.claims.get(key) for key in pod.claim_keys]
    present = [claim for claim in found if claim is not None and _belongs(claim, pod)]
    return present if len(present) == len(found) else None


def _unasked(present: list[KnownClaim], known: Surroundings, reader: Reader) -> Fault:
    """None of a pod's claims is ours, and nobody else lifts its gate, or says that it is there."""
    ref = present[0].claim.ref
    missing = next(filter(None, (reader.missing_class(k.claim) for k in present)), "")
    shared = next(filter(None, (reader.shared_class(k.claim) for k in present)), "")
    if missing:
        why = f"DeviceClass {missing!r} does not exist: create it, or name another"
    elif shared:
        why = (
            f"DeviceClass {shared!r} selects devices of other drivers too, and so kube-scheduler "
            f"serves it: name another, or have it select device.driver == '{known.driver}' alone"
        )
    else:
        why = "they ask for devices of other drivers: remove the gate"
    message = (
        f"scheduling gate {known.finalizer} is lifted once claims of this driver are allocated, "
        f"and the pod has none; {why}"
    )
    reason = Reason.NO_SUCH_CLASS if missing else Reason.UNSUPPORTED
    return Fault(ref, Obstacle(reason, message))


def _belongs(claim: KnownClaim, pod: Pod) -> bool:
    """A claim made from a template belongs to one pod; its namesake's successor may be another."""
    owner = claim.claim.owner_pod_uid
    return not owner or owner == pod.uid
