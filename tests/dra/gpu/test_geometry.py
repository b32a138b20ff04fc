from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.gpu.geometry import EMPTY, Geometry, Occupant, Placement, Profile, Usage
from dra.gpu.inventory import Gpu, Instance, InstanceState
from tests.dra.gpus import A100, THIRDS, product_geometry, profile


def occupy(geometry: Geometry, *wanted: tuple[str, int]) -> list[Occupant]:
    """Occupants by profile name and start."""
    made = []
    for name, start in wanted:
        profile = geometry.by_name(name)
        assert profile is not None
        made.append(Occupant(Placement(start, profile.memory_slices), profile.id))
    return made


def fill(geometry: Geometry, usage: Usage, profiles: Sequence[Profile]) -> int:
    """The most instances of ``profiles`` beside ``usage``, by trying all."""
    more = (
        fill(geometry, geometry.add(usage, Occupant(placement, each.id)), profiles)
        for each in profiles
        for placement in geometry.free_placements(usage, each)
    )
    return max((1 + count for count in more), default=0)


@pytest.mark.parametrize("geometry", [A100, THIRDS, product_geometry("A30")])
def test_an_empty_gpu_holds_as_many_of_a_profile_as_can_be_made(geometry: Geometry) -> None:
    for each in geometry.profiles:
        assert geometry.most([each]) == fill(geometry, EMPTY, [each])
    two = [geometry.profiles[0], geometry.profiles[-1]]
    assert geometry.most(two) >= fill(geometry, EMPTY, two)


def test_one_small_slice_in_the_wrong_place_blocks_the_large_profiles() -> None:
    usage = A100.usage(occupy(A100, ("1g.5gb", 0)))
    placeable = A100.placeable(usage)
    assert placeable["7g.40gb"] == 0
    assert placeable["4g.20gb"] == 0
    assert placeable["3g.20gb"] == 1
    largest = A100.largest_placeable(usage)
    assert largest is not None
    assert largest.name == "3g.20gb"


def test_compute_slices_limit_where_memory_slices_would_suffice() -> None:
    wide = profile("4w.1gb", 1, slices=4, memory=1000, starts=[0, 1, 2], size=1)
    whole = profile("7w.3gb", 0, slices=7, memory=3000, starts=[0], size=3)
    geometry = Geometry((wide, whole))
    usage = geometry.usage(occupy(geometry, ("4w.1gb", 0)))
    assert geometry.free_placements(usage, wide) == ()
    assert geometry.largest_placeable(usage) is None


@pytest.mark.parametrize(
    "engine", ["copy_engines", "decoders", "encoders", "jpeg_engines", "ofa_engines"]
)
def test_every_kind_of_engine_limits(engine: str) -> None:
    half = profile("1g.1gb", 1, slices=1, memory=1000, starts=[0, 1], size=1, **{engine: 2})
    whole = profile("2g.2gb", 0, slices=2, memory=2000, starts=[0], size=2, **{engine: 3})
    geometry = Geometry((half, whole))
    assert len(geometry.free_placements(EMPTY, half)) == 2
    assert geometry.free_placements(geometry.usage(occupy(geometry, ("1g.1gb", 0))), half) == ()


def test_a_foreign_instance_of_unknown_profile_holds_its_slots() -> None:
    usage = A100.usage([Occupant(Placement(4, 4))])
    assert A100.placeable(usage)["3g.20gb"] == 1
    assert A100.placeable(usage)["7g.40gb"] == 0


@pytest.mark.parametrize("geometry", [A100, THIRDS], ids=["a100", "thirds"])
@given(data=st.data())
def test_whatever_fits_never_overlaps_and_never_exceeds_the_gpu(
    geometry: Geometry, data: st.DataObject
) -> None:
    usage = EMPTY
    taken: list[Occupant] = []
    for _ in range(data.draw(st.integers(0, 10))):
        free = [
            Occupant(placement, profile.id)
            for profile in geometry.profiles
            for placement in geometry.free_placements(usage, profile)
        ]
        if not free:
            break
        chosen = data.draw(st.sampled_from(free))
        assert not any(o.placement.overlaps(chosen.placement) for o in taken)
        taken.append(chosen)
        usage = geometry.add(usage, chosen)
        assert usage == geometry.usage(taken)
        assert usage.counts.within(geometry.totals)
        assert usage.mask < 1 << geometry.memory_slices


def test_a_gpus_usage_is_that_of_its_instances() -> None:
    gpu = Gpu(
        minor=0,
        uuid="GPU-0",
        geometry=A100,
        instances=(Instance(Placement(4, 4), InstanceState.FOREIGN, profile_id=9),),
    )
    assert gpu.usage == A100.usage(occupy(A100, ("3g.20gb", 4)))
    assert Gpu(minor=1, uuid="GPU-1").usage == EMPTY
