"""Order in which a first-fit allocator should meet the placements of a GPU.

kube-scheduler takes the first device of a list that fits and scores none, so that the order of the
list is the whole placement policy. This is the static form of what ``dra.allocator.score``
charges: a placement costs the placements that it makes impossible, each by its memory slices. It
cannot know what the cluster is short of, nor look at the GPU.
"""

from __future__ import annotations

from functools import lru_cache

from dra.gpu.geometry import EMPTY, Geometry, Occupant, Placement, Profile, Usage


def size(profile: Profile) -> tuple[int, int, int]:
    """Ranks profiles: whoever takes any that is large enough is to get the smallest.

    Of equals the one with fewer engines.
    """
    return (profile.rank, sum(profile.engines), profile.id)


@lru_cache(maxsize=64)
def placements_in_order(geometry: Geometry, profile: Profile) -> tuple[Placement, ...]:
    """The placements of ``profile``, least damage first, each beside those before it.

    Equal damage: the highest start first, because larger profiles start low.
    """
    ordered: list[Placement] = []
    left = set(profile.placements)
    usage = EMPTY
    while left:
        fitting = [p for p in left if geometry.fits(usage, profile, p)]
        if not fitting:
            # A profile whose engines last for one instance, or whose placements overlap.
            usage = EMPTY
            fitting = [*left]
        feasible = _value(geometry, usage)
        taken = {p: geometry.add(usage, Occupant(p, profile.id)) for p in fitting}
        best = min(fitting, key=lambda p: (feasible - _value(geometry, taken[p]), -p.start))
        ordered.append(best)
        left.remove(best)
        usage = taken[best]
    return tuple(ordered)


def _value(geometry: Geometry, usage: Usage) -> int:
    """Memory slices of all placements still possible: every placement of every profile counts."""
    return sum(
        placement.size
        for profile in geometry.profiles
        for placement in geometry.free_placements(usage, profile)
    )
