"""Pods that may be moved or ended so that others have room, and where they could go. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from dra.allocator.allocate import Allocator, with_room_made
from dra.allocator.fleet import Fleet
from dra.allocator.gpustate import GpuId, GpuState
from dra.allocator.planner import Plan
from dra.allocator.problem import OpenRequest, Problem
from dra.allocator.search.single import single_request
from dra.allocator.sites import Ending, Mover
from dra.cel.offers import GpuKind, Offer
from dra.claims.claims import Claim
from dra.common.resources import at
from dra.gpu.inventory import InstanceState
from dra.gpu.names import DeviceNameError, MigDevice, movable, parse_device
from dra.pods.pods import Pod
from dra.pods.rules import find_rules, find_victims

Find = Callable[[str], tuple[Claim, Sequence[Pod]] | None]
"""Finds the claim with a UID and the pods that use it; None where there is no such claim."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Rules about the pods that may leave.

    ``moves``: True if a pod may be moved. ``ends``: cost of ending a pod; None if it may not be
    ended.
    """

    moves: Callable[[Pod], bool]
    ends: Callable[[Pod], Ending | None] = lambda _: None


def movers_on(state: GpuState, find: Find, driver: str, leave: Leave) -> Iterator[Mover]:
    """Slices of a GPU that may be moved, may be ended, or are leaving.

    A slice is leaving if its claim was given back, or all pods that use it are ending. It may be
    moved if one pod alone uses its claim, and no other claim; it may be ended if one pod alone uses
    its claim. All other slices stay.
    """
    stuck = {i.placement for i in state.gpu.instances if i.state is InstanceState.ORPHAN}
    held = {uid for uid, _ in state.claims}
    for holding in state.holdings:
        uid, occupant, geometry = holding.claim_uid, holding.occupant, state.gpu.geometry
        known = occupant.profile_id if occupant is not None else None
        profile = geometry.by_id(known) if geometry is not None and known is not None else None
        if not uid or occupant is None or profile is None or occupant.placement in stuck:
            continue
        mover = Mover(uid, state.id, profile.name, occupant, 0.0)
        found = find(uid)
        if uid not in held:
            yield replace(mover, is_leaving=True)
            continue
        if found is None:
            continue
        claim, pods = found
        # A claim made from a template outlives its pod for a moment.
        if (pods or claim.owner_pod_uid) and all(p.deleting or not p.live for p in pods):
            yield replace(mover, is_leaving=True)
        elif len(pods) == 1 and pods[0].node and _has_one_slice(claim, driver):
            [pod] = pods
            mover = replace(mover, since=datetime.fromisoformat(pod.created).timestamp())
            if len(pod.claims) == 1 and comes_back(pod) and leave.moves(pod):
                yield mover
            elif (ending := leave.ends(pod)) is not None:
                yield replace(mover, ending=ending)


def comes_back(pod: Pod) -> bool:
    """True if the pod's controller makes another in its place, which may go to any node."""
    owners = at(pod.obj, "metadata", "ownerReferences", default=[])
    return any(o.get("controller") and o.get("kind") != "DaemonSet" for o in owners)


def may_move(pod: Pod, driver: str) -> bool:
    """True if the pod's label ``movable`` lets it be moved."""
    return pod.labels.get(movable(driver)) == "true"


def _has_one_slice(claim: Claim, driver: str) -> bool:
    devices = claim.allocation.devices if claim.allocation is not None else ()
    if len(devices) != 1 or devices[0].driver != driver or devices[0].admin_access:
        return False
    try:
        device = parse_device(devices[0].device)
    except DeviceNameError:
        return False
    return isinstance(device, MigDevice) and not device.shared


@dataclass(frozen=True, slots=True)
class Asked:
    """The slice for a problem's only request.

    ``profile``: name of the smallest that would do. ``offers``: its offer by kind of GPU that has
    it.
    """

    request: OpenRequest
    profile: str
    offers: dict[GpuKind, Offer]


