"""Who is in the way of a slice, and what is removed for it, on simulated GPUs without a daemon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dra.gpu.geometry import Placement
from dra.gpu.inventory import ClaimRef
from kubeletplugin.errors import BusyError
from kubeletplugin.journal.entries import LEAVING, Entry, State
from tests.kubeletplugin.helpers.gpubench import PLACE, GpuBench

PASSING = (19, 999)
NOT_HELD = (State.LEFTOVER, State.ORPHAN, State.TOMBSTONE, State.DESTROYING)


class Bench(GpuBench):
    """One A100, and who is in the way on it."""

    def make_room(self, entry: Entry, placement: Placement = PLACE) -> Entry | None:
        return self.slices.make_room(self.unit, entry, placement)

    def not_made(self, entry: Entry) -> BusyError:
        """The error of a slice in whose place is another program's instance."""
        before = self.places()
        with pytest.raises(BusyError) as error:
            self.slices.ensure(self.unit, entry)
        assert self.places() == before
        return error.value

    def refused(self, entry: Entry, placement: Placement = PLACE) -> BusyError:
        before = self.places()
        with pytest.raises(BusyError) as error:
            self.make_room(entry, placement)
        assert self.places() == before
        assert f"memory slices {placement} of gpu-0 are held by" in str(error.value)
        return error.value


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("state", sorted(LEAVING))
def test_the_place_of_one_that_could_not_be_made_again_for_its_claim_is_kept(
    bench: Bench, state: State
) -> None:
    holder = bench.made("old", state, remade=True)
    assert holder.holder() in str(bench.refused(bench.entry("new")))
    assert bench.journal.entries() == (holder,)


def test_of_what_was_made_ahead_it_is_asked_whether_it_is_still_needed(bench: Bench) -> None:
    holder = bench.made("old", State.CI_CREATED, early=True)
    assert bench.refused(bench.entry("new")).passing, "it may be given back in a moment"
    assert bench.doubted == [holder.claim]


@pytest.mark.parametrize(("code", "word"), [(19, "IN_USE"), (29, "29"), (999, "UNKNOWN")])
def test_what_cannot_be_removed_now_is_named_with_the_reason(
    bench: Bench, code: int, word: str
) -> None:
    bench.made("old", State.LEFTOVER)
    bench.keep("nvmlComputeInstanceDestroy", code)
    error = bench.refused(bench.entry("new"))
    assert error.passing is (code in PASSING)
    assert "default/old" in str(error)
    assert "which is being removed" in str(error)
    assert word in str(error)
    assert "it is tried again" in str(error)


@pytest.mark.parametrize("state", NOT_HELD)
def test_one_that_loses_its_compute_instance_only_now_is_used_again_at_once(
    bench: Bench, state: State
) -> None:
    old = bench.made("old", state)
    bench.keep("nvmlGpuInstanceDestroy")
    assert bench.make_room(bench.entry("new")) == old.at(
        State.CI_DESTROYED, ci_id=None, mig_uuid=""
    )
    assert bench.places() == [4]


OTHERS: dict[str, tuple[dict[str, object], str]] = {
    "another namespace": (
        {"claim": ClaimRef("elsewhere", "new", "uid-new")},
        "kept from other namespaces than its own",
    ),
    "another profile": ({"profile_id": 20, "profile": "1g.5gb+me"}, "which is being removed"),
    "another place": ({"placement": Placement(3, 2)}, "which is being removed"),
    "a larger place": ({"profile_id": 14, "placement": Placement(4, 2)}, "which is being removed"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_for_anybody_else_it_stays_in_the_way(bench: Bench, case: str) -> None:
    changes, words = OTHERS[case]
    bench.bare("old")
    new = replace(bench.entry("new"), **changes)  # type: ignore[arg-type]
    assert new.placement is not None
    error = str(bench.refused(new, new.placement))
    assert words in error
    assert ("namespaces" in error) is (case == "another namespace")


def test_a_whole_gpu_is_everywhere_in_the_way(bench: Bench) -> None:
    whole = bench.entry("old", state=State.PREPARED)
    bench.journal.put(replace(whole, device="gpu-0", profile_id=None, placement=None))
    assert "default/old" in str(bench.refused(bench.entry("new")))
