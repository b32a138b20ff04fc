"""Slices that went with a driver reload or a GPU reset are made again for their claims."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import sim.nvml
from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.inventory import ClaimRef
from kubeletplugin.journal.entries import ARRIVING, State
from sim.nvml.faults import Fault
from tests.failures.helpers.agreement import check_claim, check_settled, entries, instance_of
from tests.failures.helpers.plant import Plant
from tests.failures.helpers.site import Site
from tests.failures.helpers.steps import KilledError, Step, StepRecorder

DEVICE = "gpu-0-mig-3g20gb-9-4"


BESIDE = "gpu-0-mig-1g5gb-19-0"


def again(plant: Plant) -> Plant:
    """A new process of the program."""
    plant = Plant(plant.site, plant.recorder)
    plant.start()
    return plant


def held(plant: Plant, device: str = DEVICE) -> ClaimRef:
    ref = plant.site.claim(f"holds-{device}", [device])
    assert not plant.prepare(ref).error
    return ref


def reload(plant: Plant) -> Plant:
    sim.nvml.end()
    plant.site.machine.reload_driver()
    return again(plant)


def reload_under_it(plant: Plant) -> Plant:
    for function in ("nvmlDeviceGetMigMode", "nvmlSystemGetDriverVersion"):
        fault = Fault(id=function, function=function, action="return", code=9, times=0)
        plant.site.machine.inject(fault)
    plant.look()  # the driver is not loaded
    plant.site.machine.clear_faults()
    plant.site.machine.reload_driver()
    plant.look()
    return plant


def lose(plant: Plant) -> Plant:
    plant.site.machine.lose(0)
    plant.look()
    plant.site.machine.recover(0)
    plant.look()
    return plant


def toggle(plant: Plant) -> Plant:
    plant.site.machine.set_mig_mode(0, enabled=False)
    plant.look()
    plant.tend()
    plant.site.machine.set_mig_mode(0, enabled=True)
    plant.look()
    return plant


@pytest.mark.parametrize("wipe", [reload, reload_under_it, lose, toggle])
def test_what_a_gpu_lost_as_a_whole_is_made_again_with_a_new_spec(
    plant: Plant, wipe: Callable[[Plant], Plant]
) -> None:
    ref, other = held(plant), held(plant, BESIDE)
    before = {e.mig_uuid for e in entries(plant.site)}
    plant = wipe(plant)
    plant.tend()
    check_settled(plant.site, {ref: (DEVICE,), other: (BESIDE,)})
    assert before.isdisjoint(e.mig_uuid for e in entries(plant.site))
    assert "have to be restarted" in dict(plant.events)["SliceRestored"]
    plant.publish()
    shown = plant.site.api().get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
    [device] = shown["status"]["devices"]
    assert device["conditions"][0]["status"] == "True"
    assert device["data"]["migUUID"] in {e.mig_uuid for e in entries(plant.site)}
    mutations = len(plant.site.machine.mutations())
    plant.tend()
    assert len(plant.site.machine.mutations()) == mutations


def test_a_shared_slice_is_made_again_once_for_those_who_still_use_it(plant: Plant) -> None:
    share = f"{DEVICE}-share"
    refs = [plant.site.claim(f"claim-{number}", [share]) for number in range(3)]
    assert not any(plant.prepare(ref).error for ref in refs)
    plant.site.unreserve(refs[2])
    made = len(plant.site.machine.mutations())
    plant = reload(plant)
    plant.tend()
    assert [e.state for e in entries(plant.site)] == [State.PREPARED, State.PREPARED, State.LOST]
    assert len(plant.site.machine.mutations()) == made + 2
    for ref, left in zip(refs, (1, 0, 0), strict=True):
        assert not plant.unprepare(ref).error
        assert len(plant.site.machine.gpu(0).gpu_instances) == left
    check_settled(plant.site, {})


def test_where_another_sits_the_place_is_kept_and_the_entry_says_who(plant: Plant) -> None:
    ref = held(plant)
    plant = reload(plant)
    plant.site.machine.create_slice(0, "3g.20gb", start=4)
    [gi] = plant.site.machine.gpu(0).gpu_instances
    plant.tend()
    [entry] = entries(plant.site)
    assert (entry.state, entry.wiped) == (State.LOST, True)
    assert f"GPU instance {gi.id}" in entry.note
    assert "did not make" in entry.note
    plant.site.machine.destroy_slice(0, gi.id)
    plant.tend()
    check_settled(plant.site, {ref: (DEVICE,)})


def test_a_lost_slice_that_cannot_be_made_when_kubelet_asks_keeps_its_place(plant: Plant) -> None:
    ref = held(plant)
    plant.site.machine.destroy_slice(0, plant.site.machine.gpu(0).gpu_instances[0].id)
    plant.tend()
    plant.site.machine.inject(
        Fault(function="nvmlGpuInstanceCreateComputeInstance", action="return", code=4, times=1)
    )
    assert "NO_PERMISSION" in plant.prepare(ref).error
    assert [(e.claim, e.state) for e in entries(plant.site)] == [(ref, State.LOST)]
    assert not plant.site.machine.gpu(0).gpu_instances
    assert not plant.prepare(ref).error
    check_settled(plant.site, {ref: (DEVICE,)})


def test_a_gpu_that_would_not_say_who_it_is_is_asked_again_and_its_ended_claim_goes(
    plant: Plant,
) -> None:
    ref = held(plant)
    plant.site.delete_claim(ref)
    plant.site.machine.inject(Fault(function="nvmlDeviceGetUUID", action="return", code=4, times=1))
    plant = again(plant)
    plant.tend()
    assert [e.state for e in entries(plant.site)] == [State.TOMBSTONE]
    plant.look()
    plant.tend()
    check_settled(plant.site, {})


# -- slices that kubelet was told of, lost, and not to be forgotten while they are made again


CREATE_CI = "nvmlGpuInstanceCreateComputeInstance"


CREATE_GI = "nvmlDeviceCreateGpuInstanceWithPlacement"


DESTROY_GI = "nvmlGpuInstanceDestroy"


LAYOUTS = """
version: v1
mig-configs:
  a: [{devices: all, mig-enabled: true, mig-devices: {3g.20gb: 2}}]
