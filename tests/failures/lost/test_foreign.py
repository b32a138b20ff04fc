"""Instances that others made exactly where a claim's slice belongs are never touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef, InstanceState
from kubeletplugin.journal.entries import State
from sim.nvml.faults import Fault
from sim.nvml.products import OTHERS
from tests.failures.helpers.agreement import check_foreign, check_settled, entries
from tests.failures.helpers.plant import Plant
from tests.failures.helpers.site import Site
from tests.failures.helpers.steps import KilledError, Step, StepRecorder

DEVICE = "gpu-0-mig-3g20gb-9-4"
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


@pytest.fixture(
    params=[None, OTHERS["mig-uuid-of-the-place"]], ids=["new UUIDs", "UUIDs of the place"]
)
def plant(folder: Path, recorder: StepRecorder, request: pytest.FixtureRequest) -> Plant:
    plant = Plant(Site.create(folder / "n", variants=request.param), recorder)
    plant.start()
    return plant


@pytest.fixture
def fresh(folder: Path, recorder: StepRecorder) -> Plant:
    """A driver that gives no UUID twice."""
    plant = Plant(Site.create(folder / "n"), recorder)
    plant.start()
    return plant


def foreign(site: Site, *, compute: bool) -> set[int]:
    """Somebody's instance of the claim's own shape, in its place; its key."""
    site.machine.create_slice(0, "3g.20gb", start=4, compute=compute)
    return {g.key for g in site.machine.gpu(0).gpu_instances}


@pytest.mark.parametrize("compute", [True, False], ids=["whole", "bare"])
def test_an_instance_that_comes_at_the_last_moment_stays(plant: Plant, *, compute: bool) -> None:
    keys: set[int] = set()

    def first(step: Step) -> OSError | None:
        if step.name == CREATE and not keys:
            with plant.recorder.outside():
                keys.update(foreign(plant.site, compute=compute))
        return None

    plant.recorder.refuse = first
    ref = plant.site.claim("new", [DEVICE])
    assert "which this plugin did not make" in plant.prepare(ref).error
    assert keys
    check_foreign(plant.site, keys)
    assert not plant.unprepare(ref).error
    check_settled(plant.site, {}, keys)


@pytest.mark.parametrize("compute", [True, False], ids=["whole", "bare"])
def test_an_instance_in_the_place_of_a_slice_lost_with_a_reboot_stays_and_the_place_is_kept(
    plant: Plant, *, compute: bool
) -> None:
    ref = plant.site.claim("old", [DEVICE])
    assert not plant.prepare(ref).error
    plant.site.machine.reboot()
    keys = foreign(plant.site, compute=compute)
    again = Plant(plant.site, plant.recorder)
    again.start()
    for _ in range(2):
        assert "did not make" in again.prepare(ref).error
        check_foreign(plant.site, keys)
    plant.site.machine.destroy_slice(0, plant.site.machine.gpu(0).gpu_instances[0].id)
    other = plant.site.claim("other", [DEVICE])
    assert str(ref.uid) in again.prepare(other).error, "the place is kept"
    assert not again.prepare(ref).error
    check_settled(plant.site, {ref: (DEVICE,)})


def replaced(site: Site, *, compute: bool) -> set[int]:
    """Somebody destroys our slice and makes one of the same shape there, which gets its id."""
    [ours] = site.machine.gpu(0).gpu_instances
    site.machine.destroy_slice(0, ours.id)
    keys = foreign(site, compute=compute)
    [theirs] = site.machine.gpu(0).gpu_instances
    assert theirs.id == ours.id
    return keys


def check_stays(plant: Plant, ref: ClaimRef, keys: set[int]) -> None:
    """Shown as another's, refused to the claim with the reason and the remedy, never destroyed."""
    plant.look()
    inventory = plant.inventory()
    assert inventory is not None
    here = [i for i in inventory.gpus[0].instances if i.state is not InstanceState.LOST]
    assert [i.state for i in here] == [InstanceState.FOREIGN]
    error = plant.prepare(ref).error
    assert "nvidia-smi mig" in error
    assert "lies where gpu-0-mig-3g20gb-9-4" in error
    check_foreign(plant.site, keys)
    assert not plant.unprepare(ref).error
    plant.tend()
    told = dict(plant.events)["ForeignInstance"]
    assert f"{DEVICE} of claim {ref}" in told
    assert "-dgi -gi" in told
    check_settled(plant.site, {}, keys)


