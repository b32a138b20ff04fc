"""Identity: whose an instance is, told by record, ids and UUID."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dra.gpu.geometry import Placement
from kubeletplugin.gpus.identity import FoundInstance, how_to_remove
from kubeletplugin.journal.entries import Entry, State
from kubeletplugin.nvml.instances import GpuInstance
from sim.nvml.faults import Fault
from sim.nvml.products import Variants
from tests.kubeletplugin.helpers.gpubench import ELSEWHERE, NOT_FOUND, PLACE, GpuBench

PID = 4711
GET_GI = "nvmlDeviceGetGpuInstanceById"


@pytest.fixture
def bench(tmp_path: Path) -> GpuBench:
    return GpuBench(tmp_path)


def others(bench: GpuBench, entry: Entry) -> FoundInstance:
    found = bench.hardware.identity.find_own_instance(entry)
    assert (found.own, found.whole, found.bare) == (None, False, False)
    assert bench.hardware.identity.own_instance(entry) is None
    assert not bench.hardware.identity.is_whole(entry)
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


BARE: dict[str, dict[str, object]] = {
    "half made": {"state": State.GI_CREATED, "ci_id": None, "mig_uuid": ""},
    "on its way out": {"state": State.DESTROYING, "ci_id": None},
    "left over": {"state": State.LEFTOVER, "ci_id": None},
}


@pytest.mark.parametrize("case", BARE)
def test_without_its_compute_instance_it_is_its_own_where_that_may_be_and_never_whole(
    bench: GpuBench, case: str
) -> None:
    entry = replace(bench.made("a", State.PREPARED), **BARE[case])  # type: ignore[arg-type]
    bench.destroy_compute_instances(entry)
    assert bench.hardware.identity.own_instance(entry) == GpuInstance(entry.gi_id or 0, 19, PLACE)
    assert not bench.hardware.identity.is_whole(entry)


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
    assert bench.hardware.identity.find_own_instance(entry) == FoundInstance()


def test_one_wrong_answer_gives_no_instance_up(bench: GpuBench) -> None:
    entry = bench.made("a", State.PREPARED)
    bench.machine.inject(Fault(function=GET_GI, action="return", code=NOT_FOUND, times=1))
    assert bench.hardware.identity.own_instance(entry) == GpuInstance(entry.gi_id or 0, 19, PLACE)


# -- another's

BARE_WHY = "but its compute instance is not in it"
STRANGE_WHY = "but another compute instance is in it"


def test_one_that_took_its_place_is_of_another(bench: GpuBench) -> None:
    entry = bench.made("a", State.PREPARED)
    bench.remake(entry)
    (made,) = bench.machine.gpu(0).gpu_instances
    found = others(bench, entry)
    assert found.other == (
        f"GPU instance {entry.gi_id} of GPU {entry.gpu} (with {made.compute_instances[0].uuid}) "
        f"lies where {entry.device} of claim default/a was made with {entry.mig_uuid}, "
        f"{STRANGE_WHY}"
    )
    assert found.remedy == how_to_remove(entry.gpu, entry.gi_id or 0)


@pytest.mark.parametrize("state", [State.PREPARED, State.LOST, State.LEFTOVER, State.TOMBSTONE])
def test_one_that_lacks_the_compute_instance_that_nobody_destroyed_is_of_another(
    bench: GpuBench, state: State
) -> None:
    entry = bench.made("a", state)
    bench.destroy_compute_instances(entry)
    found = others(bench, entry)
    assert "(with no compute instance) lies" in found.other
    assert found.other.endswith(BARE_WHY)


def test_several_compute_instances_are_of_others_unless_the_recorded_one_is_among_them(
    bench: GpuBench,
) -> None:
    found = bench.machine.create_slice(0, "2g.10gb", start=4, compute=False)
    changes = {"profile_id": 14, "placement": Placement(4, 2), "gi_id": found.gpu_instance}
    entry = replace(bench.entry("a", state=State.GI_CREATED), **changes)  # type: ignore[arg-type]
    bench.add_compute_instances(found.gpu_instance, count=2)
    ours, theirs = bench.machine.gpu(0).gpu_instances[0].compute_instances
    seen = others(bench, entry)
    assert seen.other.endswith(STRANGE_WHY)
    assert f"(with {ours.uuid}, {theirs.uuid}) lies where {entry.device} of claim" in seen.other
    entry = replace(entry, state=State.PREPARED, ci_id=theirs.id, mig_uuid=theirs.uuid)
    assert bench.hardware.identity.is_whole(entry)


# -- the UUID


@pytest.mark.parametrize("state", [s for s in State if s is not State.CI_DESTROYED])
@pytest.mark.parametrize("driver", ["new", "place"])
def test_boot_place_ids_and_uuid_are_enough_in_every_state(
    tmp_path: Path, state: State, driver: str
) -> None:
    bench = GpuBench(tmp_path, variants=Variants(mig_uuid=driver))  # type: ignore[arg-type]
    entry = bench.made("a", state)
    bench.forget()
    assert bench.hardware.identity.is_whole(entry)
