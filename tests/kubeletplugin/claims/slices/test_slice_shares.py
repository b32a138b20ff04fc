"""Claims that share one slice: made once, had by all, gone with the last; and who may take part."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dra.gpu.shares import ANY_TENANT, Share
from kubeletplugin.errors import BusyError
from kubeletplugin.journal.entries import ARRIVING, Entry, State
from kubeletplugin.nvml.errors import NvmlError
from tests.kubeletplugin.claims.slices.slicebench import CREATE_CI, CREATE_GI
from tests.kubeletplugin.helpers.gpubench import UNKNOWN, GpuBench

NAME = "gpu-0-mig-1g5gb-19-4"
MADE = [CREATE_GI, CREATE_CI]
MEMORY = 4864
"""MiB of a 1g.5gb of this A100."""


class Bench(GpuBench):
    """One A100 of whose slices each may be had by four claims."""

    def forget(self) -> None:
        super().forget()
        self.unit.slice_shares = 4

    def share(self, name: str, memory_mib: int = 1000, **changes: object) -> Entry:
        share = Share(memory_mib, 0, "default")
        values: dict[str, Any] = {"device": f"{NAME}-share", "share": share, **changes}
        return self.entry(name, **values)

    def ensure(self, entry: Entry) -> Entry:
        return self.slices.ensure(self.unit, entry)

    def sharing(self, *names: str, state: State = State.PREPARED) -> list[Entry]:
        """Claims that have one slice, and were told of it."""
        found = [self.ensure(self.share(n)).at(state) for n in names]
        self.journal.put(*found)
        return found

    def calls(self) -> list[str]:
        """Changes of the hardware, in their order."""
        return [m.function for m in self.machine.mutations()]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_what_one_makes_again_and_fails_to_is_removed_whatever_others_have_on_record(
    bench: Bench,
) -> None:
    first, second = bench.sharing("a", "b")
    bench.machine.wipe_gpu(0)
    bench.keep(CREATE_CI, UNKNOWN)
    with pytest.raises(NvmlError):
        bench.ensure(first)
    half = bench.journal.get(first)
    assert half is not None
    assert (half.state, half.gi_id) == (State.GI_CREATED, second.gi_id)
    bench.slices.remove(half)
    lost = bench.journal.get(first)
    assert lost is not None
    assert (bench.places(), lost.state) == ([], State.LOST)
    assert bench.journal.entries() == (lost, second)


@pytest.mark.parametrize("state", [State.INTENT, State.GI_CREATED])
def test_what_is_half_made_for_one_is_waited_for(bench: Bench, state: State) -> None:
    half = bench.made("a", State.PREPARED)
    bench.destroy_compute_instances(half)
    gi_id = half.gi_id if state is State.GI_CREATED else None
    bench.journal.remove(half)
    bench.journal.put(bench.share("a", state=state, gi_id=gi_id))
    with pytest.raises(BusyError, match="half made for claim default/a") as refused:
        bench.ensure(bench.share("b"))
    assert refused.value.passing
    assert len(bench.journal.entries()) == 1


def test_no_more_claims_have_a_slice_than_the_node_offers(bench: Bench) -> None:
    entries = bench.sharing("a", "b", "c", "d")
    with pytest.raises(BusyError, match="all 4 shares are in use"):
        bench.ensure(bench.share("e"))
    bench.unit.slice_shares = 0
    assert bench.ensure(entries[0]) == entries[0], "what is prepared stays"
    bench.slices.remove(entries[0])
    with pytest.raises(BusyError, match=r"is not shared any more.*sliceShares"):
        bench.ensure(bench.share("e"))


@pytest.mark.parametrize("state", [State.CI_CREATED, State.LEFTOVER, State.LOST])
def test_room_that_may_be_given_back_soon_is_waited_for(bench: Bench, state: State) -> None:
    ahead = state in ARRIVING
    bench.sharing("a")
    second = replace(bench.ensure(bench.share("b", 3000)), early=ahead, state=state)
    bench.journal.put(second)
    with pytest.raises(BusyError, match="864 of 4864 MiB are left") as refused:
        bench.ensure(bench.share("c"))
    assert refused.value.passing == (state is not State.LOST)
    assert bench.doubted == ([second.claim] if ahead else [])


@pytest.mark.parametrize("tenant", ["default", ANY_TENANT])
def test_the_rest_of_a_shared_slice_is_used_again_in_its_namespace_alone(
    bench: Bench, tenant: str
) -> None:
    entry = bench.ensure(bench.share("a", share=Share(1000, 0, tenant)))
    bench.slices.remove(entry, keep=True)
    [idle] = bench.journal.entries()
    assert (idle.idle, bench.slices_now()) == (True, [(4, 0)])
    bench.ensure(bench.entry("b"))
    again = 1 if tenant == "default" else 2
    assert bench.calls().count(CREATE_GI) == again
    assert len(bench.journal.entries()) == 1


def test_nobody_takes_part_in_a_slice_that_is_on_its_way_out(bench: Bench) -> None:
    [last] = bench.sharing("a", state=State.LEFTOVER)
    bench.journal.put(replace(last, share=Share(MEMORY, 100, "x")))
    made = bench.ensure(bench.share("b"))
    assert (bench.calls()[-2:], bench.journal.entries()) == (MADE, (made,))
    assert bench.calls().count(CREATE_GI) == 2
