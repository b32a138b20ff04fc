"""What can be had now: GPUs by market and kind, and single devices, best first.

Most claims ask for one device. For them the cluster is a few hundred distinct GPU states, not
thousands of nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from controller.gpustate import GpuState
from controller.market import Market
from dra.geometry import Placement
from dra.market import GpuId
from dra.score import Key, Policy, Weights
from dra.selectors.kinds import GpuKind, Match, Offer


@dataclass(frozen=True, slots=True)
class Candidate:
    """One slice that would serve a want of one device. Lower costs are better."""

    cost: Key
    state: GpuState
    offer: Offer
    placement: Placement


@dataclass(frozen=True, slots=True)
class _Stream:
    """A profile of a market, and by kind the offer that stands for it."""

    market: Market
    size: int
    rank: int
    offers: dict[GpuKind, Offer]


class Stock:
    """The GPUs that take new slices, and how many are given out whole."""

    def __init__(self) -> None:
        self.whole = 0
        self._members: dict[Market, dict[GpuKind, dict[GpuId, GpuState]]] = {}
        self._states: dict[GpuId, GpuState] = {}

    def enter(self, state: GpuState) -> None:
        """Take a GPU in, in its present state."""
        if state.market is None:
            self.whole += 1
        elif state.counted:
            state.market.enter(state.id, state.usage, instances=state.instances)
            kinds = self._members.setdefault(state.market, {})
            kinds.setdefault(state.kind, {})[state.id] = state
            self._states[state.id] = state

    def leave(self, state: GpuState) -> None:
        """Take it out; it may not have changed since it was taken in."""
        if state.market is None:
            self.whole -= 1
        elif self._states.pop(state.id, None) is not None:
            state.market.leave(state.id)
            kinds = self._members[state.market]
            del kinds[state.kind][state.id]
            if not kinds[state.kind]:
                del kinds[state.kind]

    def candidates(
        self,
        match: Callable[[GpuState], Match],
        policy: Policy,
        weights: Callable[[Market], Weights],
    ) -> Iterator[Candidate]:
        """Every slice that ``match`` lets through: smaller profiles, then lower costs, first.

        Ties go to the lower node name, then the lower GPU. ``match`` must answer alike for GPUs of
        one kind. Raises what it raises.
        """
        streams = sorted(self._streams(match), key=lambda s: s.size)
        for _, group in groupby(streams, key=lambda s: s.size):
            runs = [self._run(s, policy, weights(s.market)) for s in group]
            for _, candidate in heapq.merge(*runs, key=lambda entry: entry[0]):
                yield candidate

    def _streams(self, match: Callable[[GpuState], Match]) -> Iterator[_Stream]:
        for market, kinds in self._members.items():
            found: dict[int, _Stream] = {}
            for kind, states in kinds.items():
                for rank, offer in enumerate(match(next(iter(states.values()))).offers):
                    if offer.profile is not None:
                        stream = found.setdefault(
                            offer.profile.id, _Stream(market, offer.size, rank, {})
                        )
                        stream.offers[kind] = offer
            yield from found.values()

    def _run(
        self, stream: _Stream, policy: Policy, weights: Weights
    ) -> Iterator[tuple[tuple[Key, GpuId, int], Candidate]]:
        profile = next(iter(stream.offers.values())).profile
        if profile is None:
            return
        for found in stream.market.index.offers(profile, policy, weights):
            state = self._states[found.gpu]
            offer = stream.offers.get(state.kind)
            if offer is not None:
                cost = (float(offer.size), *found.key)
                candidate = Candidate(cost, state, offer, found.move.placement)
                yield (cost, found.gpu, stream.rank), candidate
