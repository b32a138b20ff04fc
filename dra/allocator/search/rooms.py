"""Upper bounds of what nodes have room for, known before their devices are searched."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from dra.allocator.fleet import Fleet
from dra.allocator.gpustate import GpuState
from dra.allocator.search.search import Search
from dra.cel.offers import Offer


class Rooms:
    """Upper bounds for a fleet as at first use, kept for searches that ask for much the same."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._most: dict[tuple[Hashable, tuple[Offer, ...]], int] = {}
        self._where: dict[tuple[Hashable, int], frozenset[Hashable]] = {}
        self._by_fingerprint: dict[Hashable, Sequence[GpuState]] = {}

    def where(self, search: Search) -> frozenset[Hashable] | None:
        """The fingerprints of the nodes that have room for each type of ``search`` by itself.

        Types of everything, and those whose selectors tell GPUs apart, are not judged: any node may
        serve them. None where ``search`` has no others.
        """
        found: frozenset[Hashable] | None = None
        for index in search.indices:
            kind, count = search.types[index], search.target[index]
            if kind.everything or index in search.telling:
                continue
            key = (kind.expressions, count)
            if key not in self._where:
                self._where[key] = self._with_room(search, index, count)
            found = self._where[key] if found is None else found & self._where[key]
        return found

    def _with_room(self, search: Search, index: int, count: int) -> frozenset[Hashable]:
        if not self._by_fingerprint:
            nodes = self._fleet.nodes
            self._by_fingerprint = {f: [*nodes[n[0]].gpus] for f, n in self._fleet.alike.items()}
        return frozenset(
            fingerprint
            for fingerprint, gpus in self._by_fingerprint.items()
            if sum(self._at_most(search, state, index) for state in gpus) >= count
        )

    def _at_most(self, search: Search, state: GpuState, index: int) -> int:
        """Upper bound on the devices for type ``index`` that a GPU in this state gives."""
        offers = search.match(state, index).offers
        key = (state.fingerprint, offers)
        if key not in self._most:
            self._most[key] = _at_most(state, offers)
        return self._most[key]


def _at_most(state: GpuState, offers: Sequence[Offer]) -> int:
    if state.blocked or state.whole_held or not offers:
        return 0
    if offers[0].shared:
        return _shares_at_most(state)
    if state.table is None:
        return int(not state.holdings)
    profiles = [o.profile for o in offers if o.profile is not None]
    table = state.table
    if len(profiles) == 1:
        return table.most(state.usage, profiles[0])
    if not any(table.moves(state.usage, profile) for profile in profiles):
        return 0
    free = table.geometry.memory_slices - state.usage.mask.bit_count()
    return free // min(profile.memory_slices for profile in profiles)


def _shares_at_most(state: GpuState) -> int:
    gpu, index = state.gpu, state.table
    if gpu.shares:
        return gpu.shares - state.instances
    slices = index.geometry.memory_slices if index is not None else 0
    return gpu.slice_shares * slices if gpu.slice_shares else 0
