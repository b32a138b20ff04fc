"""Identity: owners of all instances of a GPU, and GPUs that do not answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kubeletplugin.journal.entries import State
from kubeletplugin.nvml.errors import NotSupportedError
from kubeletplugin.nvml.instances import GpuInstance, list_gpu_instances
from tests.kubeletplugin.helpers.gpubench import ELSEWHERE, GpuBench

NOT_SUPPORTED = 3
GET_GI = "nvmlDeviceGetGpuInstanceById"
MIG_MODE = "nvmlDeviceGetMigMode"


@pytest.fixture
def bench(tmp_path: Path) -> GpuBench:
    return GpuBench(tmp_path)


# -- a GPU that does not answer


MODES = {"on": True, "off": False}


def test_a_gpu_that_has_forgotten_that_it_has_mig_is_not_believed(bench: GpuBench) -> None:
    entry = bench.made("a", State.PREPARED)
    bench.keep(GET_GI, NOT_SUPPORTED)
    bench.keep(MIG_MODE, NOT_SUPPORTED)
    with pytest.raises(NotSupportedError):
        bench.hardware.identity.find_own_instance(entry)


# -- all instances of a GPU


def present(bench: GpuBench) -> tuple[GpuInstance, ...]:
    geometry = bench.unit.card.geometry
    assert geometry is not None
    return list_gpu_instances(bench.session, bench.unit.uuid, geometry)


@pytest.mark.parametrize(
    "differs", [{"boot_id": "before"}, {"gi_id": 99}, {"profile_id": 14}, {"placement": ELSEWHERE}]
)
def test_an_entry_that_differs_in_boot_id_or_place_owns_no_instance(
    bench: GpuBench, differs: dict[str, object]
) -> None:
    entry = bench.made("a", State.PREPARED)
    assert [*bench.identity.owners(present(bench), [entry]).values()] == [entry]
    other = replace(entry, **differs)  # type: ignore[arg-type]
    assert bench.identity.owners(present(bench), [other]) == {}


def test_owners_are_the_entries_of_instances_and_others_have_none(bench: GpuBench) -> None:
    bench.machine.create_slice(0, "2g.10gb", start=2)
    remade = bench.made("remade", State.PREPARED, ELSEWHERE)
    bench.remake(remade)
    entry = bench.made("a", State.PREPARED)
    entries = [bench.entry("elsewhere", gi_id=99), remade, entry]
    assert len(present(bench)) == 3
    assert bench.hardware.identity.owners(present(bench), entries) == {entry.gi_id: entry}


# -- ids alone
