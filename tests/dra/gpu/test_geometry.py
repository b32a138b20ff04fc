from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.gpu.geometry import EMPTY, Geometry, Occupant, Placement, Profile, Usage
from dra.gpu.inventory import Gpu, Instance, InstanceState
from tests.dra.gpus import A100, THIRDS, product_geometry


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
