"""A process killed in the middle, and somebody's instance in the place of ours before the next."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest

from dra.gpu.inventory import ClaimRef
from kubeletplugin.journal.entries import State
from sim.nvml.products import OTHERS
from tests.failures.helpers.agreement import check_foreign, entries, instance_of
from tests.failures.helpers.plant import Plant
from tests.failures.helpers.site import Site
from tests.failures.helpers.steps import KilledError, Step, StepRecorder

EVERY_STEP = bool(os.environ.get("MIG_SOAK"))
"""Without, only after one of ``STEPS``."""
DEVICE, BESIDE = "gpu-0-mig-3g20gb-9-4", "gpu-0-mig-1g5gb-19-0"
STEPS = {
    "prepare": "nvmlDeviceCreateGpuInstanceWithPlacement",
    "unprepare": "nvmlComputeInstanceDestroy",
}
CASES = [*product(STEPS, ("", "processes-hidden") if EVERY_STEP else ("",))]
"""Operation, and the driver's variant."""


def started(site: Site, recorder: StepRecorder) -> Plant:
    plant = Plant(site, recorder)
    plant.start()
    return plant


def before(folder: Path, recorder: StepRecorder, name: str, variant: str) -> tuple[Site, ClaimRef]:
    """A node with a neighbour, and the claim: prepared if it is to be unprepared."""
    site = Site.create(folder / "n", gpus=1, variants=OTHERS[variant] if variant else None)
    plant = started(site, recorder)
    assert not plant.prepare(site.claim("neighbour", [BESIDE])).error
    ref = site.claim("claim", [DEVICE])
    if name == "unprepare":
        assert not plant.prepare(ref).error
    plant.look()
    site.save(folder / "before")
    return site, ref


def steps(site: Site, ref: ClaimRef, recorder: StepRecorder, name: str) -> list[Step]:
    plant = started(site, recorder)
    recorder.arm()
    getattr(plant, name)(ref)
    return recorder.disarm()


def kill(site: Site, ref: ClaimRef, recorder: StepRecorder, *, name: str, point: int) -> None:
    plant = started(site, recorder)
    recorder.arm(kill_after=point)
    with pytest.raises(KilledError):
        getattr(plant, name)(ref)


def exchange(site: Site) -> set[int]:
    """Somebody's slice is where the claim's was, if there was one; its key."""
    found = instance_of(site, DEVICE)
    if found is None:
        return set()
    site.machine.destroy_slice(0, found[1].id)
    site.machine.create_slice(0, "3g.20gb", start=4)
    theirs = instance_of(site, DEVICE)
    assert theirs is not None
    return {theirs[1].key}


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_what_was_exchanged_after_a_kill_stays(
    folder: Path, recorder: StepRecorder, name: str, variant: str
) -> None:
    """But where the GPU instance is on record and a UUID is not: that of ours may be any."""
    site, ref = before(folder, recorder, name, variant)
    taken = steps(site, ref, recorder, name)
    points = [n for n, s in enumerate(taken, 1) if EVERY_STEP or s.name == STEPS[name]]
    assert points
    for point in points:
        site.restore(folder / "before")
        kill(site, ref, recorder, name=name, point=point)
        known = [e for e in entries(site) if e.claim == ref]
        theirs = exchange(site)
        plant = started(site, recorder)
        plant.tend()
        left = {e.state for e in entries(site) if e.claim == ref}
        nameless = [(e.state, e.mig_uuid) for e in known] == [(State.GI_CREATED, "")]
        if theirs and not nameless:
            check_foreign(site, theirs)
            assert State.PREPARED not in left, f"taken after step {point}, {taken[point - 1]}"
