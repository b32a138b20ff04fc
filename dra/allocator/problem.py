"""Problems and decisions as values."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from dra.allocator.gpustate import GpuState
from dra.cel.offers import Offer
from dra.claims.allocation import AllocatedDevice, Allocation, share_id
from dra.claims.claims import (
    Claim,
    classed,
    container_uses,
    crowded,
    find_crowd,
    read_claim,
)
from dra.claims.reader import Fault, KnownClaim, ReadClaims, Reader, read_claims
from dra.claims.reasons import Obstacle, Reason
from dra.claims.requests import requested_settings
from dra.claims.wants import ClaimWants, Want
from dra.common.resources import ObjectKey, at
from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import finalizer, gpu_name, mig_device
from dra.gpu.shares import ANY_TENANT, Ask, Share
from dra.limits.rewriting import LABEL_VALUE, is_template_name, opt_in_label, template
from dra.pods.pods import Pod
from dra.pods.residents import Hosts
from dra.pods.rules import Rules, find_obstacle, find_rules


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """All claims of a pod that are to be allocated, and where the pod may go.

    ``pins``: node selectors of the pod's claims that are allocated already. ``excluded``: by node,
    the reason why it is left out. ``rules``: those about nodes that look at other pods; None for
    most pods. ``makes_room``: other pods are supposed to have ended, so that every node has the
    resources. ``others``: claims of the pod that other drivers are to serve.
    """

    pod: Pod
    claims: tuple[ClaimWants, ...]
    pins: tuple[Mapping[str, Any], ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)
    rules: Rules | None = None
    makes_room: bool = False
    others: tuple[Claim, ...] = ()


def pose_problem(pod: Pod, claims: ReadClaims, hosts: Hosts) -> Problem | Fault:
    """The problem of allocating ``claims.wants``, of which there is at least one, for ``pod``.

    Returns the fault instead where something stands in the way on every node.
    """
    obstacle = too_large(pod.unread) if pod.unread else None
    if obstacle is None and not pod.node:
        obstacle = find_obstacle(pod, hosts.volumes)
    if obstacle is not None:
        return Fault(claims.wants[0].claim.ref, obstacle)
    rules = find_rules(pod, hosts)
    wants = claims.wants
    return claims.mixture or Problem(pod, wants, claims.pins, rules=rules, others=claims.foreign)


def too_large(why: str) -> Obstacle:
    """Obstacle of a pod that is too large to be read; ``why`` says in what (``UNREAD``)."""
    message = (
        f"the pod is too large: {why}; state fewer labels, terms, tolerations, volumes, resources "
        "or claims"
    )
    return Obstacle(Reason.UNSUPPORTED, message)


class Pick(NamedTuple):
    """One device for one request.

    ``placement``: None for a whole GPU. ``admin``: the device is only looked at. ``share``: set
    where several claims may have the GPU or slice.
    """

    claim: ClaimRef
    request: str
    gpu: str
    device: str
    profile: str
    placement: Placement | None
    admin: bool = False
    share: Share | None = None

    def allocated(self, driver: str, pool: str) -> AllocatedDevice:
        """The device as an allocation names it."""
        found = AllocatedDevice(self.request, driver, pool, self.device, admin_access=self.admin)
        if self.share is None:
            return found
        share, anybody = self.share, self.share.tenant == ANY_TENANT
        return replace(
            found,
            share_id=share_id(self.claim.uid, self.device),
            ask=Ask(share.memory_mib, share.cores, anybody=anybody),
        )


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A search that ended after ``steps`` steps, before all was searched.

    ``too_hard``: number of nodes that were searched in part. ``untried``: other nodes or
    alternatives were not searched at all.
    """

    steps: int
    too_hard: int
    untried: bool = False

    def __str__(self) -> str:
        where = f" on {self.too_hard} nodes" if self.too_hard > 1 else ""
        return (
            f"given up{where} after {self.steps} steps: make the requests more alike (by count), "
            "name one profile in each, or put those that need not be on one node into claims of "
            "other pods"
        )


class Decision(NamedTuple):
    """Devices to allocate, all on one node.

    ``given_up``: set where the search for a better alternative of the requests was given up.
    """

    node: str
    pool: str
    picks: tuple[Pick, ...]
    given_up: GivenUp | None = None

    def of(self, claim: ClaimRef) -> tuple[Pick, ...]:
        """The devices of one claim."""
        return tuple(p for p in self.picks if p.claim.uid == claim.uid)

    def allocations(self, claims: Iterable[ClaimWants], driver: str) -> dict[ClaimRef, Allocation]:
        """The allocations of ``claims``, with the classes of their requests."""
        return {
            c.claim.ref: classed(self.allocation(c.claim.ref, driver), c.claim.requests)
            for c in claims
        }

    def allocation(self, claim: ClaimRef, driver: str) -> Allocation:
        """The allocation of one claim, without its configuration."""
        devices = tuple(pick.allocated(driver, self.pool) for pick in self.of(claim))
        return Allocation(devices, self.node)


