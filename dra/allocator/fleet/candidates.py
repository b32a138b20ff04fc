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
from dra.allocator.fleet.view import Candidate, Pricing
from dra.allocator.scoring.geometry_index import Market
from dra.allocator.scoring.geometry_weights import GpuId
from dra.allocator.scoring.score import Cost, Policy, Situation, Weights
from dra.cel.kinds import GpuKind, Kinds, Offer
from dra.common.cache import BoundedCache
from dra.gpu.geometry import Placement, Profile, Usage

_SHELVES_BYTES = 16 * 2**20


_Entry = tuple[Cost, GpuId, int, Candidate]


@dataclass(frozen=True, slots=True)
class _Stream:
    """A profile of a market, and by kind the offer that stands for it."""

    market: Market
    profile: Profile
    size: int
    rank: int
    offers: dict[GpuKind, Offer] = field(default_factory=dict)


_Shelf = list[list[_Stream]]
"""Offers of the present kinds that selectors select: equal sizes together, small first."""


class Stock:
    """The GPUs that take new slices, and how many are given out whole."""

    def __init__(self, kinds: Kinds) -> None:
        self.whole = 0
        self._kinds = kinds
        self._members: dict[Market, dict[GpuKind, int]] = {}
        self._states: dict[GpuId, GpuState] = {}
        self._shelves: BoundedCache[tuple[str, ...], _Shelf] = BoundedCache(
            _SHELVES_BYTES, weigh=_shelf_weight
        )

    def enter(self, state: GpuState) -> None:
        """Take a GPU in, in its present state."""
        if state.market is None:
            self.whole += 1
        elif state.counted:
            state.market.enter(state.id, state.usage, instances=state.instances)
            if state.kind not in self._members.get(state.market, ()):
                self._open(state.market, state.kind)
            self._members[state.market][state.kind] += 1
            self._states[state.id] = state

    def leave(self, state: GpuState) -> None:
        """Take it out; it may not have changed since it was taken in."""
        if state.market is None:
            self.whole -= 1
        elif self._states.pop(state.id, None) is not None:
            state.market.leave(state.id)
            self._members[state.market][state.kind] -= 1

    def candidates(
        self,
        expressions: tuple[str, ...],
        policy: Policy,
        weights: Pricing,
    ) -> Iterator[Candidate]:
        """Every slice that all ``expressions`` select: smaller profiles, then lower costs, first.

        Ties go to the lower node name, then the lower GPU. The expressions must not tell GPUs of a
        kind apart. Raises SelectorError.
        """
        for streams in self._shelves.get(expressions, lambda: self._shelf(expressions)):
            runs = [self._run(s, policy, weights(s.market)) for s in streams]
            for *_, candidate in heapq.merge(*runs):
                yield candidate

    def best(
        self,
        expressions: tuple[str, ...],
        policy: Policy,
        weights: Pricing,
        states: Iterable[GpuState],
    ) -> Candidate | None:
        """The first of ``candidates`` that is of one of the GPUs ``states``, found by these."""
        gpus = [state for state in states if state.counted]
        for streams in self._shelves.get(expressions, lambda: self._shelf(expressions)):
            offered = [
                entry
                for stream in streams
                for entry in self._best(stream, policy, weights(stream.market), gpus)
            ]
            if offered:
                return min(offered, key=_by_order)[-1]
        return None

    def _open(self, market: Market, kind: GpuKind) -> None:
        """The first GPU of a kind comes: what selectors select is to be asked anew.

        Kinds without GPUs are forgotten only now, because the last GPU of one leaves whenever it
        changes.
        """
        self._members.setdefault(market, {})[kind] = 0
        for known in self._members.values():
            for empty in [k for k, count in known.items() if not count and k is not kind]:
                del known[empty]
        self._shelves = BoundedCache(_SHELVES_BYTES, weigh=_shelf_weight)

    def _shelf(self, expressions: tuple[str, ...]) -> _Shelf:
        by_size = attrgetter("size")
        streams = sorted(self._streams(expressions), key=by_size)
        return [[*group] for _, group in groupby(streams, key=by_size)]

    def _streams(self, expressions: tuple[str, ...]) -> Iterator[_Stream]:
        for market, kinds in self._members.items():
            found: dict[int, _Stream] = {}
            for kind in kinds:
                for offer in self._kinds.match_kind(expressions, kind).offers:
                    profile = offer.profile
                    if profile is not None:
                        stream = _Stream(market, profile, offer.size, kind.offers.index(offer))
                        found.setdefault(profile.id, stream).offers[kind] = offer
            yield from found.values()

    def _run(self, stream: _Stream, policy: Policy, weights: Weights) -> Iterator[_Entry]:
        """In an order that the first three tell alone."""
        size = float(stream.size)
        for key, gpu, move in stream.market.index.offers(stream.profile, policy, weights):
            state = self._states[gpu]
            offer = stream.offers.get(state.kind)
            if offer is not None:
                cost = (size, *key)
                yield cost, gpu, stream.rank, Candidate(cost, state, offer, move.placement)

    def _best(
        self, stream: _Stream, policy: Policy, weights: Weights, gpus: Iterable[GpuState]
    ) -> Iterator[_Entry]:
        """Of each GPU that has any, the entry of ``_run`` that comes first."""
        known: dict[tuple[Usage, int], tuple[Cost, Placement] | None] = {}
        table = stream.market.table
        for state in gpus:
            offer = stream.offers.get(state.kind)
            if offer is None:
                continue
            form = (state.usage, state.instances)
            if form not in known:
                situation = Situation(*form, table.geometry.memory_slices, weights)
                moves = table.moves(state.usage, stream.profile)
                judged = ((policy(situation, m), m.placement) for m in moves)
                known[form] = min(judged, default=None)
            if (first := known[form]) is not None:
                cost = (float(stream.size), *first[0])
                yield cost, state.id, stream.rank, Candidate(cost, state, offer, first[1])


def _by_order(entry: _Entry) -> tuple[Cost, GpuId, int]:
    return entry[:3]


def _shelf_weight(expressions: tuple[str, ...], shelf: _Shelf) -> int:
    return 500 + sum(map(len, expressions)) + 500 * sum(map(len, shelf))
