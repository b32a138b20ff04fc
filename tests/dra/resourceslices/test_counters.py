"""Counters say what the geometry says: what fits beside what."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra.common.quantity import mebibytes
from dra.gpu.geometry import EMPTY, Geometry, Occupant, Placement, Profile
from dra.gpu.inventory import Inventory
from dra.resourceslices.partitions import offered, placements_in_order
from dra.resourceslices.resourceslices import (
    CounterModel,
    Features,
    SliceLayout,
)
from sim.nvml.products import load_product, product_names
from tests.dra.gpus import A100, THIRDS, node_of, product_geometry, profile, sliced_gpu
from tests.dra.resourceslices.counters import amounts

MIG_PRODUCTS = [name for name in product_names() if load_product(name).gi_profiles]


TIGHT = Geometry(
    (
        profile("1x.1gb", 3, slices=2, memory=1000, starts=[0, 1, 2], size=1),
        profile("3x.3gb", 1, slices=4, memory=3000, starts=[0], size=3),
    )
)
"""Invented: room for three of the small ones, compute slices for two."""


@pytest.mark.parametrize(
    ("mib", "quantity"),
    [(0, "0"), (4864, "4864Mi"), (40960, "40Gi"), (1024 * 1024, "1Ti"), (1025, "1025Mi")],
)
def test_amounts_are_written_as_the_server_writes_them(mib: int, quantity: str) -> None:
    assert mebibytes(mib) == quantity


def test_the_counters_of_an_a100_are_called_as_in_nvidias_driver() -> None:
    counters = amounts(CounterModel(A100).shared())
    assert counters == {
        "memory": 40192,
        "multiprocessors": 98,
        "decoders": 5,
        "jpeg-engines": 1,
        "ofa-engines": 1,
        **{f"memory-slice-{i}": 1 for i in range(8)},
    }
    big = A100.by_name("3g.20gb")
    assert big is not None
    assert amounts(CounterModel(A100).consumed(big, Placement(4, 4))) == {
        "memory": 19968,
        "multiprocessors": 42,
        "decoders": 2,
        **{f"memory-slice-{i}": 1 for i in range(4, 8)},
    }


@given(
    geometry=st.one_of(
        st.sampled_from([A100, THIRDS, TIGHT]), st.sampled_from(MIG_PRODUCTS).map(product_geometry)
    ),
    choices=st.lists(st.integers(0, 10_000), max_size=14),
    foreign=st.lists(st.integers(0, 10_000), max_size=2),
)
def test_counters_suffice_exactly_for_what_fits(
    geometry: Geometry, choices: list[int], foreign: list[int]
) -> None:
    model = CounterModel(geometry)
    places = [(p, q) for p in geometry.profiles for q in p.placements]
    usage, blocked = EMPTY, []
    for choice in foreign:
        profile, placement = places[choice % len(places)]
        if geometry.fits(usage, profile, placement):
            blocked.append(Occupant(placement, profile.id))
            usage = geometry.add(usage, blocked[-1])
    left = amounts(model.shared(blocked))
    for choice in choices:
        for profile, placement in places:
            consumed = amounts(model.consumed(profile, placement))
            enough = all(left.get(name, 0) >= amount for name, amount in consumed.items())
            assert enough == geometry.fits(usage, profile, placement), (profile.name, placement)
        profile, placement = places[choice % len(places)]
        if geometry.fits(usage, profile, placement):
            usage = geometry.add(usage, Occupant(placement, profile.id))
            for name, amount in amounts(model.consumed(profile, placement)).items():
                left[name] -= amount


@pytest.mark.parametrize("product", MIG_PRODUCTS)
def test_every_products_counters_are_few_enough(product: str) -> None:
    counters = CounterModel(product_geometry(product)).shared()
    assert "compute-slices" not in counters
    assert len(counters) <= 32


# -- pools of a node where kube-scheduler allocates: what cluster-autoscaler asks of them


def specs(inventory: Inventory) -> list[dict[str, Any]]:
    made = SliceLayout(offered(inventory, {}, taints=True), Features())
    return [made.spec(index, generation=1) for index in range(len(made))]


def nodes(product: str) -> list[list[dict[str, Any]]]:
    """Slices of two nodes with four such GPUs each."""
    geometry = product_geometry(product)
    gpus = [sliced_gpu(minor, geometry) for minor in range(4)]
    return [specs(node_of(*gpus, name=name)) for name in ("node-a", "node-b")]


@pytest.mark.parametrize("product", [n for n in product_names() if product_geometry(n).profiles])
def test_all_shared_counters_of_a_pool_are_identical(product: str) -> None:
    sets = [c["counters"] for spec in nodes(product)[0] for c in spec.get("sharedCounters", ())]
    assert len(sets) == 4
    assert all(each == sets[0] for each in sets)


# -- the order of placements: what stays possible after each


def starts(geometry: Geometry, name: str) -> list[int]:
    found = geometry.by_name(name)
    assert found is not None
    return [p.start for p in placements_in_order(geometry, found)]


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
