"""The search for the devices that serve a problem together on one node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from dra.allocator.fleet import Fleet, GpuFingerprints, NodeGpus
from dra.allocator.gpustate import GpuState
from dra.allocator.ongoing import Budget, TooHardError
from dra.allocator.places import preference
from dra.allocator.problem import Decision, OpenRequest, Problem
from dra.allocator.score import NO_WEIGHTS, Cost, Policy, find_policy
from dra.allocator.search.combine import FittingGpu, combine, first_fit
from dra.allocator.search.constraints import (
    Allowed,
    Constrained,
    ConstraintRules,
    Vector,
    WantType,
    all_of,
    group_wants,
)
from dra.allocator.search.options import (
    GpuWants,
    Option,
    find_options,
    nothing,
    segmented,
)
from dra.cel.kinds import Match
from dra.cel.offers import GpuKind
from dra.claims.allocation import MAX_RESULTS
from dra.claims.wants import ClaimWants
from dra.gpu.devices import PARENT, PCIE_ROOT
from dra.gpu.inventory import Gpu

_NODE, _GPU = 10, 5
"""Steps to look at a node, and at each of its GPUs."""

_FINGERPRINT = attrgetter("fingerprint")


class Solution(NamedTuple):
    """Cost of serving a problem on a node, and one option per GPU that gives something.

    ``alike``: by type, the first type that the same devices of the node would serve; devices for
    all of these types are given as of the first one.
    """

    cost: Cost
    options: list[Option]
    alike: Sequence[int]


class Search:
    """Search of many nodes for one problem; results are cached per GPU state.

    ``claims``: those of ``problem``, or the same with one alternative for each request. ``fleet``
    may be replaced by what it has become.
    """

    def __init__(
        self,
        problem: Problem,
        fleet: Fleet,
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
        self._of_gpus: dict[tuple[int, str], tuple[Gpu, Match]] = {}
        self._options: dict[tuple[object, ...], list[Option]] = {}
        self._budget = budget or Budget()

    @cached_property
    def wanted(self) -> dict[WantType, list[OpenRequest]]:
        """Wants by type, in the order in which they are asked for."""
        shared = bool(self.fleet.shared)
        return group_wants(self.claims, self.fleet.kinds, shared=shared)

    @cached_property
    def types(self) -> list[WantType]:
        """The types of ``wanted``; an ``index`` in this class is one into this list."""
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
    def _policies(self) -> list[Policy]:
        """The placement policy of each type, in the order of ``types``.

        Each policy has numbers of its own in a cost, so that costs of several types can be added.
        """
        idle, names = self.fleet.has_idle, {kind.policy for kind in self.types}
        named = {n: find_policy(n, namespace=self.namespace, idle=idle) for n in names}
        return segmented([named[kind.policy] for kind in self.types])

    @cached_property
    def by_fingerprint(self) -> bool:
        """True if nodes whose GPUs are in equal states serve the problem alike.

        They do, unless a selector looks at what tells one GPU from another, or a constraint at what
        only some GPUs of a node share, which differs between nodes.
        """
        return not self._shared and not self.telling

    @cached_property
    def _shared(self) -> bool:
        """True if a constraint compares an attribute that only some GPUs of a node share."""
        return any(c.attribute == PCIE_ROOT for c in self.constraints)

    @cached_property
    def telling(self) -> list[int]:
        """The types whose selectors may tell GPUs apart."""
        tells_apart = self.fleet.kinds.tells_gpus_apart
        return [i for i, kind in enumerate(self.types) if tells_apart(kind.expressions)]

    @cached_property
    def together(self) -> bool:
        """True if one GPU is to give everything."""
        return any(
            not c.distinct
            and c.attribute.removeprefix(f"{self.fleet.driver}/") == PARENT
            and all(c in kind.constraints for kind in self.types)
            for c in self.constraints
        )

    @property
    def namespace(self) -> str:
        """Namespace of the pod."""
        return self.problem.pod.key[0]

    @cached_property
    def indices(self) -> range:
        """The indices of ``types``."""
        return range(len(self.types))

    def match(self, state: GpuState, index: int) -> Match:
        """Offers of a GPU that would serve the wants of type ``index``. Raises SelectorError."""
        expressions = self.types[index].expressions
        if index in self.telling:
            found = self._of_gpus.get((index, state.gpu.uuid))
            if found is None or found[0] is not state.gpu:
                found = state.gpu, self.fleet.kinds.match(expressions, state.kind, state.gpu)
                self._of_gpus[index, state.gpu.uuid] = found
            return found[1]
        known = self._matches.get((index, state.kind))
        if known is None:
            known = self.fleet.kinds.match_kind(expressions, state.kind)
            self._matches[index, state.kind] = known
        return known

    def groups(self, fingerprints: Collection[Hashable] | None = None) -> Iterable[Sequence[str]]:
        """Groups of nodes that serve the problem alike, each in name order.

        ``fingerprints``: only nodes that have one of these. Where selectors tell GPUs apart each
        node is a group: whether it is like another is known only when it is looked at.
        """
        alike = self.fleet.alike
        found: Iterable[Sequence[str]] = alike.values()
        if fingerprints is not None:
            found = [alike[fingerprint] for fingerprint in fingerprints if fingerprint in alike]
        return [*found] if self.by_fingerprint else [[name] for names in found for name in names]

    @cached_property
    def node_steps(self) -> int:
        """Steps, for each GPU of a node, to find out if the node is like one that was searched."""
        return 0 if self.by_fingerprint else 1 + len(self.telling)

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
        """The cheapest way to serve the target on the GPUs of one node.

        None if there is none, or if the search was too hard. ``fingerprints``: those of ``gpus``,
        where they are at hand.
        """
        if not self.by_fingerprint or self._everything:
            return self._of_useful(self._useful(gpus))
        # A decision looks at some hundred nodes: those that are alike need no loop in Python.
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
        """The GPUs that could give something; of equal ones no more than there are to give."""
        if self._everything:
            return gpus
        most = len(gpus) if self._shared else sum(self.target)
        useful: list[GpuState] = []
        counts: dict[Hashable, int] = {}
        for state in gpus:
            look = self._look(state)
            if look not in self._gives:
                rooms = (self.has_room(state, i) for i in self.indices)
                self._gives[look] = all(rooms) if self.together else any(rooms)
            if self._gives[look] and counts.get(look, 0) < most:
                counts[look] = counts.get(look, 0) + 1
                useful.append(state)
        return useful

    def has_room(self, state: GpuState, index: int) -> bool:
        """True if a GPU could give a device of type ``index`` now. Raises SelectorError."""
        if state.blocked or state.whole_held:
            return False
        for offer in self.match(state, index).offers:
            if offer.profile is None or offer.shared:
                if state.gives(offer.profile, self.types[index].ask, self.namespace):
                    return True
            elif state.table and state.table.moves(state.usage, offer.profile):
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
        if target is None or self.most_of_a_claim(target) > MAX_RESULTS:
            return None
        constrained = Constrained(self.types, gpus, allowed, driver=self.fleet.driver)
        if not all(map(any, zip(*constrained.allowed, strict=True))):
            return None
        alike = self._alike(constrained.allowed)
        target = tuple(
            sum(number for number, first in zip(target, alike, strict=True) if first == index)
            for index in self.indices
        )
        rules = [constrained.rules(i) for i in range(len(gpus))]
        try:
            options = [
                self._options_of(state, constrained.allowed[i], rules[i], target)
                for i, state in enumerate(gpus)
            ]
            found = combine(options, target, constrained.members, self._budget)
        except TooHardError:
            if any(o.shared for group in constrained.allowed for offers in group for o in offers):
                raise
            self._budget.open_node()
            fitting = map(FittingGpu, gpus, constrained.allowed, rules)
            found = first_fit([*fitting], target, self._budget)
        return Solution(*found, alike) if found is not None else None

    def _options_of(
        self, state: GpuState, allowed: Allowed, rules: ConstraintRules, target: Vector
    ) -> list[Option]:
        """The sets of devices, of what is ``allowed``, that a GPU could give, up to ``target``.

        Raises:
            TooHardError: there are more sets than the budget suffices for.
        """
        if state.blocked or state.whole_held or not any(allowed):
            return [nothing(len(target))]
        key = (state.fingerprint, tuple(allowed), target, rules.key)
        known = self._options.get(key)
        if known is None:
            wants = GpuWants(self.types, target, self.namespace, allowed, rules, self._policies)
            weights = self.fleet.weights(state.table) if state.table else NO_WEIGHTS
            known = self._options[key] = find_options(state, wants, weights, self._budget)
        return known

    def _alike(self, allowed: Sequence[Allowed]) -> Sequence[int]:
        """By type, the first type that the same devices serve; their order is not tried."""
        if len(self.types) == 1:
            return (0,)
        first: dict[Hashable, int] = {}
        found = []
        for index, kind in enumerate(self.types):
            offers = index if kind.everything else tuple(group[index] for group in allowed)
            key = offers, kind.constraints, kind.policy, kind.ask, kind.uid
            found.append(first.setdefault(key, index))
        return found

    def target_on(self, gpus: Sequence[GpuState]) -> Vector | None:
        """Number of devices of each type that a node is to give, None where it never could."""
        return self._target_of([[self.match(s, i).offers for i in self.indices] for s in gpus])

    def _target_of(self, allowed: Sequence[Allowed]) -> Vector | None:
        target = list(self.target)
        for index, kind in enumerate(self.types):
            if kind.everything:
                found = all_of([offers[index] for offers in allowed])
                if not found:
                    return None
                target[index] = found * len(self.wants[index])
        return tuple(target)

    def most_of_a_claim(self, target: Vector) -> int:
        """The most devices that one claim gets where a node gives ``target``."""
        found = Counter[str]()
        for kind, group, number in zip(self.types, self.wants, target, strict=True):
            for request in group:
                each = number // len(group) if kind.everything else request.want.count
                found[request.claim.uid] += each
        return max(found.values())

    def decision(self, node: NodeGpus, gpus: Sequence[GpuState] = ()) -> Decision | None:
        """The solution on ``node`` as devices, handed out to the requests; None without one.

        ``gpus``: its GPUs in supposed states, instead of their present ones.
        """
        gpus = gpus or node.gpus
        solution = self.solution(gpus)
        if solution is None:
            return None
        waiting: list[list[OpenRequest]] = [[] for _ in self.indices]
        for first, group in zip(solution.alike, self.wants, strict=True):
            for request in group:
                want = request.want
                waiting[first] += [request] * (MAX_RESULTS if want.everything else want.count)
        picks = []
        for state, option in zip(self._useful(gpus), solution.options, strict=True):
            for device in option.devices:
                request = waiting[device.type].pop(0)
                picks.append(request.pick(state, device.offer, device.placement))
        return Decision(node.inventory.node, node.inventory.pool, tuple(picks))
