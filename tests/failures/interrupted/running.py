"""An operation that is done on its node: step by step, or killed after one of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from api.config import API_VERSION
from dra.common.resources import Obj
from sim.nvml.products import Variants
from tests.failures.helpers.disk import Disk
from tests.failures.helpers.plant import Plant
from tests.failures.helpers.site import DRIVER, Site
from tests.failures.helpers.steps import Step, StepRecorder, hooked
from tests.failures.interrupted.scenarios import SCENARIOS
from tests.failures.interrupted.scene import (
    FOREIGN,
    MPS,
    NEIGHBOUR,
    SHARED,
    WHOLE,
    Scenario,
    Scene,
    running_plant,
)
from tests.failures.interrupted.setups import make_foreign

_QUERIES = ("nvmlDeviceGet", "nvmlGpuInstanceGet", "nvmlComputeInstanceGet", "nvmlSystemGet")
"""Calls that only ask NVML and change nothing: most of the steps, and a look at it is dear."""


def set_scene(root: str, name: str, variants: Variants | None) -> Scene:
    """Build the node, with a driver that behaves in one way, and bring it to the moment before."""
    scenario = SCENARIOS[name]
    idle_seconds = 3600.0 if scenario.keeps else 0.0
    layouts = _layouts(*scenario.layouts) if scenario.layouts else ""
    site = Site.create(
        Path(root),
        variants=variants,
        idle_seconds=idle_seconds,
        layouts=layouts,
        whole=int(scenario.devices == WHOLE),
        mps=scenario.sharing is MPS,
    )
    if layouts:
        site.declare("before")
    make_foreign(site)
    if scenario.devices == WHOLE:
        # Of a claim that is there before the journal, a whole GPU counts as prepared.
        with hooked(StepRecorder()) as recorder:
            Plant(site, recorder).start()
    config = [] if scenario.sharing is None else [_opaque(scenario)]
    target = site.claim("target", scenario.devices, awaited=scenario.awaited, config=config)
    beside = SHARED if scenario.devices == SHARED else NEIGHBOUR
    neighbour = site.claim("neighbour", beside)
    scene = Scene(site, target, scenario.devices, neighbour, frozenset())
    scenario.setup(scene)
    found = [g.key for g in site.machine.gpu(0).gpu_instances if g.start == FOREIGN[1]]
    return replace(scene, foreign=frozenset(found))


def _opaque(scenario: Scenario) -> Obj:
    """The configuration of the claim's devices."""
    kind = "GpuConfig" if scenario.devices == WHOLE else "MigDeviceConfig"
    parameters = {"apiVersion": API_VERSION, "kind": kind, "sharing": scenario.sharing}
    return {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}


def _layouts(before: str, after: str) -> str:
    """A file of mig-parted's with the slices of the second GPU; the first is left to claims."""
    entry = "[{{devices: [1], mig-enabled: true, mig-devices: {0}}}]"
    return (
        "version: v1\nmig-configs:\n"
        f"  before: {entry.format(before)}\n  after: {entry.format(after)}\n"
    )


@dataclass(frozen=True, slots=True)
class Taken:
    """A step, and the digest of the node's folder after it."""

    step: Step
    left: str


def record(scene: Scene, name: str) -> list[Taken]:
    """Do the operation to its end; returns every step of it."""
    left: list[str] = []
    disk = Disk(scene.site.root)

    def look() -> None:
        queried = recorder.taken[-1].name.startswith(_QUERIES)
        left.append(left[-1] if left and queried else disk.digest())

    recorder = StepRecorder(after=look)
    steps = _act(scene, name, recorder, None)
    return [Taken(s, d) for s, d in zip(steps, left, strict=True)]


def act(scene: Scene, name: str, kill_after: int) -> list[Step]:
    """Do the operation in a new process, killed after that many steps."""
    return _act(scene, name, StepRecorder(), kill_after)


def _act(scene: Scene, name: str, recorder: StepRecorder, kill_after: int | None) -> list[Step]:
    scenario = SCENARIOS[name]
    with running_plant(scene, recorder) as plant:
        if scenario.starts:
            plant.start()
            scenario.prelude(scene, plant)
        recorder.arm(kill_after=kill_after)
        scenario.act(scene, plant)
        return recorder.disarm()
