"""The decision: which node, which GPUs, which placements serve all claims of a pod together."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from controller.constraints import Constrained, WantType
from controller.fleet import Fleet, NodeGpus
from controller.gpustate import GpuState
from controller.joint import (
    Marks,
    Option,
    Pricing,
    Vector,
    combine,
    nothing,
    segmented,
    slice_options,
    whole_options,
)
from controller.nodechoice import node_tiers, preference
from dra.allocation import MAX_RESULTS
from dra.alternatives import choices
from dra.geometry import Placement
from dra.hosts import Hosts
from dra.inventory import ClaimRef
from dra.names import gpu_name, mig_device
from dra.nodefit import misfit
from dra.nodeselector import matches_selector
from dra.pods import Pod
from dra.score import POLICIES, Key, Policy
from dra.selectors.kinds import Match, Offer
from dra.wants import ClaimWants, Want

Solution = tuple[Key, list[Option]]
"""What serving a problem on a node costs, and one option per GPU of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """All claims of a pod that are to be allocated, and where the pod may go.

    ``pins`` are the node selectors of its claims that are allocated. ``excluded`` maps nodes to
    the reason why they are left out.
    """

    pod: Pod
    claims: tuple[ClaimWants, ...]
    pins: tuple[Mapping[str, Any], ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pick:
    """One device for one request; no placement for a whole GPU. ``admin``: only to look at."""

    claim: ClaimRef
    request: str
    gpu: str
    device: str
    profile: str
    placement: Placement | None
    admin: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """What to allocate, all on one node."""

    node: str
    pool: str
    picks: tuple[Pick, ...]

    def of(self, claim: ClaimRef) -> tuple[Pick, ...]:
        """The devices of one claim."""
        return tuple(p for p in self.picks if p.claim.uid == claim.uid)


class Asked(NamedTuple):
    """What a claim wants."""

    claim: ClaimRef
    want: Want

    def at(self, state: GpuState, offer: Offer, placement: Placement) -> Decision:
        """The decision to serve it by this slice, where it is all that is wanted."""
        pick = self.pick(state, offer, placement)
        return Decision(state.inventory.node, state.inventory.pool, (pick,))

    def pick(self, state: GpuState, offer: Offer, placement: Placement | None) -> Pick:
        """A device for it; no placement for a whole GPU."""
        claim, request, gpu = self.claim, self.want.request, state.gpu
        if offer.profile is None or placement is None:
            return Pick(claim, request, gpu.name, gpu_name(gpu.minor), "", None)
        profile = offer.profile
        device = mig_device(gpu.minor, profile.name, profile_id=profile.id, start=placement.start)
        return Pick(claim, request, gpu.name, str(device), profile.name, placement)


class Allocator:
    """Decides on the state of ``fleet`` and ``hosts`` at the time of the call; changes nothing."""

    def __init__(self, fleet: Fleet, hosts: Hosts) -> None:
        self._fleet = fleet
        self._hosts = hosts

    def node_misfit(self, problem: Problem, node: str, delegated: AbstractSet[str]) -> str:
        """Why the pod cannot go to ``node`` whatever its GPUs; empty when it can."""
        pod = problem.pod
        facts = self._hosts.facts.get(node)
        if facts is None:
            return "no such Node"
        if pod.node:
            return "" if pod.node == node else "pod is bound to another node"
        if not all(matches_selector(p, facts.labels, node) for p in problem.pins):
            return "claims of the pod are allocated elsewhere"
        if node in problem.excluded:
            return problem.excluded[node]
        used = self._hosts.used(node, without=pod.key)
        return misfit(pod.needs, facts, used, delegated=delegated)

    def decide(
        self, problem: Problem, delegated: AbstractSet[str] = frozenset()
    ) -> Decision | None:
        """The best allocation, or None when no node has one.

        An earlier alternative of a request goes before anything that speaks for a later one.
        """
        for claims in choices(problem.claims):
            chosen = problem if claims is problem.claims else replace(problem, claims=claims)
            decision = self._decide_chosen(chosen, delegated)
            if decision is not None:
                return decision
        return None

    def _decide_chosen(self, problem: Problem, delegated: AbstractSet[str]) -> Decision | None:
        search = Search(problem, self._fleet)
        asked = search.single
        if asked is not None and search.nodes.policy == "none":
            return self._decide_single(asked, search, problem, delegated)
        return self._decide_jointly(search, problem, delegated)

    def _decide_single(
        self, asked: Asked, search: Search, problem: Problem, delegated: AbstractSet[str]
    ) -> Decision | None:
        """One device, alike on GPUs of one kind: the first candidate on a node that fits."""
        want, weights = asked.want, self._fleet.markets.weights
        misfits: dict[str, bool] = {}
        for candidate in self._fleet.stock.candidates(
            want.expressions, POLICIES[want.policy], weights
        ):
            name = candidate.state.inventory.node
            if name not in misfits:
                misfits[name] = bool(self.node_misfit(problem, name, delegated))
            if not misfits[name]:
                return asked.at(candidate.state, candidate.offer, candidate.placement)
        if self._fleet.stock.whole:
            return self._decide_jointly(search, problem, delegated)
        return None

    def _decide_jointly(
        self, search: Search, problem: Problem, delegated: AbstractSet[str]
    ) -> Decision | None:
        tiers = node_tiers(search.nodes, self._fleet, self._hosts, pod=problem.pod.key)
        for names in tiers:
            best: tuple[Key, NodeGpus, list[Option]] | None = None
            for name in names:
                node = self._fleet.nodes[name]
                found = search.solution(node)
                if found is None or (best is not None and found[0] >= best[0]):
                    continue
                if not self.node_misfit(problem, name, delegated):
                    best = (found[0], node, found[1])
            if best is not None:
                return search.decision(best[1], best[2])
        return None


class Search:
    """One problem on many nodes: what is worked out for a state of a GPU is kept for its equals."""

    def __init__(self, problem: Problem, fleet: Fleet) -> None:
        self._problem = problem
        self._fleet = fleet
        self.constraints = [c for claim in problem.claims for c in claim.constraints]
        self.nodes = preference(problem.claims)
        self._options: dict[tuple[object, ...], list[Option]] = {}
        self._solutions: dict[int, Solution | None] = {}

    @cached_property
    def wanted(self) -> dict[WantType, list[Asked]]:
        """What is wanted, by type, in the order in which it is asked for."""
        grouped: dict[WantType, list[Asked]] = {}
        for claim in self._problem.claims:
            for want in claim.wants:
                bound = tuple(c for c in claim.constraints if c.covers(want))
                kind = WantType(want.expressions, bound, want.policy, want.everything)
                grouped.setdefault(kind, []).append(Asked(claim.claim.ref, want))
        return grouped

    @cached_property
    def types(self) -> list[WantType]:
        """The types of ``wanted``: below, an index is one of these."""
        return list(self.wanted)

    @cached_property
    def wants(self) -> list[list[Asked]]:
        """What is wanted, per type."""
        return list(self.wanted.values())

    @cached_property
    def target(self) -> Vector:
        """How many devices of each type are wanted."""
        return tuple(sum(asked.want.count for asked in group) for group in self.wants)

    @cached_property
    def _policies(self) -> list[Policy]:
        return segmented([POLICIES[kind.policy] for kind in self.types])

    @cached_property
    def _by_shape(self) -> bool:
        tells_apart = self._fleet.kinds.tells_gpus_apart
        return not any(tells_apart(kind.expressions) for kind in self.types)

    @property
    def single(self) -> Asked | None:
        """The one device that is wanted, if any GPU of a kind would serve it alike."""
        claim = self._problem.claims[0]
        if len(self._problem.claims) > 1 or len(claim.choices) != 1 or self.constraints:
            return None
        want = claim.choices[0][0]
        if want.count > 1 or want.everything:
            return None
        if self._fleet.kinds.tells_gpus_apart(want.expressions):
            return None
        return Asked(claim.claim.ref, want)

    def match(self, state: GpuState, index: int) -> Match:
        """What of a GPU would serve the wants of type ``index``. Raises SelectorError."""
        return self._fleet.kinds.match(
            self.types[index].expressions, state.kind, gpu=state.gpu, inventory=state.inventory
        )

    def solution(self, node: NodeGpus) -> Solution | None:
        """The cheapest way to serve the target on ``node``, kept for nodes of its shape."""
        if not self._by_shape:
            return self._solve(node)
        if node.shape not in self._solutions:
            self._solutions[node.shape] = self._solve(node)
        return self._solutions[node.shape]

    def _solve(self, node: NodeGpus) -> Solution | None:
        allowed = [
            [self.match(state, index).offers for index in range(len(self.types))]
            for state in node.gpus
        ]
        target = self._target_of(allowed)
        if target is None:
            return None
        constrained = Constrained(self.types, node.gpus, allowed, driver=self._fleet.driver)
        best: Solution | None = None
        for setting in constrained.settings():
            options = [
                self._gpu_options(
                    state, constrained.allowed(i, setting), constrained.marks(i), target
                )
                for i, state in enumerate(node.gpus)
            ]
            found = combine(options, target)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        return best

    def _target_of(self, allowed: list[list[tuple[Offer, ...]]]) -> Vector | None:
        """How many devices of each type a node is to give, None where it cannot."""
        target = list(self.target)
        for index, kind in enumerate(self.types):
            if kind.everything:
                found = all_of([offers[index] for offers in allowed])
                if found is None or not found or found > MAX_RESULTS:
                    return None
                target[index] = found * len(self.wants[index])
        return tuple(target)

    def decision(self, node: NodeGpus, options: list[Option]) -> Decision:
        """The devices that a solution stands for, handed out to the requests."""
        waiting = [
            [a for a in group for _ in range(MAX_RESULTS if a.want.everything else a.want.count)]
            for group in self.wants
        ]
        picks = []
        for state, option in zip(node.gpus, options, strict=True):
            for grant in option.grants:
                asked = waiting[grant.type].pop(0)
                picks.append(asked.pick(state, grant.offer, grant.placement))
        return Decision(node.inventory.node, node.inventory.pool, tuple(picks))

    def _gpu_options(
        self,
        state: GpuState,
        allowed: list[tuple[Offer, ...]],
        marks: Mapping[tuple[int, Offer], Marks],
        target: Vector,
    ) -> list[Option]:
        if state.blocked or state.whole_held or not any(allowed):
            return [nothing(len(target))]
        if state.market is None:
            return (
                [nothing(len(target))] if state.holdings else whole_options(target, allowed, marks)
            )
        market = state.market
        key = (
            id(market),
            state.usage,
            state.instances,
            tuple(allowed),
            target,
            tuple(marks.items()),
        )
        known = self._options.get(key)
        if known is None:
            pricing = Pricing(market.table, self._policies, self._fleet.markets.weights(market))
            known = self._options[key] = slice_options(
                state.usage,
                state.instances,
                pricing,
                target=target,
                allowed=allowed,
                marks=marks,
            )
        return known


def all_of(gpus: list[tuple[Offer, ...]]) -> int | None:
    """How many devices ``gpus`` offer together; None where slices overlap, so that "all" is void.

    Slices of one profile lie beside each other, those of different profiles do not.
    """
    if any(len(offers) > 1 for offers in gpus):
        return None
    return sum(
        len(offer.profile.placements) if offer.profile else 1 for offers in gpus for offer in offers
    )
