"""Identity: whose an instance is, told by record, ids, UUID and processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import sim.nvml
from dra.gpu.geometry import Placement
from kubeletplugin.gpus.ownership.belonging import Doubt
from kubeletplugin.gpus.ownership.identity import FoundInstance, how_to_remove
from kubeletplugin.journal.entries import Entry, State
from kubeletplugin.nvml.instances import GpuInstance
from sim.nvml.faults import Fault
from sim.nvml.variants import Variants
from tests.kubeletplugin.helpers.gpubench import ELSEWHERE, NOT_FOUND, PLACE, UNKNOWN, GpuBench

PID = 4711
NOT_SUPPORTED = 3
GET_GI = "nvmlDeviceGetGpuInstanceById"
PROCESSES = "nvmlDeviceGetComputeRunningProcesses*"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[GpuBench]:
    yield GpuBench(tmp_path)
    sim.nvml.uninstall()


def doubted(bench: GpuBench, entry: Entry, why: Doubt) -> FoundInstance:
    found = bench.identity.find_own_instance(entry)
    assert (found.own, found.whole) == (None, False)
    assert f"but {why.value}" in found.other
    assert bench.identity.own_instance(entry) is None
    assert not bench.identity.is_whole(entry)
    return found


# -- its own

OWN: dict[str, tuple[dict[str, object], bool]] = {
    "with all ids": ({}, True),
    "without the id of its compute instance": ({"ci_id": None}, False),
    "before its compute instance was recorded": (
        {"state": State.GI_CREATED, "ci_id": None, "mig_uuid": ""},
        False,
    ),
    "on its way out": ({"state": State.DESTROYING, "ci_id": None}, False),
}


@pytest.mark.parametrize("case", OWN)
def test_what_an_entry_made_is_its_own_and_whole_with_all_that_is_on_record(
    bench: GpuBench, case: str
) -> None:
    changes, whole = OWN[case]
    entry = replace(bench.made("a", State.PREPARED), **changes)  # type: ignore[arg-type]
    instance = GpuInstance(entry.gi_id or 0, 19, PLACE)
    assert bench.identity.own_instance(entry) == instance
    assert bench.identity.is_whole(entry) is whole
    assert bench.identity.find_own_instance(entry).whole is bool(entry.mig_uuid)


BARE: dict[str, dict[str, object]] = {
    "half made": {"state": State.CI_CREATED},
    "on its way out": {"state": State.DESTROYING, "ci_id": None},
    "left over": {"state": State.LEFTOVER, "ci_id": None},
}


@pytest.mark.parametrize("case", BARE)
def test_without_its_compute_instance_it_is_its_own_where_that_may_be_and_never_whole(
    bench: GpuBench, case: str
) -> None:
    entry = replace(bench.made("a", State.PREPARED), **BARE[case])  # type: ignore[arg-type]
    bench.destroy_compute_instances(entry)
    assert bench.identity.own_instance(entry) == GpuInstance(entry.gi_id or 0, 19, PLACE)
    assert not bench.identity.is_whole(entry)


NOT_THERE: dict[str, dict[str, object]] = {
    "of another boot": {"boot_id": "before"},
    "a whole GPU": {"placement": None, "profile_id": None},
    "without a profile": {"profile_id": None},
    "without a placement": {"placement": None},
    "elsewhere": {"placement": ELSEWHERE},
    "of another profile": {"profile_id": 20},
    "of another id": {"gi_id": 99},
}


@pytest.mark.parametrize("case", NOT_THERE)
def test_what_does_not_agree_with_the_record_is_neither_its_own_nor_in_doubt(
    bench: GpuBench, case: str
) -> None:
    entry = replace(bench.made("a", State.PREPARED), **NOT_THERE[case])  # type: ignore[arg-type]
    assert bench.identity.find_own_instance(entry) == FoundInstance()


@pytest.mark.parametrize("case", ["of another boot", "without a placement", "without a profile"])
def test_what_can_have_no_instance_is_not_asked_for(bench: GpuBench, case: str) -> None:
    entry = replace(bench.made("a", State.PREPARED), **NOT_THERE[case])  # type: ignore[arg-type]
    bench.machine.inject(Fault(function="*", action="return", code=UNKNOWN, times=0))
    assert bench.identity.find_own_instance(entry) == FoundInstance()


def test_what_is_gone_is_not_there(bench: GpuBench) -> None:
    entry = bench.made("a", State.PREPARED)
    bench.machine.destroy_slice(0, entry.gi_id or 0)
    assert bench.identity.find_own_instance(entry) == FoundInstance()


def test_without_an_id_it_is_found_by_its_place_and_profile(bench: GpuBench) -> None:
    found = bench.machine.create_slice(0, "1g.5gb", start=4, compute=False)
    bench.machine.create_slice(0, "1g.5gb", start=0)
    own = bench.identity.own_instance(bench.entry("a"))
    assert own == GpuInstance(found.gpu_instance, 19, PLACE)


def test_one_wrong_answer_gives_no_instance_up(bench: GpuBench) -> None:
    entry = bench.made("a", State.PREPARED)
    bench.machine.inject(Fault(function=GET_GI, action="return", code=NOT_FOUND, times=1))
    assert bench.identity.own_instance(entry) == GpuInstance(entry.gi_id or 0, 19, PLACE)


# -- another's


def test_one_that_took_its_place_is_of_another(bench: GpuBench) -> None:
    entry = bench.made("a", State.PREPARED)
    bench.remake(entry)
    (made,) = bench.machine.gpu(0).gpu_instances
    found = doubted(bench, entry, Doubt.REMADE)
    assert found.other.startswith(
        f"GPU instance {entry.gi_id} of GPU {entry.gpu} (with {made.compute_instances[0].uuid}) "
        f"lies where {entry.device} of claim default/a was made with {entry.mig_uuid}, but "
    )
    assert found.remedy == how_to_remove(entry.gpu, entry.gi_id or 0)


def test_one_without_a_compute_instance_is_described_so(bench: GpuBench) -> None:
    entry = bench.made("a", State.LEFTOVER)
    bench.destroy_compute_instances(entry)
    assert "(with no compute instance) lies" in doubted(bench, entry, Doubt.BARE).other


def test_one_without_a_recorded_uuid_is_described_without(bench: GpuBench) -> None:
    entry = replace(bench.made("a", State.GI_CREATED), mig_uuid="", ci_id=None)
    bench.remake(entry)
    assert "was made, but" in doubted(bench, entry, Doubt.REMADE).other


def test_that_this_process_destroyed_the_compute_instance_explains_that_it_is_gone(
    bench: GpuBench,
) -> None:
    entry = bench.made("a", State.LEFTOVER)
    bench.destroy_compute_instances(entry)
    found = bench.identity.find_own_instance(entry, has_no_compute_instance=True)
    assert found == FoundInstance(GpuInstance(entry.gi_id or 0, 19, PLACE))


def test_a_strange_compute_instance_is_of_another(bench: GpuBench) -> None:
    entry = replace(bench.made("a", State.PREPARED), mig_uuid="MIG-other")
    doubted(bench, entry, Doubt.STRANGE)


def test_several_compute_instances_are_of_others_unless_the_recorded_one_is_among_them(
    bench: GpuBench,
) -> None:
    found = bench.machine.create_slice(0, "2g.10gb", start=4, compute=False)
    changes = {"profile_id": 14, "placement": Placement(4, 2), "gi_id": found.gpu_instance}
    entry = replace(bench.entry("a", state=State.GI_CREATED), **changes)  # type: ignore[arg-type]
    bench.watch.begin(entry)
    bench.add_compute_instances(found.gpu_instance, count=2)
    ours, theirs = bench.machine.gpu(0).gpu_instances[0].compute_instances
    doubt = doubted(bench, entry, Doubt.STRANGE)
    assert f"(with {ours.uuid}, {theirs.uuid})" in doubt.other
    entry = replace(entry, state=State.PREPARED, ci_id=theirs.id, mig_uuid=theirs.uuid)
    assert bench.identity.is_whole(entry)


def test_a_compute_instance_in_one_that_is_not_on_record_is_of_another(bench: GpuBench) -> None:
    bench.machine.create_slice(0, "1g.5gb", start=4)
    doubted(bench, bench.entry("a"), Doubt.STRANGE)


def unnamed(bench: GpuBench) -> Entry:
    """The program ended after it made a compute instance, before it recorded that."""
    entry = bench.made("a", State.GI_CREATED, ci_id=None, mig_uuid="")
    bench.forget()
    return entry


def test_a_compute_instance_that_nobody_was_told_of_is_its_own_while_nobody_uses_it(
    bench: GpuBench,
) -> None:
    entry = unnamed(bench)
    bench.machine.start_process(0, PID, gpu_instance=99, compute_instance=0)
    assert bench.identity.own_instance(entry) is not None
    bench.machine.start_process(0, PID, gpu_instance=entry.gi_id or 0, compute_instance=0)
    doubted(bench, entry, Doubt.BUSY)


def test_processes_in_one_whose_uuid_is_on_record_are_its_claims(bench: GpuBench) -> None:
    entry = bench.made("a", State.PREPARED)
    bench.machine.start_process(0, PID, gpu_instance=entry.gi_id or 0, compute_instance=0)
    assert bench.identity.is_whole(entry)
    bench.keep(PROCESSES, UNKNOWN)
    assert bench.identity.is_whole(entry), "nobody has to ask for them"


def test_where_processes_cannot_be_asked_for_there_are_none(bench: GpuBench) -> None:
    entry = unnamed(bench)
    bench.keep(PROCESSES, NOT_SUPPORTED)
    assert bench.identity.own_instance(entry) is not None


def test_where_processes_cannot_be_seen_nobody_knows_whose_it_is(bench: GpuBench) -> None:
    entry = unnamed(bench)
    bench.unmark()
    bench.session.names_processes = False
    for _ in range(2):  # that it was looked at makes it no more its own
        doubted(bench, entry, Doubt.UNSEEN)
    assert bench.marks() == []


def test_what_counts_as_its_own_is_marked_so_that_it_is_known_later(bench: GpuBench) -> None:
    entry = unnamed(bench)
    bench.unmark()
    assert bench.identity.own_instance(entry) is not None
    assert bench.marks() == [f"gi{entry.gi_id}", f"gi{entry.gi_id}/ci0"]
    bench.forget()
    bench.session.names_processes = False
    assert bench.identity.own_instance(entry) is not None


def test_instances_that_were_just_made_are_marked(bench: GpuBench) -> None:
    entry = unnamed(bench)
    bench.unmark()
    bench.identity.note_made(entry)
    assert bench.marks() == [f"gi{entry.gi_id}", f"gi{entry.gi_id}/ci0"]


# -- the UUID


@pytest.mark.parametrize("state", [State.LEFTOVER, State.PREPARED])
@pytest.mark.parametrize("driver", ["new", "place"])
def test_after_a_restart_only_a_random_uuid_tells_whose_a_leftover_is(
    tmp_path: Path, state: State, driver: str
) -> None:
    bench = GpuBench(tmp_path, variants=Variants(mig_uuid=driver))  # type: ignore[arg-type]
    try:
        entry = bench.made("a", state)
        bench.forget()
        bench.unmark()
        if driver == "place" and state is State.LEFTOVER:
            doubted(bench, entry, Doubt.ANYBODYS)
        else:
            assert bench.identity.is_whole(entry)
    finally:
        sim.nvml.uninstall()


@pytest.fixture
def by_place(tmp_path: Path) -> Iterator[GpuBench]:
    """A GPU whose driver makes the UUID from the place: the next slice there has the same."""
    yield GpuBench(tmp_path, variants=Variants(mig_uuid="place"))
    sim.nvml.uninstall()


def test_a_mark_tells_whose_a_leftover_is_after_a_restart(by_place: GpuBench) -> None:
    entry = by_place.made("a", State.LEFTOVER)
    by_place.forget()
    assert by_place.identity.is_whole(entry)


def test_a_compute_instance_that_was_made_anew_with_the_same_uuid_is_of_another(
    by_place: GpuBench,
) -> None:
    entry = by_place.made("a", State.PREPARED)
    by_place.destroy_compute_instances(entry)
    by_place.add_compute_instances(entry.gi_id or 0, count=1)
    (made,) = by_place.machine.gpu(0).gpu_instances
    assert [c.uuid for c in made.compute_instances] == [entry.mig_uuid]
    doubted(by_place, entry, Doubt.REMADE)
