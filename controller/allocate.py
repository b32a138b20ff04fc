"""The decision: which node, which GPUs, which placements serve all claims of a pod together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from controller.fleet import Fleet, NodeGpus
from controller.gpustate import GpuState
from controller.hosts import Hosts
from controller.joint import (
    Option,
    Pricing,
    Vector,
    combine,
    nothing,
    slice_options,
    whole_options,
)
from controller.kinds import Match, Offer
from controller.nodefit import misfit
from controller.nodeselector import matches_selector
from controller.pods import Pod
from controller.wants import DEFAULT_POLICY, ClaimWants, SameAttribute, Want
from dra.devices import gpu_attributes, slice_attributes
from dra.geometry import Placement
from dra.inventory import ClaimRef
from dra.names import gpu_name, mig_device
from dra.score import POLICIES, Key

_MAX_COMBINATIONS = 4096

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
    """One device for one request; no placement for a whole GPU."""

    claim: ClaimRef
    request: str
    gpu: str
    device: str
    profile: str
    placement: Placement | None


@dataclass(frozen=True, slots=True)
class Decision:
    """What to allocate, all on one node."""

    node: str
    pool: str
    picks: tuple[Pick, ...]

    def of(self, claim: ClaimRef) -> tuple[Pick, ...]:
        """The devices of one claim."""
        return tuple(p for p in self.picks if p.claim.uid == claim.uid)


@dataclass(frozen=True, slots=True)
class _Type:
    """Wants that the same devices would serve, under the same constraints."""

    expressions: tuple[str, ...]
    constraints: tuple[SameAttribute, ...]


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
        """The best allocation, or None when no node has one."""
        search = Search(problem, self._fleet)
        best: tuple[Key, NodeGpus, list[Option]] | None = None
        for name in sorted(self._fleet.nodes):
            node = self._fleet.nodes[name]
            found = search.solution(node)
            if found is None or (best is not None and found[0] >= best[0]):
                continue
            if not self.node_misfit(problem, name, delegated):
                best = (found[0], node, found[1])
        return None if best is None else search.decision(best[1], best[2])


class Search:
    """One problem on many nodes: what is worked out for a state of a GPU is kept for its equals."""

    def __init__(self, problem: Problem, fleet: Fleet) -> None:
        self._fleet = fleet
        grouped: dict[_Type, list[Want]] = {}
        self.constraints = [c for claim in problem.claims for c in claim.constraints]
        for want in (w for claim in problem.claims for w in claim.wants):
            bound = tuple(c for c in self.constraints if c.covers(want))
            grouped.setdefault(_Type(want.expressions, bound), []).append(want)
        self.types = list(grouped)
        self.wants = list(grouped.values())
        self.target: Vector = tuple(sum(w.count for w in wants) for wants in self.wants)
        named = (c.policy for c in problem.claims if c.policy)
        self._policy = POLICIES[next(named, DEFAULT_POLICY)]
        self._options: dict[tuple[object, ...], list[Option]] = {}
        self._solutions: dict[int, Solution | None] = {}
        self._by_shape = not any(
            fleet.kinds.tells_gpus_apart(kind.expressions) for kind in self.types
        )

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
        best: Solution | None = None
        for chosen in self._settings(node, allowed):
            found = combine(
                [
                    self._gpu_options(state, self._narrowed(state, offers, chosen))
                    for state, offers in zip(node.gpus, allowed, strict=True)
                ],
                self.target,
            )
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        return best

    def decision(self, node: NodeGpus, options: list[Option]) -> Decision:
        """The devices that a solution stands for, handed out to the requests."""
        waiting = [[w for w in wants for _ in range(w.count)] for wants in self.wants]
        picks = []
        for state, option in zip(node.gpus, options, strict=True):
            for grant in option.grants:
                want = waiting[grant.type].pop(0)
                picks.append(_pick(want, state, grant.offer, grant.placement))
        return Decision(node.inventory.node, node.inventory.pool, tuple(picks))

    def _settings(
        self, node: NodeGpus, allowed: list[list[tuple[Offer, ...]]]
    ) -> Iterable[dict[SameAttribute, object]]:
        """Every choice of one value per constrained attribute that the node's devices have."""
        if not self.constraints:
            return [{}]
        values: list[list[object]] = []
        for constraint in self.constraints:
            found: dict[object, None] = {}
            for state, offers in zip(node.gpus, allowed, strict=True):
                for kind, group in zip(self.types, offers, strict=True):
                    if constraint in kind.constraints:
                        found |= {self._value(state, o, constraint): None for o in group}
            values.append([v for v in found if v is not None])
        choices = (dict(zip(self.constraints, choice, strict=True)) for choice in product(*values))
        return (choice for choice, _ in zip(choices, range(_MAX_COMBINATIONS), strict=False))

    def _narrowed(
        self,
        state: GpuState,
        offers: list[tuple[Offer, ...]],
        chosen: Mapping[SameAttribute, object],
    ) -> list[tuple[Offer, ...]]:
        if not chosen:
            return offers
        return [
            tuple(
                o
                for o in group
                if all(self._value(state, o, c) == chosen[c] for c in kind.constraints)
            )
            for kind, group in zip(self.types, offers, strict=True)
        ]

    def _value(self, state: GpuState, offer: Offer, constraint: SameAttribute) -> object:
        """The value of a constrained attribute, None where the device has none."""
        if offer.profile is None:
            attributes = gpu_attributes(state.gpu, state.inventory)
        else:
            attributes = slice_attributes(state.gpu, offer.profile, state.inventory)
        name = constraint.attribute.removeprefix(f"{self._fleet.driver}/")
        field_ = attributes.get(name)
        return None if field_ is None else next(iter(field_.items()))

    def _gpu_options(self, state: GpuState, allowed: list[tuple[Offer, ...]]) -> list[Option]:
        if state.blocked or state.whole_held or not any(allowed):
            return [nothing(len(self.types))]
        if state.market is None:
            free = not state.holdings
            return whole_options(self.target, allowed) if free else [nothing(len(self.types))]
        key = (id(state.market), state.usage, state.instances, tuple(allowed))
        known = self._options.get(key)
        if known is None:
            market = state.market
            pricing = Pricing(market.table, self._policy, self._fleet.markets.weights(market))
            known = self._options[key] = slice_options(
                state.usage, state.instances, pricing, target=self.target, allowed=allowed
            )
        return known


def _pick(want: Want, state: GpuState, offer: Offer, placement: Placement | None) -> Pick:
    gpu = state.gpu
    if offer.profile is None or placement is None:
        return Pick(want.claim, want.request, gpu.name, gpu_name(gpu.minor), "", None)
    device = mig_device(
        gpu.minor, offer.profile.name, profile_id=offer.profile.id, start=placement.start
    )
    return Pick(want.claim, want.request, gpu.name, str(device), offer.profile.name, placement)
