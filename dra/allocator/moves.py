"""Effects of each placement on a GPU: tables built from its geometry at run time.

A ``Move`` makes one instance; it takes placements away from every profile and may leave memory
slices that no packing can use any more. Both depend on the GPU's ``Usage`` alone, so they are
worked out once per distinct usage and looked up afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from dra.gpu.geometry import EMPTY, Geometry, Occupant, Placement, Profile, Usage

_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Move:
    """Making an instance of the profile with NVML id ``profile_id`` at ``placement``.

    ``after``: the GPU's usage afterwards. ``loss``: per profile of the geometry, the number of its
    feasible placements that vanish. ``waste``: by sets of profiles that are wanted (a bit per
    profile of the geometry), the number of memory slices, beyond those taken, that no packing of
    these profiles can use any more, as a mean over the sets; below zero where the slices taken were
    of no use to them.
    ``free``: memory slices that are free afterwards.
    """

    placement: Placement
    profile_id: int
    after: Usage
    loss: tuple[int, ...]
    waste: Mapping[tuple[int, ...], float] = field(compare=False)
    free: int


MOST_STATES = 2048
"""Upper bound on the states of a GPU of one geometry; those of real products have up to 1,000."""
MOST_KNOWN = 2**14
"""Results of one kind that are kept; a GPU with foreign instances may be in any state."""

MOST_MIXES = 64
"""Mixes of requests for which the waste of a move is kept."""


class TooManyStatesError(ValueError):
    """A GPU could be cut in more ways than can be judged; no real product can."""


def _keep(known: dict[_K, _V], key: _K, result: _V) -> None:
    """Keep a result; if there are too many, forget the others, which are worked out anew."""
    if len(known) >= MOST_KNOWN:
        known.clear()
    known[key] = result


class MoveTable:
    """The moves of one geometry, by usage and profile."""

    def __init__(self, geometry: Geometry) -> None:
        """Raise TooManyStatesError if the geometry has more states than that of any real GPU."""
        self.geometry = geometry
        self._is_built = False
        self._feasible: dict[Usage, tuple[int, ...]] = {}
        self._usable: dict[tuple[Usage, int], int] = {}
        self._moves: dict[tuple[Usage, int], tuple[Move, ...]] = {}
        self._most: dict[tuple[Usage, int], int] = {}
        self._covers: dict[tuple[int, int], bool] = {}
        # The expensive part is done now, and not at the first decision.
        self.usable(EMPTY, self.every)
        self._is_built = True

    def feasible(self, usage: Usage) -> tuple[int, ...]:
        """Per profile of the geometry, the number of placements that fit beside ``usage``."""
        known = self._feasible.get(usage)
        if known is None:
            known = tuple(
                len(self.geometry.free_placements(usage, p)) for p in self.geometry.profiles
            )
            _keep(self._feasible, usage, known)
        return known

    @property
    def every(self) -> int:
        """All profiles of the geometry, a bit for each."""
        return (1 << len(self.geometry.profiles)) - 1

    def usable(self, usage: Usage, wanted: int) -> int:
        """The most memory slices that instances added to ``usage`` could still take together.

        Only of the profiles ``wanted``, a bit per profile of the geometry.
        """
        known = self._usable.get((usage, wanted))
        if known is None:
            known = max(
                (
                    placement.size + self.usable(self._after(usage, profile, placement), wanted)
                    for index, profile in enumerate(self.geometry.profiles)
                    if wanted >> index & 1
                    for placement in self.geometry.free_placements(usage, profile)
                ),
                default=0,
            )
            if not self._is_built and len(self._usable) >= MOST_STATES:
                raise TooManyStatesError(
                    f"a GPU of one of its geometries may get into more than {MOST_STATES} states"
                )
            _keep(self._usable, (usage, wanted), known)
        return known

    def most(self, usage: Usage, profile: Profile) -> int:
        """The most instances of one profile that fit together beside ``usage``."""
        key = (usage, profile.id)
        known = self._most.get(key)
        if known is None:
            known = self.geometry.most([profile], usage)
            _keep(self._most, key, known)
        return known

    def covers(self, small: Profile, large: Profile) -> bool:
        """True if wherever ``large`` fits, ``small`` would fit within its place."""
        key = (small.id, large.id)
        known = self._covers.get(key)
        if known is None:
            known = self._covers[key] = small.counts.within(large.counts) and all(
                any(not q.mask & ~p.mask for q in small.placements) for p in large.placements
            )
        return known

    def moves(self, usage: Usage, profile: Profile) -> tuple[Move, ...]:
        """Every way to make an instance of ``profile`` beside ``usage``, lowest start first."""
        key = (usage, profile.id)
        known = self._moves.get(key)
        if known is None:
            free = sorted(self.geometry.free_placements(usage, profile))
            known = tuple(self._move(usage, profile, placement) for placement in free)
            _keep(self._moves, key, known)
        return known

    def _after(self, usage: Usage, profile: Profile, placement: Placement) -> Usage:
        return self.geometry.add(usage, Occupant(placement, profile.id))

    def _move(self, usage: Usage, profile: Profile, placement: Placement) -> Move:
        after = self._after(usage, profile, placement)
        before = self.feasible(usage)
        return Move(
            placement=placement,
            profile_id=profile.id,
            after=after,
            loss=tuple(b - a for b, a in zip(before, self.feasible(after), strict=True)),
            waste=_Waste(self, usage, after),
            free=self.geometry.memory_slices - after.mask.bit_count(),
        )


class _Waste(dict[tuple[int, ...], float]):
    """Waste of a move, by sets of profiles wanted; worked out when first looked up."""

    __slots__ = ("_after", "_before", "_table")

    def __init__(self, table: MoveTable, before: Usage, after: Usage) -> None:
        super().__init__()
        self._table = table
        self._before = before
        self._after = after

    def __missing__(self, wanted: tuple[int, ...]) -> float:
        before, after = self._before, self._after
        taken = after.mask.bit_count() - before.mask.bit_count()
        usable = self._table.usable
        lost = (usable(before, each) - usable(after, each) for each in wanted)
        if len(self) >= MOST_MIXES:
            self.clear()
        self[wanted] = sum(lost) / len(wanted) - taken
        return self[wanted]


@lru_cache(maxsize=64)
def move_table(geometry: Geometry) -> MoveTable:
    """The moves of ``geometry``; equal geometries share them.

    Raises:
        TooManyStatesError: the geometry has more states than that of any real GPU.
    """
    return MoveTable(geometry)