"""


CHANGES = (CREATE_CI, CREATE_GI, DESTROY_GI, "nvmlComputeInstanceDestroy")


def losing(site: Site, recorder: StepRecorder) -> tuple[Plant, ClaimRef]:
    """A claim whose slice somebody destroyed."""
    plant = Plant(site, recorder)
    plant.start()
    ref = site.claim("held", [DEVICE])
    assert not plant.prepare(ref).error
    found = instance_of(site, DEVICE)
    assert found is not None
    site.machine.destroy_slice(0, found[1].id)
    plant.tend()
    assert [e.state for e in entries(site) if e.claim == ref] == [State.LOST]
    return plant, ref


def is_change(step: Step) -> bool:
    """True if a new process may find something else after a step than before."""
    return step.name in CHANGES or (step.name == "replace" and "journal" in step.path)


def changes(plant: Plant, ref: ClaimRef) -> list[int]:
    """The numbers of a Prepare's steps that change anything."""
    plant.recorder.arm()
    plant.prepare(ref)
    return [n for n, step in enumerate(plant.recorder.disarm(), 1) if is_change(step)]


def killed(plant: Plant, ref: ClaimRef, point: int) -> Plant:
    """The process ends after that step of a Prepare; the next one finds the API server away."""
    plant.recorder.arm(kill_after=point)
    with pytest.raises(KilledError):
        plant.prepare(ref)
    again = Plant(plant.site, plant.recorder)
    again.api_down = True
    again.start()
    again.tend()
    return again


def test_killed_while_it_is_made_again_or_that_is_undone_it_keeps_its_place(
    folder: Path, recorder: StepRecorder
) -> None:
    plant, ref = losing(Site.create(folder / "n"), recorder)
    refuse = Fault(id="no", function=CREATE_CI, action="return", code=4, times=0)
    plant.site.machine.inject(refuse)
    plant.site.save(folder / "before")
    points = changes(plant, ref)
    assert len(points) > 4
    for point in points:
        plant.site.restore(folder / "before")
        plant = Plant(plant.site, recorder)
        plant.start()
        again = killed(plant, ref, point)
        # What is half made stays so until the API server says what becomes of the claim.
        [known] = entries(plant.site)
        half_made = known.remade and known.state in ARRIVING
        assert known.state is State.LOST or half_made, f"after step {point}: {known}"
        again.api_down = False
        again.site.machine.clear_faults("no")
        other = again.site.claim("other", [DEVICE])
        assert ref.uid in again.prepare(other).error, f"after step {point} its place is not kept"
        assert not again.prepare(ref).error
        check_settled(again.site, {ref: (DEVICE,)})
        assert not again.unprepare(ref).error
        check_settled(again.site, {})


def test_a_lost_slice_of_a_layout_keeps_its_place_where_it_cannot_be_made_again(
    folder: Path, recorder: StepRecorder
) -> None:
    site = Site.create(folder / "n", gpus=1, layouts=LAYOUTS)
    site.declare("a")
    plant, ref = losing(site, recorder)
    plant.site.machine.inject(Fault(id="no", function=CREATE_CI, action="return", code=4, times=0))
    assert "NO_PERMISSION" in plant.prepare(ref).error
    assert [e.state for e in entries(plant.site) if e.claim == ref] == [State.LOST]
    plant.site.machine.clear_faults("no")
    assert not plant.prepare(ref).error
    check_claim(plant.site, ref, (DEVICE,))
