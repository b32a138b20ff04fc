"""Removal of a slice, step by step: what is recorded of it, and what is left where it stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeletplugin.errors import HostError
from kubeletplugin.gpus.identity import FoundInstance
from kubeletplugin.journal.entries import ARRIVING, Entry, State
from kubeletplugin.nvml.errors import InUseError
from tests.kubeletplugin.helpers.gpubench import DESTROY_GI, GpuBench

GET_GI = "nvmlDeviceGetGpuInstanceById"


@pytest.fixture
def bench(tmp_path: Path) -> GpuBench:
    return GpuBench(tmp_path)


@pytest.mark.parametrize("state", State)
def test_a_slice_goes_with_its_record_whatever_step_it_had_reached(
    bench: GpuBench, state: State
) -> None:
    entry = bench.made("old", state)
    if state is State.CI_DESTROYED:
        bench.destroy_compute_instances(entry)
    assert bench.slices.remove(entry) == ""
    assert (bench.places(), bench.journal.entries()) == ([], ())


# -- a disk that is full


@pytest.mark.parametrize("state", [s for s in State if s not in ARRIVING | {State.CI_DESTROYED}])
def test_what_kubelet_knows_of_stays_while_that_it_goes_cannot_be_recorded(
    bench: GpuBench, state: State
) -> None:
    entry = bench.made("old", state)
    bench.fill_disk()
    with pytest.raises(HostError, match="cannot write the journal"):
        bench.slices.remove(entry)
    assert (bench.slices_now(), bench.journal.entries()) == ([(4, 1)], (entry,))


def half_removed(bench: GpuBench) -> Entry:
    """Its compute instance was destroyed, which is not on record; the GPU instance stayed."""
    entry = bench.made("old", State.CI_CREATED)
    bench.keep(DESTROY_GI)
    bench.fill_disk()
    with pytest.raises(InUseError):
        bench.slices.remove(entry)
    bench.empty_disk()
    bench.machine.clear_faults()
    left = entry.at(State.ORPHAN)
    bench.journal.put(left)
    assert bench.slices_now() == [(4, 0)]
    return left


def test_a_step_that_could_not_be_recorded_is_found_done_by_the_next_process(
    bench: GpuBench,
) -> None:
    left = half_removed(bench)
    bench.forget()
    assert bench.slices.remove(left) == ""
    assert (bench.places(), bench.journal.entries()) == ([], ())


# -- questions


@pytest.mark.parametrize("state", [State.INTENT, State.ORPHAN, State.TOMBSTONE])
def test_what_somebody_puts_into_one_without_an_id_on_record_keeps_it(
    bench: GpuBench, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = bench.entry("half", state=state)
    bench.journal.put(entry)
    found = bench.machine.create_slice(0, "1g.5gb", start=4, compute=False)
    find = bench.hardware.identity.find_own_instance

    def and_then_it_is_filled(entry: Entry) -> FoundInstance:
        seen = find(entry)
        bench.add_compute_instances(found.gpu_instance, count=1)
        return seen

    monkeypatch.setattr(bench.hardware.identity, "find_own_instance", and_then_it_is_filled)
    with pytest.raises(InUseError):
        bench.slices.remove(entry)
    monkeypatch.undo()
    assert bench.slices_now() == [(4, 1)]
    (left,) = bench.journal.entries()
    assert "it may be another's" in bench.slices.remove(left)
    assert (bench.slices_now(), bench.journal.entries()) == ([(4, 1)], ())