class Outcome(NamedTuple):
    """Result of a search: the decision or, where it stopped for want of steps, ``given_up``.

    ``over``: the obstacle where every alternative is over a quota of the pod's namespace.
    """

    decision: Decision | None
    given_up: GivenUp | None = None
    over: Obstacle | None = None


class OpenRequest(NamedTuple):
    """One request of a claim that is to be served."""

    claim: ClaimRef
    want: Want

    def at(self, state: GpuState, offer: Offer, placement: Placement) -> Decision:
        """Decision for a pod that has this one request alone: ``offer``, at ``placement``."""
        pick = self.pick(state, offer, placement)
        return Decision(state.inventory.node, state.inventory.pool, (pick,))

    def pick(self, state: GpuState, offer: Offer, placement: Placement | None) -> Pick:
        """Device that serves the request; no placement for a whole GPU."""
        claim, request, gpu = self.claim, self.want.request, state.gpu
        if offer.profile is None or placement is None:
            share = state.share(self.want.ask, claim.namespace)
            return Pick(claim, request, gpu.name, gpu_name(gpu.minor), "", None, share=share)
        profile, shared = offer.profile, offer.shared
        device = mig_device(
            gpu.minor, profile.name, profile_id=profile.id, start=placement.start, shared=shared
        )
        share = state.share(self.want.ask, claim.namespace, profile) if shared else None
        return Pick(claim, request, gpu.name, str(device), profile.name, placement, share=share)


_SHOWN = 63
"""Names that users choose are cut to this length in messages."""


