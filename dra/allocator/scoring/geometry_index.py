"""Index of the GPUs of one geometry by state: what could still be placed on them, and its worth.

A cluster has thousands of GPUs but few distinct states, so that a policy is asked once per state
and the GPUs of a state are taken in name order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from dra.allocator.scoring.moves import Move, MoveTable
from dra.allocator.scoring.score import (
    Census,
    Cost,
    Demand,
    Policy,
    Situation,
    Weights,
    scarcity_weights,
)
from dra.gpu.geometry import EMPTY, Geometry, Profile, Usage
from dra.gpu.inventory import IdleInstance

_KEPT = 64
"""Indexes that are kept though no GPU of theirs may be left."""


class GpuId(NamedTuple):
    """A GPU of the cluster; ``minor`` is the number in its name."""

    node: str
    minor: int


class RankedMove(NamedTuple):
    """One placement on one GPU. Lower costs are better."""

    cost: Cost
    gpu: GpuId
    move: Move


_State = tuple[Usage, int, tuple[IdleInstance, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """The GPUs in one state, in order."""

    usage: Usage
    instances: int
    idle: tuple[IdleInstance, ...]
    gpus: list[GpuId] = field(default_factory=list)


class GeometryIndex:
    """The GPUs of one geometry that take new slices, by what is on them. Not thread-safe."""

    def __init__(self, table: MoveTable) -> None:
        self.geometry = table.geometry
        self.table = table
        self.census = Census(table)
        self._weights: Weights | None = None
        self._states: dict[GpuId, _State] = {}
        self._groups: dict[_State, _Group] = {}
        self._moves: dict[int, dict[_State, tuple[_Group, tuple[Move, ...]]]] = {
            profile.id: {} for profile in self.geometry.profiles
        }

    def __len__(self) -> int:
        return len(self._states)

    def put(
        self, gpu: GpuId, usage: Usage, *, instances: int, idle: tuple[IdleInstance, ...] = ()
    ) -> None:
        """Add a GPU, or say what is on it now; ``instances`` counts what makes up ``usage``."""
        state = (usage, instances, idle)
        if self._states.get(gpu) == state:
            return
        self.drop(gpu)
        self._states[gpu] = state
        group = self._groups.get(state)
        if group is None:
            group = self._open(state)
        insort(group.gpus, gpu)
        self.census.add(usage)
        self._weights = None

    def drop(self, gpu: GpuId) -> None:
        """Forget a GPU, known or not."""
        state = self._states.pop(gpu, None)
        if state is None:
            return
        members = self._groups[state].gpus
        del members[bisect_left(members, gpu)]
        if not members:
            self._close(state)
        self.census.add(state[0], count=-1)
        self._weights = None

    def usage(self, gpu: GpuId) -> Usage | None:
        """Usage of a GPU; None for one that is not in this index."""
        state = self._states.get(gpu)
        return state[0] if state else None

    def forget_weights(self) -> None:
        """Have the weights worked out anew, because the demand has changed."""
        self._weights = None

    def weights(self, demand: Demand) -> Weights:
        """Weights of slices now; ``demand`` is the same until ``forget_weights`` is called."""
        if self._weights is None:
            self._weights = scarcity_weights(self.census, demand.shares(self.geometry))
        return self._weights

    def ranked_moves(
        self, profile: Profile, policy: Policy, weights: Weights
    ) -> Iterator[RankedMove]:
        """Every placement of ``profile`` on these GPUs, best first; ties by GPU, then start.

        ``weights`` are those of ``scarcity_weights``. Lazy: taking the first of 8,000 GPUs costs
        what the number of distinct states costs. The index must not change meanwhile.
        """
        heap: list[tuple[Cost, GpuId, int, int, list[GpuId], Move]] = []
        for group, moves in self._moves[profile.id].values():
            situation = Situation(group.usage, group.instances, weights, group.idle)
            gpus = group.gpus
            heap += [(policy(situation, m), gpus[0], m.placement.start, 0, gpus, m) for m in moves]
        heapq.heapify(heap)
        while heap:
            cost, gpu, start, rank, gpus, move = heap[0]
            yield RankedMove(cost, gpu, move)
            if rank + 1 < len(gpus):
                heapq.heapreplace(heap, (cost, gpus[rank + 1], start, rank + 1, gpus, move))
            else:
                heapq.heappop(heap)

    def _open(self, state: _State) -> _Group:
        """The first GPU gets into a state."""
        group = self._groups[state] = _Group(*state)
        for profile in self.geometry.profiles:
            moves = self.table.moves(group.usage, profile)
            if moves:
                self._moves[profile.id][state] = group, moves
        return group

    def _close(self, state: _State) -> None:
        """The last GPU has left a state."""
        del self._groups[state]
        for known in self._moves.values():
            known.pop(state, None)


class GeometryIndexes:
    """One index per geometry, and the demand that they share."""

    def __init__(self) -> None:
        self.demand = Demand()
        self._by_geometry: dict[Geometry, GeometryIndex] = {}

    def of(self, geometry: Geometry) -> GeometryIndex:
        """The index of ``geometry``; equal geometries share one.

        Raises:
            TooManyStatesError: no GPU has such a geometry.
        """
        index = self._by_geometry.get(geometry)
        if index is None:
            if len(self._by_geometry) >= _KEPT:
                used = {known: i for known, i in self._by_geometry.items() if len(i)}
                self._by_geometry = used
            table = MoveTable(geometry)
            # The expensive part, now instead of at the first decision.
            table.usable(EMPTY, table.every)
            index = self._by_geometry[geometry] = GeometryIndex(table)
        return index

    def observe(self, profile: str) -> None:
        """Count an allocated request for ``profile`` as demand."""
        self.demand.observe(profile)
        for index in self._by_geometry.values():
            index.forget_weights()

    def weights(self, index: GeometryIndex) -> Weights:
        """``index.weights`` under the present demand."""
        return index.weights(self.demand)

    def weights_at(self, index: GeometryIndex, census: Census) -> Weights:
        """Weights that slices of ``index`` would have with this ``census``."""
        return scarcity_weights(census, self.demand.shares(index.geometry))
