"""Slices that kubelet was told of, lost, and not to be forgotten while they are made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra.gpu.inventory import ClaimRef
from kubeletplugin.journal.entries import ARRIVING, State
from sim.nvml.faults import Fault
from tests.failures.helpers.agreement import check_claim, check_settled, entries, instance_of
from tests.failures.helpers.plant import Plant
from tests.failures.helpers.site import Site
from tests.failures.helpers.steps import KilledError, Step, StepRecorder

DEVICE = "gpu-0-mig-3g20gb-9-4"
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