class Surroundings(Protocol):
    """Objects among which a pod is examined: in the controller's mirror, or in one reading."""

    @property
    def schedulers(self) -> frozenset[str]:
        """Names of the schedulers whose pods are served."""

    @property
    def hosts(self) -> Hosts:
        """The nodes, and the pods on them."""

    @property
    def claims(self) -> Mapping[ObjectKey, KnownClaim]:
        """Every known claim."""


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A claim that the pod names does not exist yet, or is being deleted: others act first.

    ``going``: the claims that are being deleted.
    """

    going: tuple[ClaimRef, ...] = ()


@dataclass(frozen=True, slots=True)
class Satisfied:
    """Nothing is left to allocate; ``ours`` tells whether any claim of the pod is ours."""

    ours: bool


class Examined(NamedTuple):
    """A pod's need: ``found`` says what is to be allocated, or why nothing can be.

    ``hindrance``: obstacle that keeps the pod from running on any node with what it has.
    ``foreign``: obstacle about the first of its claims that another driver has not served yet.
    ``faults``: those of its claims, of which ``found`` is the first.
    """

    found: Problem | Satisfied | Fault | Incomplete
    hindrance: Obstacle | None = None
    foreign: Obstacle | None = None
    faults: tuple[Fault, ...] = ()


def examine(pod: Pod, known: Surroundings, reader: Reader, *, stops_early: bool = True) -> Examined:
    """The need of ``pod``, which is pending.

    ``stops_early``: claims after the first faulty one are not read.
    """
    present = _claims_of(pod, known)
    if present is None:
        return _INCOMPLETE
    claims = read_claims(present, reader, stops_early=stops_early)
    faults = _find_replaced(pod, present, known, reader.driver) or claims.faults
    if faults := faults or _find_crowded(pod, present, claims, reader):
        return Examined(faults[0], faults[0].obstacle, faults=faults)
    if claims.going:
        return _INCOMPLETE._replace(found=Incomplete(claims.going))
    foreign = _find_foreign(claims) if claims.foreign else None
    if claims.wants:
        found = _unserved(pod, claims, known) or pose_problem(pod, claims, known.hosts)
        return _faulty(found) if isinstance(found, Fault) else Examined(found, None, foreign)
    if finalizer(reader.driver) in pod.gates and not claims.ours:
        return _faulty(_unasked(present, reader))
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
    """Fault of a pod whose scheduler is not among those served.

    Nobody may ever bind such a pod, and devices allocated to it would be lost to others.
    """
    if pod.node or pod.scheduler in known.schedulers:
        return None
    message = (
        f"pods of scheduler {pod.scheduler[:_SHOWN]!r} are not served, but those of "
        f"{', '.join(sorted(known.schedulers))}: leave schedulerName out, or have the "
        "administrator name this scheduler to the controller (chart: schedulers, option "
        "--scheduler), if it runs"
    )
    return Fault(claims.wants[0].claim.ref, Obstacle(Reason.SCHEDULER, message))


def _find_foreign(claims: ReadClaims) -> Obstacle:
    name = claims.foreign[0].ref.name
    what = f"ResourceClaim {name}, which is for another driver, stays unallocated"
    return Obstacle(Reason.OTHER_CLAIM, what)


def _find_crowded(
    pod: Pod, present: list[KnownClaim], claims: ReadClaims, reader: Reader
) -> tuple[Fault, ...]:
    """Fault of a container that uses a device shared by MPS beside another of ours; or nothing."""
    if len(present) == 1 and len(present[0].claim.requests) == 1:
        return ()
    wanted = {wants.claim.ref for wants in claims.wants}
    ours = {
        k.claim.ref.name: k.claim
        for k in present
        if (k.claim.allocation is not None and k.claim.allocation.of_driver(reader.driver))
        or k.claim.ref in wanted
    }
    by_mps = {
        name: requested_settings(claim.config, reader.classes, reader.driver).by_mps(claim.requests)
        for name, claim in ours.items()
    }
    is_shared = any(any(requests.values()) for requests in by_mps.values())
    for container, uses in container_uses(pod.obj, pod.claims) if is_shared else ():
        if crowd := find_crowd(uses, by_mps):
            problem = crowded(container, crowd)
            return (Fault(ours[crowd[0].claim].ref, Obstacle(Reason.BAD_CONFIG, problem)),)
    return ()


def _find_replaced(
    pod: Pod, present: list[KnownClaim], known: Surroundings, driver: str
) -> tuple[Fault, ...]:
    """Fault of a claim for limits that does not ask for what its template's name says; or nothing.

    Whoever charges by limits charges for the name.
    """
    namespace = pod.key[0]
    labels = known.hosts.residents.labels_of(namespace)
    if labels.get(opt_in_label(driver)) != LABEL_VALUE:
        return ()
    entries = at(pod.obj, "spec", "resourceClaims")
    templates = {e["name"]: e.get("resourceClaimTemplateName") or "" for e in entries}
    named = {claim: templates.get(entry, "") for entry, claim in pod.claims.items()}
    for claim in (each.claim for each in present):
        template_name = named.get(claim.ref.name, "")
        if is_template_name(template_name) and claim.owner_pod_uid == pod.uid:
            meant = _meant(template_name, driver)
            said = (claim.requests, claim.constraints, claim.config)
            if said != (meant.requests, meant.constraints, meant.config):
                problem = (
                    f"ResourceClaimTemplate {template_name!r} stands for limits of pods, and was "
                    "replaced: the claim asks for something else than its name says; delete it "
                    f"(kubectl delete resourceclaimtemplate {template_name} -n {namespace}), and "
                    "the pod once the controller has made it anew"
                )
                return (Fault(claim.ref, Obstacle(Reason.UNSUPPORTED, problem)),)
    return ()


@functools.cache
def _meant(template_name: str, driver: str) -> Claim:
    """The claim that a template for limits stands for."""
    spec = template(template_name, "", driver=driver)["spec"]["spec"]
    return read_claim({"metadata": {"name": "", "namespace": "", "uid": ""}, "spec": spec})


def _claims_of(pod: Pod, known: Surroundings) -> list[KnownClaim] | None:
    """All claims of ``pod``, None while one of them does not exist."""
    if None in pod.claims.values():
        return None
    found = [known.claims.get(key) for key in pod.claim_keys]
    present = [claim for claim in found if claim is not None and _belongs(claim, pod)]
    return present if len(present) == len(found) else None


def _unasked(present: list[KnownClaim], reader: Reader) -> Fault:
    """Fault of a pod that has our scheduling gate and no claim of ours.

    Nobody else would lift the gate, or say why the pod waits.
    """
    ref = present[0].claim.ref
    missing = next(filter(None, (reader.missing_class(k.claim) for k in present)), "")
    shared = next(filter(None, (reader.shared_class(k.claim) for k in present)), "")
    if missing:
        why = f"DeviceClass {missing!r} does not exist: create it, or name another"
    elif shared:
        why = (
            f"DeviceClass {shared!r} selects devices of other drivers too, and so kube-scheduler "
            f"serves it: name another, or have it select device.driver == '{reader.driver}' alone"
        )
    else:
        why = "they ask for devices of other drivers: remove the gate"
    message = (
        f"scheduling gate {finalizer(reader.driver)} is lifted once claims of this driver are "
        f"allocated, and the pod has none; {why}"
    )
    reason = Reason.NO_SUCH_CLASS if missing else Reason.UNSUPPORTED
    return Fault(ref, Obstacle(reason, message))


def _belongs(claim: KnownClaim, pod: Pod) -> bool:
    """True unless the claim was made from a template for another pod, such as a former namesake."""
    owner = claim.claim.owner_pod_uid
    return not owner or owner == pod.uid