def find_asked(problem: Problem, fleet: Fleet) -> Asked | None:
    """The slice that a problem asks for; None where it asks for another device, or for several.

    Raises:
        SelectorError: a selector does not compile.
        UnansweredError: a selector is still to be evaluated.
    """
    request = single_request(problem.claims, fleet.kinds)
    if request is None or request.want.admin:
        return None
    least: dict[GpuKind, Offer] = {}
    for kind in {g.state.kind for g in fleet.groups.values() if g.state.takes_slices}:
        offers = fleet.kinds.match_kind(request.want.expressions, kind).offers
        own = [o for o in offers if o.profile is not None and not o.shared]
        if own:
            least[kind] = min(own, key=lambda offer: offer.size)
    first = min(least.values(), key=lambda offer: offer.size, default=None)
    if first is None:
        return None
    return Asked(request, first.name, {k: o for k, o in least.items() if o.name == first.name})


class Destinations:
    """GPUs to which movers, and the pod that asks, could go, as far as kind and node decide.

    A mover goes to a GPU of the same kind only, as its selectors may tell kinds apart; the pod that
    asks goes to one of ``kinds``, if these are given. ``makes_room``: kube-scheduler may end other
    pods for the pod that asks.
    """

    def __init__(
        self,
        allocator: Allocator,
        asked: Problem,
        find: Find,
        *,
        kinds: Collection[GpuKind] | None = None,
        makes_room: bool = False,
    ) -> None:
        self._allocator, self._find, self._kinds = allocator, find, kinds
        self._problems: dict[str, Problem] = {"": asked}
        self._room_made = with_room_made(asked, allocator) if makes_room else asked
        self._known: dict[tuple[str, str], bool] = {}
        self._kind_of: dict[GpuId, GpuKind] = {}

    def suits(self, mover: Mover | None, gpu: GpuId) -> bool:
        """True if the pod of ``mover``, or who asks (None), could run with a slice of ``gpu``."""
        if mover is None:
            kind_suits = self._kinds is None or self._kind(gpu) in self._kinds
        else:
            kind_suits = self._kind(gpu) is self._kind(mover.gpu)
        if not kind_suits:
            return False
        key = (mover.uid if mover is not None else "", gpu.node)
        if key not in self._known:
            self._known[key] = self._fits(*key)
        return self._known[key]

    def _kind(self, gpu: GpuId) -> GpuKind:
        if gpu not in self._kind_of:
            self._kind_of[gpu] = self._allocator.fleet.state(gpu).kind
        return self._kind_of[gpu]

    def _fits(self, uid: str, node: str) -> bool:
        places = self._allocator
        if uid not in self._problems:
            _, pods = self._find(uid) or (None, ())
            if not pods:
                return False
            pod = replace(pods[0], node="")
            self._problems[uid] = Problem(pod, (), rules=find_rules(pod, places.hosts))
        problem = self._problems[uid]
        if places.find_misfit(problem, node) is None:
            return True
        facts = places.hosts.facts.get(node)
        if uid or facts is None or self._room_made is problem:
            return False
        if places.find_misfit(self._room_made, node) is not None:
            return False
        found = find_victims(problem.pod, facts, places.hosts, delegated=places.delegated)
        return found is not None


def is_possible(plan: Plan, fleet: Fleet) -> bool:
    """True if ``plan`` is still possible in ``fleet``, which may have changed since it was made."""
    gone = {m.uid for m in plan.ends} | {s.mover.uid for s in plan.moves if s.mover is not None}
    for step in plan.steps:
        node = fleet.nodes.get(step.gpu.node)
        state = next((s for s in node.gpus if s.id == step.gpu), None) if node else None
        geometry = state.gpu.geometry if state is not None else None
        profile = geometry.by_name(step.profile) if geometry is not None else None
        if state is None or geometry is None or profile is None or not state.takes_slices:
            return False
        stay = (h.occupant for h in state.holdings if h.claim_uid not in gone)
        usage = geometry.usage(o for o in stay if o is not None)
        if not geometry.fits(usage, profile, step.occupant.placement):
            return False
    return True
