"""Mode and layout of a node: its labels go before its class."""

from __future__ import annotations

import pytest

from api.nodeclass import DeviceFilter, LayoutEntry, NodeClass
from dra.gpu.layouts import Choice, Classes, choose

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
        (
            {CLASS: "inference", CONFIG: "all"},
            Choice("layout", "all", entries=ALL, slice_shares=3),
        ),
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
