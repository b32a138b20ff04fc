"""Placements of the slices that a layout declares. Pure.

mig-parted leaves the placements to the driver, and tries orders until all slices fit; here they are
searched, so that a layout that fits in any way is made, in the same way each time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from dra.gpu.geometry import Geometry, Occupant, Profile, Usage

_MOST_SLICES = 64


class PlacingError(ValueError):
    """Slices that a GPU cannot have; says which and what it could have."""


def place(
    geometry: Geometry,
    counts: Iterable[tuple[str, int]],
    present: Collection[Occupant] = (),
    *,
    foreign: Collection[Occupant] = (),
) -> tuple[Occupant, ...]:
    """Placements for ``counts`` slices by profile, by start.

    Those ``present`` are kept and those ``foreign`` kept clear of, in that order, if all then fit.

    Raises:
        PlacingError: the GPU lacks a profile, or they do not fit beside each other.
    """
    wanted = _profiles(geometry, counts)
    for keeping, clear in ((present, foreign), ((), foreign), (present, ()), ((), ())):
        taken = geometry.usage(clear)
        kept, rest = _kept(geometry, wanted, keeping, taken)
        found = _search(geometry, rest, _with(geometry, taken, kept))
        if found is not None:
            return tuple(sorted([*kept, *found], key=lambda o: o.placement))
    names = ", ".join(f"{count} x {name}" for name, count in counts)
    raise PlacingError(f"{names} do not fit on it together")


def _with(geometry: Geometry, usage: Usage, occupants: Iterable[Occupant]) -> Usage:
    for occupant in occupants:
        usage = geometry.add(usage, occupant)
    return usage


def _profiles(geometry: Geometry, counts: Iterable[tuple[str, int]]) -> list[Profile]:
    """A profile for each slice, the largest first."""
    wanted: list[Profile] = []
    for name, count in counts:
        profile = geometry.by_name(name)
        if profile is None:
            has = ", ".join(p.name for p in geometry.profiles) or "none"
            smaller = (
                "; compute instances smaller than their GPU instance are not made here"
                if "c." in name
                else ""
            )
            raise PlacingError(f"it has no profile {name}{smaller}; it has: {has}")
        wanted += [profile] * min(count, _MOST_SLICES)
    order = {p.id: n for n, p in enumerate(geometry.largest_first)}
    return sorted(wanted, key=lambda p: order[p.id])


def _kept(
    geometry: Geometry, wanted: Sequence[Profile], present: Iterable[Occupant], usage: Usage
) -> tuple[list[Occupant], list[Profile]]:
    """Slices present that are wanted and fit beside ``usage``, and the profiles that are left."""
    kept: list[Occupant] = []
    rest = [*wanted]
    for occupant in sorted(present, key=lambda o: o.placement):
        profile = next((p for p in rest if p.id == occupant.profile_id), None)
        if (
            profile is not None
            and occupant.placement in profile.placements
            and geometry.fits(usage, profile, occupant.placement)
        ):
            kept.append(occupant)
            rest.remove(profile)
            usage = geometry.add(usage, occupant)
    return kept, rest


def _search(
    geometry: Geometry, wanted: Sequence[Profile], usage: Usage, first: int = 0
) -> list[Occupant] | None:
    """Placements for the profiles in order; equal ones lie one behind the other."""
    if not wanted:
        return []
    profile, rest = wanted[0], wanted[1:]
    for placement in sorted(geometry.free_placements(usage, profile)):
        if placement.start < first:
            continue
        occupant = Occupant(placement, profile.id)
        after = placement.start + 1 if rest and rest[0].id == profile.id else 0
        found = _search(geometry, rest, geometry.add(usage, occupant), after)
        if found is not None:
            return [occupant, *found]
    return None
