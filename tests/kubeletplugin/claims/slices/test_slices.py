"""Slices of entries: found, finished, used again or made, of what the GPU offers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dra.gpu.geometry import Placement
from kubeletplugin.errors import DeviceError
from kubeletplugin.journal.entries import State
from tests.kubeletplugin.claims.slices.slicebench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# -- made, finished, found


def test_an_intent_is_carried_out_whatever_else_its_record_says(bench: Bench) -> None:
    bench.made("a", State.INTENT)
    before = bench.keys()
    bench.made_well(bench.ensure(bench.entry("a")))
    assert bench.keys() != before


def test_a_compute_instance_that_nobody_was_told_of_is_removed_and_made_again(bench: Bench) -> None:
    bench.made("a", State.GI_CREATED, ci_id=None, mig_uuid="")
    ((gpu_instance, compute_instances),) = bench.keys()
    bench.made_well(bench.ensure(bench.entry("a")))
    ((made, inside),) = bench.keys()
    assert made != gpu_instance
    assert inside != compute_instances


# -- what the GPU offers


NOT_OFFERED: dict[str, dict[str, object]] = {
    "no such profile": {"profile_id": 77},
    "a whole GPU": {"profile_id": None},
    "no such place": {"placement": Placement(7, 1)},
    "no place": {"placement": None},
}


@pytest.mark.parametrize("case", NOT_OFFERED)
def test_what_the_gpu_does_not_offer_is_not_made(bench: Bench, case: str) -> None:
    entry = replace(bench.entry("a"), **NOT_OFFERED[case])  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match=r"gpu-0 offers no profile 1g\.5gb at [^:]*(:1)?$"):
        bench.ensure(entry)
