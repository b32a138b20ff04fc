"""Placements of declared slices: any way in which they fit is found, and what is there stays."""

from __future__ import annotations

import pytest

from api.nodeclass import DeviceFilter, LayoutEntry, NodeClass
from dra.gpu.geometry import Occupant, Placement
from dra.gpu.inventory import Gpu, GpuLayout, Inventory, NodeMode
from dra.gpu.layouts import Choice, Classes, PlacingError, choose, place
from dra.gpu.mignode import from_mignode, to_mignode
from tests.dra.gpus import A100


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        ((("3g.20gb", 3),), "3 x 3g.20gb do not fit on it together"),
        ((("1g.5gb+me", 2),), "2 x 1g.5gb+me do not fit"),
        ((("1g.5gb", 100),), "100 x 1g.5gb do not fit"),
        ((("1g.6gb", 1),), "no profile 1g.6gb; it has: 1g.5gb, 1g.5gb+me"),
        ((("1c.3g.20gb", 1),), "compute instances smaller than their GPU instance are not made"),
    ],
)
def test_what_cannot_be_had_is_said(counts: tuple[tuple[str, int], ...], text: str) -> None:
    with pytest.raises(PlacingError) as error:
        place(A100, counts)
    assert text in str(error.value)


def test_what_is_there_already_stays_if_it_can() -> None:
    there = Occupant(Placement(5, 1), 19)
    found = place(A100, (("1g.5gb", 2), ("3g.20gb", 1)), [there])
    assert there in found
    assert Occupant(Placement(0, 4), 9) in found
    hindering = Occupant(Placement(3, 1), 19)
    assert hindering not in place(A100, (("1g.5gb", 3), ("4g.20gb", 1)), [hindering])


def test_a_gpu_with_a_layout_offers_its_slices_and_counts_as_large_as_before() -> None:
    slices = place(A100, (("2g.10gb", 2),))
    only = A100.only(slices)
    assert only.memory_slices == A100.memory_slices == 8
    assert only.totals == A100.totals
    assert {p.name for p in only.profiles if p.placements} == {"2g.10gb"}
    taken = only.usage(slices[:1])
    assert only.placeable(taken)["2g.10gb"] == 1
    layout = GpuLayout("pairs", (slices[1].placement,))
    gpu = Gpu(0, "GPU-a", mig_enabled=True, mig_pending=True, geometry=only, layout=layout)
    mode = NodeMode("layout", "pending", "pairs", "it waits")
    inventory = Inventory("n", "n", "mig.dra.dev", (gpu,), mode=mode)
    seen = from_mignode(to_mignode(inventory))
    assert (seen.gpus, seen.mode) == (inventory.gpus, mode)


# -- mode and layout of a node: its labels go before its class


CONFIG, MODE, CLASS = "nvidia.com/mig.config", "mig.dra.dev/mode", "mig.dra.dev/node-class"


ALL = (LayoutEntry(mig_enabled=True, counts=(("1g.5gb", 7),)),)


OWN = (LayoutEntry(mig_enabled=False),)


KNOWN = Classes(
    {
        "default": NodeClass(mig_mode="switch"),
        "training": NodeClass("layout", "own", layouts={"own": OWN}),
        "inference": NodeClass("whole", slice_shares=3),
    },
    {"all": ALL, "own": ALL},
    {"broken": "broken.yaml: MigNodeClass: field 'mode': no"},
)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, Choice("on-demand", mig_mode="switch")),
        ({CONFIG: "all"}, Choice("layout", "all", "switch", ALL)),
        ({CONFIG: "all-disabled"}, Choice("on-demand", mig_mode="switch")),
        ({CLASS: "training", CONFIG: "all-disabled"}, Choice("layout", "own", entries=OWN)),
        ({CONFIG: "all", MODE: "on-demand"}, Choice("on-demand", mig_mode="switch")),
        ({CLASS: "training"}, Choice("layout", "own", entries=OWN)),
        ({CLASS: "training", CONFIG: "all"}, Choice("layout", "all", entries=ALL)),
        ({CLASS: "training", MODE: "whole"}, Choice("whole")),
        ({CLASS: "inference"}, Choice("whole", slice_shares=3)),
        ({CLASS: "inference", CONFIG: "all"}, Choice("layout", "all", entries=ALL, slice_shares=3)),
    ],
)
def test_labels_go_before_the_class(labels: dict[str, str], expected: Choice) -> None:
    assert choose(labels, KNOWN, driver="mig.dra.dev") == expected


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        ({CLASS: "x"}, "label mig.dra.dev/node-class: there is no class 'x' of nodes; there are: "),
        ({CLASS: "broken"}, "broken.yaml: MigNodeClass: field 'mode': no"),
        ({MODE: "fast"}, "label mig.dra.dev/mode: 'fast' is not allowed; allowed are: on-demand"),
        ({MODE: "layout"}, "no layout is named; set the label nvidia.com/mig.config"),
        (
            {CONFIG: "y"},
            "label nvidia.com/mig.config: there is no layout 'y'; there are: all, own; broken.yaml",
        ),
    ],
)
def test_what_is_wrong_is_said(labels: dict[str, str], text: str) -> None:
    assert text in choose(labels, KNOWN, driver="mig.dra.dev").problem


def test_of_several_entries_about_a_gpu_the_last_counts() -> None:
    first = LayoutEntry(mig_enabled=True, counts=(("1g.5gb", 7),))
    second = LayoutEntry(mig_enabled=False, filters=(DeviceFilter(5),), indexes=(1,))
    choice = Choice("layout", "x", entries=(first, second))
    assert choice.of_gpu(1, device=5, subsystem=0) == second
    assert choice.of_gpu(0, device=5, subsystem=0) == first
    assert Choice("layout", entries=(second,)).of_gpu(0, device=5, subsystem=0) is None
