"""The node before an operation: what was prepared, made ahead, or left half done."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from dra.gpu.inventory import ClaimRef
from kubeletplugin.journal.entries import State
from tests.failures.helpers.agreement import entries, instance_of
from tests.failures.helpers.plant import Plant
from tests.failures.helpers.site import Site
from tests.failures.helpers.steps import KilledError, Step, StepRecorder
from tests.failures.interrupted.operations import make_ahead
from tests.failures.interrupted.scene import FOREIGN, Scene, running_plant

CREATE_CI = "nvmlGpuInstanceCreateComputeInstance"


def _prepared(scene: Scene, *refs: ClaimRef) -> None:
    with running_plant(scene, StepRecorder()) as plant:
        plant.start()
        for ref in refs:
            outcome = plant.prepare(ref)
            assert not outcome.error, outcome.error
        plant.publish()


def only_neighbour(scene: Scene) -> None:
    _prepared(scene, scene.neighbour)


def both(scene: Scene) -> None:
    _prepared(scene, scene.neighbour, scene.target)


def rebooted(scene: Scene) -> None:
    """Instances are gone, minors renumbered, and so is what was on a tmpfs."""
    both(scene)
    scene.site.machine.reboot(minors=[1, 0])
    shutil.rmtree(scene.site.roots.cdi)
    make_foreign(scene.site)


def lost(scene: Scene) -> None:
    """Somebody destroyed the target's slices."""
    both(scene)
    for device in scene.devices:
        found = instance_of(scene.site, device)
        assert found is not None
        scene.site.machine.destroy_slice(found[0].uuid, found[1].id)
    with running_plant(scene, StepRecorder()) as plant:
        plant.start()
    states = {e.state for e in entries(scene.site) if e.claim == scene.target}
    assert states == {State.LOST}


def half_made(scene: Scene) -> None:
    """The process ended right after a compute instance was made."""
    only_neighbour(scene)
    _end_half_way(scene, lambda scene, plant: plant.prepare(scene.target))


def _end_half_way(scene: Scene, act: Callable[[Scene, Plant], object]) -> None:
    recorder = StepRecorder(in_process=True)
    with running_plant(scene, recorder) as plant:
        plant.start()

        def refuse(step: Step) -> OSError | None:
            if any(s.name == CREATE_CI for s in recorder.taken):
                recorder.die()
            return None

        recorder.refuse = refuse
        recorder.arm()
        try:
            act(scene, plant)
        except KilledError:
            return
        raise AssertionError("it was not killed")


def ahead(scene: Scene) -> None:
    """The target's slices are there, and kubelet has not asked for them."""
    only_neighbour(scene)
    with running_plant(scene, StepRecorder()) as plant:
        plant.start()
        make_ahead(scene, plant)


def half_ahead(scene: Scene) -> None:
    """The process ended right after a compute instance was made, before kubelet asked for it."""
    only_neighbour(scene)
    _end_half_way(scene, make_ahead)


def make_foreign(site: Site) -> None:
    site.machine.create_slice(0, FOREIGN[0], start=FOREIGN[1])
