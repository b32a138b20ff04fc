"""Candidates that can be had now: GPUs by geometry and kind, and single devices, best first.

Most claims ask for one device. For them the cluster is a few hundred distinct GPU states, not
thousands of nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter

from dra.allocator.fleet.gpustate import GpuState
from dra.allocator.fleet.view import Candidate, WeightsOf
from dra.allocator.scoring.geometry_index import GeometryIndex, GpuId
from dra.allocator.scoring.score import Cost, Policy, Situation, Weights
from dra.cel.kinds import Kinds
from dra.cel.offers import GpuKind, Offer
from dra.common.cache import BoundedCache
from dra.gpu.geometry import Placement, Profile, Usage
from dra.gpu.inventory import IdleInstance

_SELECTED_BYTES = 16 * 2**20


_Entry = tuple[Cost, GpuId, int, Candidate]


@dataclass(frozen=True, slots=True)
class _ProfileOffers:
    """A profile of a geometry, and by kind the offer that stands for it."""

    index: GeometryIndex
    profile: Profile
    size: int
    rank: int
    offers: dict[GpuKind, Offer] = field(default_factory=dict)


_OffersBySize = list[list[_ProfileOffers]]
"""Offers of the present kinds that selectors select: equal sizes together, small first."""


class Candidates:
    """The GPUs that take new slices, and how many are given out whole, or shared."""

    def __init__(self, kinds: Kinds) -> None:
        self.whole = 0
        self.shared = 0
        self._idle = 0
        self._kinds = kinds
        self._members: dict[GeometryIndex, dict[GpuKind, int]] = {}
        self._states: dict[GpuId, GpuState] = {}
        self._selected: BoundedCache[tuple[str, ...], _OffersBySize] = BoundedCache(
            _SELECTED_BYTES, weigh=_weight
        )

    @property
    def has_idle(self) -> bool:
        """True if there are idle slices on any."""
        return bool(self._idle)

    def enter(self, state: GpuState) -> None:
        """Take a GPU in, in its present state."""
        if state.geometry_index is None:
            self.whole += 1
            self.shared += state.gpu.sharing is not None
        elif state.counted:
            state.geometry_index.put(
                state.id, state.usage, instances=state.instances, idle=state.idle
            )
            self._idle += bool(state.idle)
            self.shared += state.gpu.slice_sharing is not None
            if state.kind not in self._members.get(state.geometry_index, ()):
                self._open(state.geometry_index, state.kind)
            self._members[state.geometry_index][state.kind] += 1
            self._states[state.id] = state

    def leave(self, state: GpuState) -> None:
        """Take it out; it may not have changed since it was taken in."""
        if state.geometry_index is None:
            self.whole -= 1
            self.shared -= state.gpu.sharing is not None
        elif self._states.pop(state.id, None) is not None:
            state.geometry_index.drop(state.id)
            self._idle -= bool(state.idle)
            self.shared -= state.gpu.slice_sharing is not None
            self._members[state.geometry_index][state.kind] -= 1

    def in_order(
        self,
        expressions: tuple[str, ...],
        policy: Policy,
        weights: WeightsOf,
    ) -> Iterator[Candidate]:
        """Every slice that all ``expressions`` select: smaller profiles, then lower costs, first.

        Ties go to the lower node name, then the lower GPU. The expressions must not tell GPUs of a
        kind apart. Raises SelectorError.
        """
        for equals in self._selected.get(expressions, lambda: self._offers_by_size(expressions)):
            runs = [self._run(s, policy, weights(s.index)) for s in equals]
            for *_, candidate in heapq.merge(*runs) if len(runs) > 1 else runs[0]:
                yield candidate

    def best(
        self,
        expressions: tuple[str, ...],
        policy: Policy,
        weights: WeightsOf,
        states: Iterable[GpuState],
    ) -> Candidate | None:
        """The first of ``in_order`` that is of one of the GPUs ``states``, found by these."""
        gpus = [state for state in states if state.counted]
        for equals in self._selected.get(expressions, lambda: self._offers_by_size(expressions)):
            offered = [
                entry
                for profile_offers in equals
                for entry in self._best(profile_offers, policy, weights(profile_offers.index), gpus)
            ]
            if offered:
                return min(offered, key=_by_order)[-1]
        return None

    def _open(self, index: GeometryIndex, kind: GpuKind) -> None:
        """The first GPU of a kind comes: what selectors select is to be asked anew.

        Kinds without GPUs are forgotten only now, because the last GPU of one leaves whenever it
        changes.
        """
        self._members.setdefault(index, {})[kind] = 0
        for known in self._members.values():
            for empty in [k for k, count in known.items() if not count and k is not kind]:
                del known[empty]
        self._selected = BoundedCache(_SELECTED_BYTES, weigh=_weight)

    def _offers_by_size(self, expressions: tuple[str, ...]) -> _OffersBySize:
        by_size = attrgetter("size")
        offered = sorted(self._profile_offers(expressions), key=by_size)
        return [[*group] for _, group in groupby(offered, key=by_size)]

    def _profile_offers(self, expressions: tuple[str, ...]) -> Iterator[_ProfileOffers]:
        for index, kinds in self._members.items():
            found: dict[int, _ProfileOffers] = {}
            for kind in kinds:
                for offer in self._kinds.match_kind(expressions, kind).offers:
                    profile = offer.profile
                    if profile is not None:
                        profile_offers = _ProfileOffers(
                            index, profile, offer.size, kind.offers.index(offer)
                        )
                        found.setdefault(profile.id, profile_offers).offers[kind] = offer
            yield from found.values()

    def _run(
        self, profile_offers: _ProfileOffers, policy: Policy, weights: Weights
    ) -> Iterator[_Entry]:
        """Every slice that it offers, sorted by the first three fields."""
        size = float(profile_offers.size)
        for cost, gpu, move in profile_offers.index.ranked_moves(
            profile_offers.profile, policy, weights
        ):
            state = self._states[gpu]
            offer = profile_offers.offers.get(state.kind)
            if offer is not None:
                ranked = (size, *cost)
                yield (
                    ranked,
                    gpu,
                    profile_offers.rank,
                    Candidate(ranked, state, offer, move.placement),
                )

    def _best(
        self,
        profile_offers: _ProfileOffers,
        policy: Policy,
        weights: Weights,
        gpus: Iterable[GpuState],
    ) -> Iterator[_Entry]:
        """Of each GPU that has any, the entry of ``_run`` that comes first."""
        known: dict[tuple[Usage, int, tuple[IdleInstance, ...]], tuple[Cost, Placement] | None] = {}
        table = profile_offers.index.table
        for state in gpus:
            offer = profile_offers.offers.get(state.kind)
            if offer is None:
                continue
            seen = (state.usage, state.instances, state.idle)
            if seen not in known:
                situation = Situation(
                    state.usage,
                    state.instances,
                    weights,
                    state.idle,
                )
                moves = table.moves(state.usage, profile_offers.profile)
                judged = ((policy(situation, m), m.placement) for m in moves)
                known[seen] = min(judged, default=None)
            if (first := known[seen]) is not None:
                cost = (float(profile_offers.size), *first[0])
                yield cost, state.id, profile_offers.rank, Candidate(cost, state, offer, first[1])


def _by_order(entry: _Entry) -> tuple[Cost, GpuId, int]:
    return entry[:3]


def _weight(expressions: tuple[str, ...], offers: _OffersBySize) -> int:
    return 500 + sum(map(len, expressions)) + 500 * sum(map(len, offers))
