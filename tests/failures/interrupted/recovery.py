"""Recovery of what a killed process left, by a new one, and what has to agree then."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from dra.gpu.inventory import ClaimRef
from kubeletplugin.journal.entries import ARRIVING
from tests.failures.helpers.agreement import (
    check_claim,
    check_foreign,
    check_running_daemons,
    check_settled,
    check_sharing,
    entries,
    instance_of,
    slices_made,
)
from tests.failures.helpers.plant import Plant
from tests.failures.helpers.steps import StepRecorder
from tests.failures.interrupted.scenarios import SCENARIOS
from tests.failures.interrupted.scene import (
    DECLARED,
    LONG,
    MPS,
    TURNS,
    Scenario,
    Scene,
    running_plant,
)


def recover(scene: Scene, name: str, kept: str, *, way: int | None) -> None:
    """Start a new process on what the killed one left, in every way that the story can go on.

    ``kept`` is where to keep a copy of the node meanwhile. With a number for ``way`` it goes on in
    one way only: after an even one with the claim still wanted, or unprepared, else with it gone.
    """
    scenario = SCENARIOS[name]
    ways = [_kubelet_prepares if scenario.wanted else _kubelet_unprepares, _claim_is_gone]
    if way is not None:
        _go_on(scene, scenario, ways[way % 2])
        return
    if scenario.wanted:
        ways.append(_kubelet_unprepares)
    copy = Path(kept)
    scene.site.save(copy)
    for each in ways:
        scene.site.restore(copy)
        _go_on(scene, scenario, each)


def _go_on(scene: Scene, scenario: Scenario, way: Callable[[Scene, Plant], None]) -> None:
    check_running_daemons(scene.site)
    with running_plant(scene, StepRecorder()) as plant:
        before = None if scenario.neighbour_waits else _neighbour(scene)
        known = entries(scene.site)
        half_made = any(e.state in ARRIVING for e in known)
        plant.start()
        told = {e.key for e in known if e.kubelet_knows}
        assert told <= {e.key for e in entries(scene.site)}, "forgotten, and kubelet was told of it"
        if scenario.wanted:
            _check_resumed(plant, half_made=half_made)
        _check_others(scene, before)
        if scenario.awaited:
            _check_told(scene, plant)
        way(scene, plant)
        _check_others(scene, before)
        if scenario.neighbour_waits:
            assert not plant.prepare(scene.neighbour).error
        plant.publish()
        if scene.site.machine.state().variants.gsp_keeps:
            plant.tend()  # the first instance at a place that was kept is refused
        plant.tend()
        plant.give_up_idle()
        left: dict[ClaimRef, tuple[str, ...]] = {scene.neighbour: scene.beside}
        if way is _kubelet_prepares:
            left[scene.target] = scene.devices
        ready = scenario.ready
        if scenario.layouts:
            scene.site.declare("after")
            plant.heed_labels()
            if scene.devices == DECLARED and way is not _kubelet_prepares:
                ready += DECLARED
        check_settled(scene.site, left, scene.foreign, ready=ready)
        held = scenario.sharing if scene.target in left else None
        check_sharing(
            scene.site,
            lengths=(0, LONG if held is TURNS else 0),
            daemons={scene.target.uid} if held is MPS else (),
        )


def _kubelet_prepares(scene: Scene, plant: Plant) -> None:
    """Kubelet asks again, for a claim that is still allocated."""
    outcome = plant.prepare(scene.target)
    assert not outcome.error, outcome.error
    assert [d.device for d in outcome.devices] == list(scene.devices)
    check_claim(scene.site, scene.target, scene.devices)
    assert plant.prepare(scene.target) == outcome, "a repeated call changes nothing"


def _check_resumed(plant: Plant, *, half_made: bool) -> None:
    """Kubelet is made to ask again if what it asked for was half made, and only then."""
    outcomes = plant.daemon.node.outcomes
    outcomes.registered()
    assert bool(outcomes.resumed) == half_made


def _check_told(scene: Scene, plant: Plant) -> None:
    """kube-scheduler is told of slices that are there, while a pod has their claim reserved."""
    for _ in range(2):  # what is written is watched too
        plant.watch(scene.target)
        if scene.site.machine.state().variants.instance_lingers:
            plant.tend()  # a removal that was refused is tried again by the janitor
        plant.publish()
    wanted = "reservedFor" in scene.site.status(scene.target)
    known = {e.device for e in entries(scene.site) if e.claim == scene.target}
    there = {d for d in known if instance_of(scene.site, d) is not None}
    told = slices_made(scene.site, scene.target)
    assert told == there == (set(scene.devices) if wanted else set())


def _kubelet_unprepares(scene: Scene, plant: Plant) -> None:
    """The pod is gone, and kubelet knows of it."""
    outcome = plant.unprepare(scene.target)
    assert not outcome.error, outcome.error


def _claim_is_gone(scene: Scene, plant: Plant) -> None:
    """Nobody ever asks again: the claim is found gone."""
    scene.site.delete_claim(scene.target)
    plant.tend()


def _neighbour(scene: Scene) -> str:
    """UUID of the neighbour's MIG device."""
    check_claim(scene.site, scene.neighbour, scene.beside)
    spec = (scene.site.roots.cdi / f"k8s.mig.dra.dev-claim_{scene.neighbour.uid}.yaml").read_bytes()
    [gi] = [g for g in scene.site.machine.gpu(0).gpu_instances if g.start == 0]
    return f"{gi.key} {gi.compute_instances} {hashlib.sha256(spec).hexdigest()}"


def _check_others(scene: Scene, before: str | None) -> None:
    if before is not None:
        assert _neighbour(scene) == before, "the neighbour's slice was touched"
    check_foreign(scene.site, scene.foreign)