@pytest.mark.parametrize("when", ["meanwhile", "between two looks", "under a new process"])
@pytest.mark.parametrize("compute", [True, False], ids=["whole", "bare"])
def test_an_instance_that_took_the_place_and_the_id_of_ours_stays(
    fresh: Plant, *, compute: bool, when: str
) -> None:
    ref = fresh.site.claim("held", [DEVICE])
    assert not fresh.prepare(ref).error
    if when == "meanwhile":
        fresh.site.machine.destroy_slice(0, fresh.site.machine.gpu(0).gpu_instances[0].id)
        fresh.tend()
        keys = foreign(fresh.site, compute=compute)
        check_stays(fresh, ref, keys)
        return
    now = fresh
    if when == "under a new process":
        now = restarted(fresh)
        now.start()
    check_stays(now, ref, replaced(fresh.site, compute=compute))


def test_a_compute_instance_that_somebody_made_in_what_we_left_stays(plant: Plant) -> None:
    site = plant.site
    ref = site.claim("held", [DEVICE])
    assert not plant.prepare(ref).error
    site.machine.inject(Fault(function="nvmlGpuInstanceDestroy", action="return", code=19, times=0))
    assert not plant.unprepare(ref).error
    assert [e.state for e in entries(site)] == [State.CI_DESTROYED]
    site.machine.clear_faults()
    keys = replaced(site, compute=True)
    plant.tend()
    check_settled(site, {}, keys)


def killed_once(plant: Plant, name: str) -> Plant:
    """The process ends right after a call of NVML in a Prepare; not started again yet."""
    taken: list[str] = []

    def refuse(step: Step) -> OSError | None:
        if taken:
            plant.recorder.die()
        if step.name == name:
            taken.append(name)
        return None

    plant.recorder.refuse = refuse
    with pytest.raises(KilledError):
        plant.prepare(plant.site.claim("half", [DEVICE]))
    plant.recorder.refuse = lambda step: None
    return Plant(plant.site, plant.recorder)


def test_a_whole_instance_where_ours_was_only_meant_to_be_stays(plant: Plant) -> None:
    again = killed_once(plant, CREATE)
    assert [e.state for e in entries(plant.site)] == [State.INTENT]
    keys = replaced(plant.site, compute=True)
    plant.site.api().delete(RESOURCE_CLAIMS, "half", namespace="default")
    again.start()
    again.tend()
    check_settled(plant.site, {}, keys)


def leftover(plant: Plant) -> ClaimRef:
    """A claim that kubelet has released, whose slice a process kept from being removed."""
    site = plant.site
    ref = site.claim("left", [DEVICE])
    assert not plant.prepare(ref).error
    [gi] = site.machine.gpu(0).gpu_instances
    site.machine.start_process(0, 77, gpu_instance=gi.id, compute_instance=0)
    assert not plant.unprepare(ref).error
    assert [e.state for e in entries(site)] == [State.LEFTOVER]
    return ref


def restarted(plant: Plant) -> Plant:
    """A new process on the same node, before it starts."""
    plant.recorder.die()
    return Plant(plant.site, plant.recorder)


def test_a_leftover_that_was_exchanged_while_the_plugin_was_away_stays(fresh: Plant) -> None:
    leftover(fresh)
    again = restarted(fresh)
    fresh.site.machine.end_process(77)
    keys = replaced(fresh.site, compute=True)
    again.start()
    again.tend()
    check_settled(fresh.site, {}, keys)
    told = dict(again.events)["ForeignInstance"]
    assert "-dgi -gi" in told
