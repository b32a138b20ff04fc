"""A fleet as it would be with other claims on some GPUs, for questions of the kind "what if".

It shares all but those GPUs with the fleet that it is made of, which it leaves as it is.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.fleet.view import (
    Candidate,
    CandidatesView,
    FleetView,
    Holder,
    NodeGpus,
    WeightsOf,
)
from dra.allocator.scoring.geometry_index import GeometryIndex, GpuId
from dra.allocator.scoring.score import Cost, Policy, Situation, Weights
from dra.cel.kinds import Kinds


@dataclass(frozen=True, slots=True)
class Supposition:
    """Claims that are ``gone``; those ``added``, by UID, with what they hold."""

    gone: frozenset[str]
    added: Mapping[str, Holder]


class Overlay:
    """``fleet`` with ``nodes`` in the place of its own: what it would be as ``supposed``."""

    def __init__(
        self, fleet: FleetView, supposed: Supposition, nodes: Mapping[str, NodeGpus]
    ) -> None:
        self.driver = fleet.driver
        self.kinds = fleet.kinds
        self.geometry_indexes = fleet.geometry_indexes
        self.schedulers = fleet.schedulers
        self._fleet = fleet
        self._supposed = supposed
        self._nodes = nodes
        self._weights: dict[GeometryIndex, Weights] = {}
        self._changed = [
            (before, after)
            for name, node in nodes.items()
            for before, after in zip(fleet.nodes[name].gpus, node.gpus, strict=True)
            if before is not after
        ]
        self.candidates: CandidatesView = _OverlaidCandidates(
            fleet.candidates, self.kinds, [a for _, a in self._changed]
        )

    @cached_property
    def nodes(self) -> Mapping[str, NodeGpus]:
        """The nodes whose GPUs the controller allocates, by name."""
        return {**self._fleet.nodes, **self._nodes}

    @cached_property
    def alike(self) -> Mapping[Hashable, tuple[str, ...]]:
        """The nodes by fingerprint, in name order."""
        fingerprints = dict(self._fleet.alike)
        for name, node in self._nodes.items():
            before = self._fleet.nodes[name].fingerprint
            fingerprints[before] = tuple(n for n in fingerprints[before] if n != name)
            names = [*fingerprints.get(node.fingerprint, ())]
            insort(names, name)
            fingerprints[node.fingerprint] = tuple(names)
        return {fingerprint: names for fingerprint, names in fingerprints.items() if names}

    def weights(self, index: GeometryIndex) -> Weights:
        """Weights that slices of a geometry would have."""
        if index not in self._weights:
            census = index.census
            census = replace(census, feasible=[*census.feasible])
            for before, after in self._changed:
                for state, count in ((before, -1), (after, 1)):
                    if state.geometry_index is index and state.counted:
                        census.add(state.usage, count=count)
            self._weights[index] = self.geometry_indexes.weights_at(index, census)
        return self._weights[index]

    def profiles(self) -> frozenset[str]:
        """Names of the profiles that any node's GPUs have."""
        return self._fleet.profiles()

    def without(self, claim_uids: Collection[str], *, holding: Iterable[Holder] = ()) -> FleetView:
        """The fleet as it would be with this and another supposition."""
        gone = {*claim_uids}
        added = {uid: held for uid, held in self._supposed.added.items() if uid not in gone}
        added |= {ref.uid: (ref, allocation) for ref, allocation in holding}
        return self._fleet.without(self._supposed.gone | gone, holding=added.values())


_Entry = tuple[Cost, GpuId, int, Candidate]


class _OverlaidCandidates:
    """Those of ``fleet``, but of the GPUs ``changed`` what these could give."""

    def __init__(self, fleet: CandidatesView, kinds: Kinds, changed: Iterable[GpuState]) -> None:
        self._fleet = fleet
        self._kinds = kinds
        self._changed = {state.id: state for state in changed}

    @property
    def whole(self) -> int:
        """Number of GPUs given out whole: those stay who they are."""
        return self._fleet.whole

    @property
    def shared(self) -> int:
        """Number of GPUs that several claims may share, or slices of which."""
        return self._fleet.shared

    @property
    def has_idle(self) -> bool:
        """True if there are idle slices on any GPU."""
        return self._fleet.has_idle or any(state.idle for state in self._changed.values())

    def in_order(
        self, expressions: tuple[str, ...], policy: Policy, weights: WeightsOf
    ) -> Iterator[Candidate]:
        """Every slice that all ``expressions`` select, best first. Raises SelectorError."""
        found = self._fleet.in_order(expressions, policy, weights)
        kept = (known for known in found if known.state.id not in self._changed)
        added = self._entries(expressions, policy, weights, self._changed.values())
        yield from heapq.merge(kept, (c for *_, c in added), key=_by_cost)

    def best(
        self,
        expressions: tuple[str, ...],
        policy: Policy,
        weights: WeightsOf,
        states: Iterable[GpuState],
    ) -> Candidate | None:
        """The first of ``in_order`` that is of one of the GPUs ``states``, found by these."""
        same, changed = list[GpuState](), list[GpuState]()
        for state in states:
            (changed if state.id in self._changed else same).append(state)
        found = self._fleet.best(expressions, policy, weights, same)
        added = self._entries(expressions, policy, weights, changed)
        every = [c for c in (found, added[0][-1] if added else None) if c is not None]
        return min(every, key=_by_cost, default=None)

    def _entries(
        self,
        expressions: tuple[str, ...],
        policy: Policy,
        weights: WeightsOf,
        states: Iterable[GpuState],
    ) -> list[_Entry]:
        """All that these GPUs could give, in the order of ``in_order``."""
        found: list[_Entry] = []
        for state in states:
            index, kind = state.geometry_index, state.kind
            if index is None or not state.counted:
                continue
            situation = Situation(state.usage, state.instances, weights(index), state.idle)
            for offer in self._kinds.match_kind(expressions, kind).offers:
                if offer.profile is None:
                    continue
                rank = kind.offers.index(offer)
                for move in index.table.moves(state.usage, offer.profile):
                    cost = (float(offer.size), *policy(situation, move))
                    entry = Candidate(cost, state, offer, move.placement)
                    found.append((cost, state.id, rank, entry))
        found.sort(key=lambda entry: entry[:3])
        return found


def _by_cost(candidate: Candidate) -> tuple[Cost, GpuId]:
    return candidate.cost, candidate.state.id
