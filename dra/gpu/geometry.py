"""Geometry of a GPU: profiles, placements and the room that is left.

Every number comes from NVML at run time (nvmlDeviceGetGpuInstanceProfileInfoV,
nvmlDeviceGetGpuInstancePossiblePlacements_v2); nothing here knows a product. Starts and sizes are
in memory slices, memory in MiB.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import add, le
from typing import NamedTuple

from api.mignode import Occupant, Placement

__all__ = [
    "EMPTY",
    "NO_ENGINES",
    "Counts",
    "Engines",
    "Geometry",
    "Occupant",
    "Placement",
    "Profile",
    "Usage",
]


class Engines(NamedTuple):
    """Fixed-function engines, counted (nvmlGpuInstanceProfileInfo_t)."""

    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


NO_ENGINES = Engines()


class Counts(NamedTuple):
    """Amounts that instances take of a GPU beside memory slices; a GPU has a total of each.

    The one list of what may run out: all that tells what fits adds and compares it entry by entry.
    """

    compute_slices: int = 0
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0

    def plus(self, other: Counts) -> Counts:
        """The sums of the entries."""
        return tuple.__new__(Counts, map(add, self, other))

    def within(self, total: Counts) -> bool:
        """True if no entry exceeds that of ``total``."""
        return all(map(le, self, total))


@dataclass(frozen=True, slots=True)
class Profile:
    """A GPU-instance profile as NVML reports it.

    ``id``: ``info.id`` (19, 14, ...), not the enum by which NVML is asked for it. ``name``: without
    the prefix ``MIG ``, as ``1g.5gb`` or ``1g.5gb+me``. ``placements``: all possible ones, whatever
    is allocated.
    """

    id: int
    name: str
    compute_slices: int
    memory_mib: int
    multiprocessors: int
    placements: tuple[Placement, ...]
    engines: Engines = NO_ENGINES
    counts: Counts = field(init=False, repr=False, compare=False)
    """Amounts that one instance takes beside memory slices."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "counts", Counts(self.compute_slices, *self.engines))

    @property
    def memory_slices(self) -> int:
        """Memory slices that one instance takes; 0 for a profile without placements."""
        return max((p.size for p in self.placements), default=0)

    @property
    def is_variant(self) -> bool:
        """True if the name has a suffix (``+me``, ``-me``, ``+gfx``): a variant of a plain size."""
        return "+" in self.name or "-" in self.name

    @property
    def rank(self) -> int:
        """Rank by size: of several profiles that would do, the one of least rank is to be taken.

        By memory (to the GiB, so that the same profile of two products ranks alike), then compute
        slices, of which there are fewer than 100; plain profiles before variants.
        """
        size = round(self.memory_mib / 1024) * 100 + self.compute_slices
        return 2 * size + self.is_variant


class Usage(NamedTuple):
    """Amounts that occupants of one GPU take: the whole state that decides what fits.

    ``mask``: memory slices, a bit for each. A tuple, because it is looked up hundreds of times for
    every decision.
    """

    mask: int = 0
    counts: Counts = Counts()


EMPTY = Usage()


