"""Problems and decisions as values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from dra.allocator.fleet.gpustate import GpuState
from dra.cel.offers import Offer
from dra.claims.allocation import AllocatedDevice, Allocation, share_id
from dra.claims.claims import Claim, container_uses, has_several_containers
from dra.claims.reader import Fault, ReadClaims
from dra.claims.reasons import Obstacle, Reason
from dra.claims.wants import ClaimWants, Want
from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef
from dra.gpu.names import gpu_name, mig_device
from dra.gpu.shares import ANY_TENANT, Ask, Share
from dra.pods.pods import Pod
from dra.pods.residents import Hosts
from dra.pods.rules import Rules, find_obstacle, find_rules


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """All claims of a pod that are to be allocated, and where the pod may go.

    ``pins`` are the node selectors of its claims that are allocated. ``excluded`` maps nodes to
    the reason why they are left out. ``others`` are its claims that other drivers are to serve.
    ``rules`` are those beside what its node says; None for most. ``makes_room``: nodes that are not
    left out have the resources once others have ended.
    """

    pod: Pod
    claims: tuple[ClaimWants, ...]
    pins: tuple[Mapping[str, Any], ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)
    rules: Rules | None = None
    makes_room: bool = False
    others: tuple[Claim, ...] = ()


def pose_problem(pod: Pod, claims: ReadClaims, hosts: Hosts) -> Problem | Fault:
    """The problem of allocating ``claims``, of which something is wanted, for ``pod``."""
    obstacle = too_large(pod.unread) if pod.unread else None
    if obstacle is None and not pod.node:
        obstacle = find_obstacle(pod, hosts.volumes)
    if obstacle is not None:
        return Fault(claims.wants[0].claim.ref, obstacle)
    rules = find_rules(pod, hosts)
    wants = _with_containers(pod, claims.wants)
    return claims.mixture or Problem(pod, wants, claims.pins, rules=rules, others=claims.foreign)


def _with_containers(pod: Pod, wants: tuple[ClaimWants, ...]) -> tuple[ClaimWants, ...]:
    """Wants that say whether several containers of the pod use their claim."""
    if not has_several_containers(pod.obj):
        return wants
    users = Counter(
        claim
        for _, uses in container_uses(pod.obj, pod.claims)
        for claim in {use.claim for use in uses}
    )
    return tuple(w.of_several() if users[w.claim.ref.name] > 1 else w for w in wants)


def too_large(why: str) -> Obstacle:
    """Obstacle of a pod that is not read, for the reason in its spec (``UNREAD``)."""
    message = (
        f"the pod is too large: {why}; state fewer labels, terms, tolerations, volumes, resources "
        "or claims"
    )
    return Obstacle(Reason.UNSUPPORTED, message)


class Pick(NamedTuple):
    """One device for one request; no placement for a whole GPU. ``admin``: only to look at.

    ``share`` is set where several claims may have the GPU or slice.
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

    ``too_hard`` nodes were searched in part. ``untried``: others, or other alternatives, were not
    searched at all.
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

    ``given_up``: the search for better alternatives of its requests, where that was too hard.
    """

    node: str
    pool: str
    picks: tuple[Pick, ...]
    given_up: GivenUp | None = None

    def of(self, claim: ClaimRef) -> tuple[Pick, ...]:
        """The devices of one claim."""
        return tuple(p for p in self.picks if p.claim.uid == claim.uid)

    def allocation(self, claim: ClaimRef, driver: str) -> Allocation:
        """The allocation of one claim, without its configuration."""
        devices = tuple(pick.allocated(driver, self.pool) for pick in self.of(claim))
        return Allocation(devices, self.node)


class Outcome(NamedTuple):
    """Result of a search: the decision or, where it stopped for want of steps, ``given_up``."""

    decision: Decision | None
    given_up: GivenUp | None = None


class OpenRequest(NamedTuple):
    """One request of a claim that is to be served."""

    claim: ClaimRef
    want: Want

    def at(self, state: GpuState, offer: Offer, placement: Placement) -> Decision:
        """Decision that serves a problem of this request alone, by this slice."""
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
