"""The order of placements: what stays possible after each."""

from __future__ import annotations

import pytest

from dra.gpu.geometry import EMPTY, Geometry, Occupant, Profile
from dra.resourceslices.partitions import placements_in_order, size
from sim.nvml.products import load_product, product_names
from tests.dra.gpus import A100, product_geometry


def starts(geometry: Geometry, name: str) -> list[int]:
    found = geometry.by_name(name)
    assert found is not None
    return [p.start for p in placements_in_order(geometry, found)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Memory slice 7 is usable only together with 6: what takes 6 spoils no large profile more.
        ("1g.5gb", [6, 5, 4, 3, 2, 1, 0]),
        ("1g.10gb", [6, 4, 2, 0]),
        ("2g.10gb", [4, 2, 0]),
        # At 0 it would take the only place of 4g.
        ("3g.20gb", [4, 0]),
        ("7g.40gb", [0]),
    ],
)
def test_an_a100_is_filled_from_the_end(name: str, expected: list[int]) -> None:
    assert starts(A100, name) == expected


@pytest.mark.parametrize("product", product_names())
def test_every_placement_is_there_once_and_the_first_leaves_the_most(product: str) -> None:
    if not load_product(product).gi_profiles:
        pytest.skip("no MIG")
    geometry = product_geometry(product)
    for each in geometry.profiles:
        ordered = placements_in_order(geometry, each)
        assert sorted(ordered) == sorted(each.placements)
        left = [_left(geometry, each, index) for index in range(len(ordered))]
        assert left[0] == max(left)


def _left(geometry: Geometry, wanted: Profile, index: int) -> int:
    placement = placements_in_order(geometry, wanted)[index]
    usage = geometry.add(EMPTY, Occupant(placement, wanted.id))
    return sum(q.size for p in geometry.profiles for q in geometry.free_placements(usage, p))


def test_small_comes_before_large_and_plain_before_variants() -> None:
    assert [p.name for p in sorted(A100.profiles, key=size)] == [
        "1g.5gb",
        "1g.5gb+me",
        "1g.10gb",
        "2g.10gb",
        "3g.20gb",
        "4g.20gb",
        "7g.40gb",
    ]
