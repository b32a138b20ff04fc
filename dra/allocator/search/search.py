"""The search for the devices that serve a problem together on one node."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.fleet.view import FleetView, GpuFingerprints, NodeGpus
from dra.allocator.node_order import preference
from dra.allocator.problem import Decision, OpenRequest, Problem
from dra.allocator.scoring.idle import find_policy
from dra.allocator.scoring.score import Cost
from dra.allocator.search.budget import Budget, TooHardError
from dra.allocator.search.combine import combine
from dra.allocator.search.constraint_values import Vector
from dra.allocator.search.constraints import Constrained, WantType
from dra.allocator.search.gpu_options import GpuOptions
from dra.allocator.search.options import Option
from dra.allocator.search.pricing import segmented
from dra.allocator.search.wanted import group_wants, single_request
from dra.cel.kinds.memory import Match
from dra.cel.kinds.offers import GpuKind, Offer
from dra.claims.allocation import MAX_RESULTS
from dra.claims.requests.wants import ClaimWants
from dra.gpu.devices import PARENT, PCIE_ROOT

_NODE, _GPU = 10, 5
"""Steps to look at a node, and at each of its GPUs."""

_FINGERPRINT = attrgetter("fingerprint")


class Solution(NamedTuple):
    """Cost of serving a problem on a node, and one option per GPU that gives something."""

    cost: Cost
    options: list[Option]


class Search:
    """Search of many nodes for one problem; results are cached per GPU state.

    ``claims`` are those of ``problem``, or these with one choice for each request. ``fleet`` may
    be replaced by what it has become.
    """

    def __init__(
        self,
        problem: Problem,
        fleet: FleetView,
        budget: Budget | None = None,
        *,
        claims: Sequence[ClaimWants] = (),
    ) -> None:
        self.problem = problem
        self.fleet = fleet
        self.claims = claims or problem.claims
        self.constraints = [c for claim in self.claims for c in claim.constraints]
        self.nodes = preference(self.claims)
        self._solutions: dict[tuple[object, ...], Solution | None] = {}
        self._by_giving: dict[tuple[Hashable, ...], Solution | None] = {}
        self._gives: dict[Hashable, bool] = {}
        self._matches: dict[tuple[int, GpuKind], Match] = {}
        self._budget = budget or Budget()

    @cached_property
    def wanted(self) -> dict[WantType, list[OpenRequest]]:
        """Wants by type, in the order in which they are asked for."""
        shared = bool(self.fleet.candidates.shared)
        return group_wants(self.claims, self.fleet.kinds, shared=shared)

    @cached_property
    def types(self) -> list[WantType]:
        """The types of ``wanted``: below, an index is one of these."""
        return list(self.wanted)

    @cached_property
    def wants(self) -> list[list[OpenRequest]]:
        """Wants per type."""
        return list(self.wanted.values())

    @cached_property
    def target(self) -> Vector:
        """Number of wanted devices of each type."""
        return tuple(sum(request.want.count for request in group) for group in self.wants)

    @cached_property
    def _everything(self) -> bool:
        return any(kind.everything for kind in self.types)

    @cached_property
    def _gpu_options(self) -> GpuOptions:
        idle, namespace = self.fleet.candidates.has_idle, self.namespace
        names = {kind.policy for kind in self.types}
        named = {name: find_policy(name, namespace=namespace, idle=idle) for name in names}
        policies = segmented([named[kind.policy] for kind in self.types])
        return GpuOptions(self.types, policies, namespace=self.namespace, budget=self._budget)

    @property
    def asks_for(self) -> Hashable:
        """Equal for problems of one pod that the same devices solve."""
        return frozenset(zip(self.types, self.target, strict=True))

    @cached_property
    def by_fingerprint(self) -> bool:
        """True if nodes whose GPUs are in equal states serve it alike.

        They do, unless a selector looks at what tells one GPU from another, or a constraint at what
        some of them share: which do so is not the same on all nodes.
        """
        return not self._shared and not self.telling

    @cached_property
    def _shared(self) -> bool:
        """True if a constraint looks at what some GPUs of a node share and others do not."""
        return any(c.attribute == PCIE_ROOT for c in self.constraints)

    @cached_property
    def telling(self) -> list[int]:
        """The types whose selectors may tell GPUs apart."""
        tells_apart = self.fleet.kinds.tells_gpus_apart
        return [i for i, kind in enumerate(self.types) if tells_apart(kind.expressions)]

    @cached_property
    def _together(self) -> bool:
        """True if one GPU is to give everything."""
        return any(
            not c.distinct
            and c.attribute.removeprefix(f"{self.fleet.driver}/") == PARENT
            and all(c in kind.constraints for kind in self.types)
            for c in self.constraints
        )

    @property
    def namespace(self) -> str:
        """Of the pod."""
        return self.problem.pod.key[0]

    @cached_property
    def indices(self) -> range:
        """The indices of ``types``."""
        return range(len(self.types))

    @property
    def single(self) -> OpenRequest | None:
        """The one device that is wanted, if any GPU of a kind would serve it alike."""
        return single_request(self.claims, self.fleet.kinds)

    def match(self, state: GpuState, index: int) -> Match:
        """Offers of a GPU that would serve the wants of type ``index``. Raises SelectorError."""
        expressions = self.types[index].expressions
        if index in self.telling:
            return self.fleet.kinds.match(expressions, state.kind, state.gpu)
        known = self._matches.get((index, state.kind))
        if known is None:
            known = self.fleet.kinds.match_kind(expressions, state.kind)
            self._matches[index, state.kind] = known
        return known

    def groups(self, fingerprints: Collection[Hashable] | None = None) -> list[Sequence[str]]:
        """The nodes that serve it alike, in name order; of ``fingerprints`` only, if given."""
        if self.by_fingerprint:
            alike = self.fleet.alike
            if fingerprints is None:
                return [*alike.values()]
            return [alike[fingerprint] for fingerprint in fingerprints if fingerprint in alike]
        found: dict[Hashable, list[str]] = {}
        for fingerprint, names in self.fleet.alike.items():
            if fingerprints is not None and fingerprint not in fingerprints:
                continue
            for name in names:
                looks = self._tells(self.fleet.nodes[name].gpus)
                found.setdefault((fingerprint, looks), []).append(name)
        return [*found.values()]

    def _tells(self, gpus: Sequence[GpuState]) -> Hashable:
        """Traits that tell GPUs in equal states apart."""
        looks = tuple(map(self._look, gpus)) if self.telling else ()
        roots = dict[str, int]()
        numbers = (
            tuple(
                roots.setdefault(s.gpu.pcie_root, len(roots)) if s.gpu.pcie_root else -1
                for s in gpus
            )
            if self._shared
            else ()
        )
        return looks, numbers

    def _look(self, state: GpuState) -> Hashable:
        """Equal for GPUs of a node that could give the same."""
        if not self.telling:
            return state.fingerprint
        return state.fingerprint, *(self.match(state, index).offers for index in self.telling)

    def solution(
        self, gpus: Sequence[GpuState], fingerprints: GpuFingerprints | None = None
    ) -> Solution | None:
        """The cheapest way to serve the target on the GPUs of one node, None also if too hard.

        ``fingerprints`` are those of ``gpus``, where they are at hand.
        """
        if not self.by_fingerprint or self._everything:
            return self._of_useful(self._useful(gpus))
        # Some hundred nodes are looked at for a decision: no loop in Python for those alike.
        if fingerprints is None:
            fingerprints = tuple(map(_FINGERPRINT, gpus))
        gives = self._gives
        if not all(map(gives.__contains__, fingerprints)):
            self._useful(gpus)
        giving = tuple(filter(gives.get, fingerprints))
        try:
            return self._by_giving[giving]
        except KeyError:
            found = self._by_giving[giving] = self._of_useful(self._useful(gpus))
            return found

    def _of_useful(self, useful: Sequence[GpuState]) -> Solution | None:
        if not useful:
            return None
        fingerprints = tuple(map(_FINGERPRINT, useful))
        key = fingerprints if self.by_fingerprint else (*fingerprints, self._tells(useful))
        if key not in self._solutions:
            self._solutions[key] = self._try(useful)
        return self._solutions[key]

    def _useful(self, gpus: Sequence[GpuState]) -> Sequence[GpuState]:
        """Those that could give something, and of equals no more than there are devices to give."""
        if self._everything:
            return gpus
        most = len(gpus) if self._shared else sum(self.target)
        useful: list[GpuState] = []
        counts: dict[Hashable, int] = {}
        for state in gpus:
            look = self._look(state)
            if look not in self._gives:
                rooms = (self.has_room(state, i) for i in self.indices)
                self._gives[look] = all(rooms) if self._together else any(rooms)
            if self._gives[look] and counts.get(look, 0) < most:
                counts[look] = counts.get(look, 0) + 1
                useful.append(state)
        return useful

    def has_room(self, state: GpuState, index: int) -> bool:
        """True if a GPU could give a device of type ``index`` now. Raises SelectorError."""
        if state.blocked or state.whole_held:
            return False
        for offer in self.match(state, index).offers:
            if offer.profile is None:
                if state.gives_whole(self.types[index].ask, self.namespace):
                    return True
            elif offer.shared:
                if state.gives_share(offer.profile, self.types[index].ask, self.namespace):
                    return True
            elif state.geometry_index and state.geometry_index.table.moves(
                state.usage, offer.profile
            ):
                return True
        return False

    def _try(self, gpus: Sequence[GpuState]) -> Solution | None:
        self._budget.open_node()
        try:
            return self._solve(gpus)
        except TooHardError:
            self._budget.too_hard += 1
            return None

    def _solve(self, gpus: Sequence[GpuState]) -> Solution | None:
        self._budget.spend(_NODE + _GPU * len(gpus))
        allowed = [[self.match(state, i).offers for i in self.indices] for state in gpus]
        target = self._target_of(allowed)
        if target is None:
            return None
        constrained = Constrained(self.types, gpus, allowed, driver=self.fleet.driver)
        weights = self.fleet.weights
        options = [
            self._gpu_options.of(
                state, constrained.allowed[i], constrained.rules(i), target, weights=weights
            )
            for i, state in enumerate(gpus)
        ]
        found = combine(options, target, constrained.members, self._budget)
        return Solution(*found) if found is not None else None

    def _target_of(self, allowed: list[list[tuple[Offer, ...]]]) -> Vector | None:
        """Number of devices of each type that a node is to give, None where it cannot."""
        target = list(self.target)
        for index, kind in enumerate(self.types):
            if kind.everything:
                found = all_of([offers[index] for offers in allowed])
                if found is None or not found or found > MAX_RESULTS:
                    return None
                target[index] = found * len(self.wants[index])
        return tuple(target)

    def decision(self, node: NodeGpus, gpus: Sequence[GpuState] = ()) -> Decision | None:
        """The solution on ``node`` as devices, handed out to the requests; None without one.

        ``gpus`` are its GPUs in states to suppose, if not the present ones.
        """
        gpus = gpus or node.gpus
        solution = self.solution(gpus)
        if solution is None:
            return None
        waiting = [
            [a for a in group for _ in range(MAX_RESULTS if a.want.everything else a.want.count)]
            for group in self.wants
        ]
        picks = []
        for state, option in zip(self._useful(gpus), solution.options, strict=True):
            for device in option.devices:
                request = waiting[device.type].pop(0)
                picks.append(request.pick(state, device.offer, device.placement))
        return Decision(node.inventory.node, node.inventory.pool, tuple(picks))


def all_of(gpus: list[tuple[Offer, ...]]) -> int | None:
    """Number of devices that ``gpus`` offer together; None where slices overlap and "all" is void.

    Slices of one profile lie beside each other, those of different profiles do not.
    """
    if any(len(offers) > 1 for offers in gpus):
        return None
    return sum(
        len(offer.profile.placements) if offer.profile else 1 for offers in gpus for offer in offers
    )