@dataclass(frozen=True)
class Geometry:
    """The profiles of one kind of GPU, and rules for instances that fit beside each other.

    ``slices``: number of memory slices, if the placements do not show it, as of a GPU of which only
    some are offered; 0 if they do.
    """

    profiles: tuple[Profile, ...]
    slices: int = 0
    _by_id: Mapping[int | None, Profile] = field(init=False, repr=False, compare=False)
    _by_name: Mapping[str, Profile] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_id", {p.id: p for p in self.profiles})
        object.__setattr__(self, "_by_name", {p.name: p for p in self.profiles})

    def __hash__(self) -> int:
        """Hash of the profiles, computed once: they are deep, and looked up for every GPU."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.profiles)

    @cached_property
    def memory_slices(self) -> int:
        """Memory slices of the GPU: the furthest end of any placement."""
        ends = (q.start + q.size for p in self.profiles for q in p.placements)
        return self.slices or max(ends, default=0)

    def only(self, offered: Collection[Occupant]) -> Geometry:
        """This geometry with no other placements than those of ``offered``.

        The profiles stay: all of them are needed to tell what fits beside what.
        """
        return Geometry(
            tuple(
                replace(
                    p, placements=tuple(q for q in p.placements if Occupant(q, p.id) in offered)
                )
                for p in self.profiles
            ),
            self.memory_slices,
        )

    @cached_property
    def largest_first(self) -> tuple[Profile, ...]:
        """The profiles, those with most memory first, then those with most compute."""
        return tuple(
            sorted(
                self.profiles, key=lambda p: (p.memory_mib, p.compute_slices, -p.id), reverse=True
            )
        )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Memory slices of an instance, by profile."""
        return tuple(p.memory_slices for p in self.profiles)

    @cached_property
    def plain(self) -> tuple[bool, ...]:
        """By profile, true unless it is a variant of a plain size."""
        return tuple(not p.is_variant for p in self.profiles)

    @cached_property
    def compute_slices(self) -> int:
        """Compute slices of the GPU: those of its largest profile."""
        return self.totals.compute_slices

    @cached_property
    def totals(self) -> Counts:
        """Amounts that the GPU has: of each entry, the most that any profile has.

        A profile such as ``1g.24gb+me.all`` may hold more of one engine than the largest plain one.
        """
        return Counts._make(
            map(max, zip(Counts(), *(p.counts for p in self.profiles), strict=True))
        )

    def by_id(self, profile_id: int) -> Profile | None:
        """The profile with NVML id ``profile_id``, if this GPU has it."""
        return self._by_id.get(profile_id)

    def by_name(self, name: str) -> Profile | None:
        """The profile called ``name`` (``1g.5gb``), if this GPU has it."""
        return self._by_name.get(name)

    def add(self, usage: Usage, *occupants: Occupant) -> Usage:
        """``usage`` with more occupants, whether they fit or not."""
        mask, counts = usage
        for occupant in occupants:
            mask |= occupant.placement.mask
            profile = self._by_id.get(occupant.profile_id)
            if profile is not None:
                counts = counts.plus(profile.counts)
        return Usage(mask, counts)

    def usage(self, occupants: Iterable[Occupant]) -> Usage:
        """Slices and engines that ``occupants`` take together."""
        return self.add(EMPTY, *occupants)

    def fits(self, usage: Usage, profile: Profile, placement: Placement) -> bool:
        """True if an instance of ``profile`` can be made at ``placement`` beside ``usage``.

        Memory slices must be free, compute slices and engines must suffice. For plain profiles
        memory slices alone decide. Engines limit ``+me`` to one a GPU, and decide on the RTX PRO
        family.
        """
        if usage.mask & placement.mask:
            return False
        return all(map(le, map(add, usage.counts, profile.counts), self.totals))

    def free_placements(self, usage: Usage, profile: Profile) -> tuple[Placement, ...]:
        """The placements of ``profile`` that still fit, in NVML's order."""
        return tuple(p for p in profile.placements if self.fits(usage, profile, p))

    def most(self, profiles: Sequence[Profile], usage: Usage = EMPTY) -> int:
        """Most instances of one profile that fit beside ``usage``.

        Of several ``profiles``, an upper bound on the number of their instances together.
        """
        least = Counts._make(map(min, zip(*(p.counts for p in profiles), strict=True)))
        (mask, counts), number = usage, 0
        placements = {q for p in profiles for q in p.placements}
        for placement in sorted(placements, key=lambda q: q.start + q.size):
            more = counts.plus(least)
            if not mask & placement.mask and more.within(self.totals):
                mask, counts, number = mask | placement.mask, more, number + 1
        return number

    def placeable(self, usage: Usage) -> dict[str, int]:
        """By profile name, the number of placements at which an instance could be made now."""
        return {p.name: len(self.free_placements(usage, p)) for p in self.profiles}

    def largest_placeable(self, usage: Usage) -> Profile | None:
        """The profile with the most memory, then compute, that could be made now."""
        fitting = (p for p in self.largest_first if self.free_placements(usage, p))
        return next(fitting, None)
