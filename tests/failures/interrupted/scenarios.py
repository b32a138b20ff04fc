"""Operations of the node program that are interrupted, each on a node that others use too."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from api.config import API_VERSION
from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef
from kubeletplugin.journal.entries import ARRIVING
from tests.failures.agreement import (
    check_claim,
    check_foreign,
    check_running_daemons,
    check_settled,
    check_sharing,
    entries,
    instance_of,
    slices_made,
)
from tests.failures.disk import Disk
from tests.failures.plant import Plant
from tests.failures.site import DRIVER, Site
from tests.failures.steps import KilledError, Step, StepRecorder, hooked

TARGET = ("gpu-0-mig-1g5gb-19-4",)
TWO_GPUS = ("gpu-0-mig-2g10gb-14-2", "gpu-1-mig-1g5gb-19-0")
IN_THE_WAY = ("gpu-0-mig-1g5gb-19-3", "gpu-1-mig-2g10gb-14-0")
NEIGHBOUR = ("gpu-0-mig-1g5gb-19-0",)
SHARED = ("gpu-0-mig-1g5gb-19-0-share",)
"""Device that the neighbour shares with the target, where that has it."""
SHARE = ("gpu-0-mig-1g5gb-19-4-share",)
WHOLE = ("gpu-1",)
LONG = 3
TURNS: Obj = {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}}
MPS: Obj = {"strategy": "MPS", "mps": {"activeThreadPercentage": 40}}
DECLARED = ("gpu-1-mig-3g20gb-9-4",)
BESIDE_DECLARED = "gpu-1-mig-3g20gb-9-0"
FOREIGN = ("1g.5gb", 5)
CREATE_CI = "nvmlGpuInstanceCreateComputeInstance"
_QUERIES = ("nvmlDeviceGet", "nvmlGpuInstanceGet", "nvmlComputeInstanceGet", "nvmlSystemGet")
"""Calls that only ask NVML and change nothing: most of the steps, and a look at it is dear."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A node before the operation: our claim, a neighbour's that is prepared, a foreign slice."""

    site: Site
    target: ClaimRef
    devices: tuple[str, ...]
    neighbour: ClaimRef
    foreign: frozenset[int]

    @property
    def beside(self) -> tuple[str, ...]:
        """The neighbour's device."""
        return SHARED if self.devices == SHARED else NEIGHBOUR


@dataclass(frozen=True, slots=True)
class Scenario:
    """``setup`` leads to the moment before ``act``; it ends with the process that it started in.

    ``wanted`` is whether kubelet wants the claim prepared when it asks again. ``neighbour_waits``:
    the neighbour's slice went with a reboot and is there again once kubelet asks for it. With
    ``keeps`` GPU instances of released slices are kept. With ``reserves`` the claim is allocated
    only when kubelet wants it; before, its devices are reserved. ``awaited``: kube-scheduler binds
    the pod only once its slices are made. ``prelude`` is what the process that is interrupted does
    before. ``layouts`` are two that the second GPU has, one before and one after; ``ready`` are
    slices that are there in the end besides those that are wanted. ``sharing`` is how several
    processes share the claim's device; the second GPU is whole where that is wanted.
    """

    devices: tuple[str, ...]
    setup: Callable[[Scene], None]
    act: Callable[[Scene, Plant], None]
    wanted: bool = True
    starts: bool = True
    neighbour_waits: bool = False
    keeps: bool = False
    reserves: bool = False
    layouts: tuple[str, str] | None = None
    ready: tuple[str, ...] = ()
    awaited: bool = False
    sharing: Obj | None = None
    prelude: Callable[[Scene, Plant], None] = lambda scene, plant: None


@contextmanager
def _plant(scene: Scene, recorder: StepRecorder) -> Iterator[Plant]:
    with hooked(recorder):
        yield Plant(scene.site, recorder)


def _prepared(scene: Scene, *refs: ClaimRef) -> None:
    with _plant(scene, StepRecorder()) as plant:
        plant.start()
        for ref in refs:
            outcome = plant.prepare(ref)
            assert not outcome.error, outcome.error
        plant.publish()


def _only_neighbour(scene: Scene) -> None:
    _prepared(scene, scene.neighbour)


def _both(scene: Scene) -> None:
    _prepared(scene, scene.neighbour, scene.target)


def _rebooted(scene: Scene) -> None:
    """Instances are gone, minors renumbered, and so is what was on a tmpfs."""
    _both(scene)
    scene.site.machine.reboot(minors=[1, 0])
    shutil.rmtree(scene.site.roots.cdi)
    _make_foreign(scene.site)


def _half_made(scene: Scene) -> None:
    """The process ended right after a compute instance was made."""
    _only_neighbour(scene)
    _end_half_way(scene, lambda scene, plant: plant.prepare(scene.target))


def _end_half_way(scene: Scene, act: Callable[[Scene, Plant], object]) -> None:
    recorder = StepRecorder(in_process=True)
    with _plant(scene, recorder) as plant:
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


def _ahead(scene: Scene) -> None:
    """The target's slices are there, and kubelet has not asked for them."""
    _only_neighbour(scene)
    with _plant(scene, StepRecorder()) as plant:
        plant.start()
        _make_ahead(scene, plant)


def _half_ahead(scene: Scene) -> None:
    """The process ended right after a compute instance was made, before kubelet asked for it."""
    _only_neighbour(scene)
    _end_half_way(scene, _make_ahead)


def _kept(*devices: str) -> Callable[[Scene, Plant], None]:
    """The GPU instances of a claim that was released are there: this process keeps them."""

    def prelude(scene: Scene, plant: Plant) -> None:
        former = scene.site.claim("former", devices)
        assert not plant.prepare(former).error
        assert not plant.unprepare(former).error
        plant.publish()
        scene.site.delete_claim(former)
        known = plant.daemon.common.journal.of_claim(former.uid)
        assert [e.device for e in known if e.idle] == list(devices)

    return prelude


def _make_ahead(scene: Scene, plant: Plant) -> None:
    plant.watch(scene.target)
    plant.publish()
    known = plant.daemon.common.journal.of_claim(scene.target.uid)
    assert [e.device for e in known if e.ahead] == list(scene.devices)


def _give_back(scene: Scene, plant: Plant) -> None:
    scene.site.unreserve(scene.target)
    plant.watch(scene.target)
    plant.publish()


def _unallocated(scene: Scene) -> None:
    """The target has no devices; they are reserved in the MigNode."""
    _only_neighbour(scene)
    scene.site.deallocate(scene.target)
    scene.site.reserve(scene.target, scene.devices)


def _reserved(scene: Scene) -> None:
    """They are made, and neither is the claim allocated nor kubelet told of it."""
    _unallocated(scene)
    with _plant(scene, StepRecorder()) as plant:
        plant.start()
        _make_reserved(scene, plant)


def _make_reserved(scene: Scene, plant: Plant) -> None:
    plant.read_reservations()
    plant.publish()
    inventory = plant.inventory()
    assert inventory is not None
    assert [a.state.value for a in inventory.answers] == ["made"]


def _withdraw(scene: Scene, plant: Plant) -> None:
    scene.site.reserve(scene.target, ())
    plant.read_reservations()
    plant.publish()


def _prepare(scene: Scene, plant: Plant) -> None:
    outcome = plant.prepare(scene.target)
    assert not outcome.error, outcome.error
    plant.publish()


def _unprepare(scene: Scene, plant: Plant) -> None:
    outcome = plant.unprepare(scene.target)
    assert not outcome.error, outcome.error
    plant.publish()


def _change_layout(scene: Scene, plant: Plant) -> None:
    scene.site.declare("after")
    plant.heed_labels()
    plant.publish()


def _start(scene: Scene, plant: Plant) -> None:
    plant.start()
    plant.tend()


SCENARIOS: Mapping[str, Scenario] = {
    "prepare one slice": Scenario(TARGET, _only_neighbour, _prepare),
    "prepare two slices on two GPUs": Scenario(TWO_GPUS, _only_neighbour, _prepare),
    "prepare again after a reboot": Scenario(TWO_GPUS, _rebooted, _prepare, neighbour_waits=True),
    "unprepare one slice": Scenario(TARGET, _both, _unprepare, wanted=False),
    "unprepare two slices on two GPUs": Scenario(TWO_GPUS, _both, _unprepare, wanted=False),
    "recover a slice that is half made": Scenario(TARGET, _half_made, _start, starts=False),
    "make ahead two slices on two GPUs": Scenario(
        TWO_GPUS, _only_neighbour, _make_ahead, awaited=True
    ),
    "meet two slices that were made ahead": Scenario(TWO_GPUS, _ahead, _prepare),
    "give back two slices that were made ahead": Scenario(
        TWO_GPUS, _ahead, _give_back, wanted=False, awaited=True
    ),
    "recover a slice that is half made ahead": Scenario(TARGET, _half_ahead, _start, starts=False),
    "make a slice that is reserved": Scenario(TARGET, _unallocated, _make_reserved, reserves=True),
    "give back a slice that was reserved": Scenario(
        TARGET, _reserved, _withdraw, wanted=False, reserves=True
    ),
    "keep the GPU instances of two slices": Scenario(
        TWO_GPUS, _both, _unprepare, wanted=False, keeps=True
    ),
    "use again two GPU instances that were kept": Scenario(
        TWO_GPUS, _only_neighbour, _prepare, prelude=_kept(*TWO_GPUS), keeps=True
    ),
    "replace two GPU instances that were kept": Scenario(
        TWO_GPUS, _only_neighbour, _prepare, prelude=_kept(*IN_THE_WAY), keeps=True
    ),
    "share a slice that another claim has": Scenario(SHARED, _only_neighbour, _prepare),
    "leave a slice to another claim": Scenario(SHARED, _both, _unprepare, wanted=False),
    "unprepare the last share of a slice": Scenario(SHARE, _both, _unprepare, wanted=False),
    "make ahead a share of a slice that another claim has": Scenario(
        SHARED, _only_neighbour, _make_ahead, awaited=True
    ),
    "give back a share of a slice that another claim has": Scenario(
        SHARED, _ahead, _give_back, wanted=False, awaited=True
    ),
    "prepare a slice with an MPS daemon": Scenario(TARGET, _only_neighbour, _prepare, sharing=MPS),
    "unprepare a slice with an MPS daemon": Scenario(
        TARGET, _both, _unprepare, wanted=False, sharing=MPS
    ),
    "prepare a GPU with time slices": Scenario(WHOLE, _only_neighbour, _prepare, sharing=TURNS),
    "unprepare a GPU with time slices": Scenario(
        WHOLE, _both, _unprepare, wanted=False, sharing=TURNS
    ),
    "change the layout of a GPU": Scenario(
        TARGET,
        _only_neighbour,
        _change_layout,
        layouts=("{2g.10gb: 1}", "{3g.20gb: 1}"),
        ready=(BESIDE_DECLARED,),
    ),
    "take a slice of a layout": Scenario(
        DECLARED,
        _only_neighbour,
        _prepare,
        layouts=("{3g.20gb: 2}", "{3g.20gb: 2}"),
        ready=(BESIDE_DECLARED,),
    ),
    "leave a slice of a layout": Scenario(
        DECLARED,
        _both,
        _unprepare,
        wanted=False,
        layouts=("{3g.20gb: 2}", "{3g.20gb: 2}"),
        ready=(BESIDE_DECLARED,),
    ),
}


def set_scene(root: str, name: str, variant: str = "") -> Scene:
    """Build the node, of one of the drivers' OTHERS, and bring it to the moment before."""
    scenario = SCENARIOS[name]
    idle_seconds = 3600.0 if scenario.keeps else 0.0
    layouts = _layouts(*scenario.layouts) if scenario.layouts else ""
    site = Site.create(
        Path(root),
        variant=variant,
        idle_seconds=idle_seconds,
        layouts=layouts,
        whole=int(scenario.devices == WHOLE),
        mps=scenario.sharing is MPS,
    )
    if layouts:
        site.declare("before")
    _make_foreign(site)
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


def _make_foreign(site: Site) -> None:
    site.machine.create_slice(0, FOREIGN[0], start=FOREIGN[1])


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
    with _plant(scene, recorder) as plant:
        if scenario.starts:
            plant.start()
            scenario.prelude(scene, plant)
        recorder.arm(kill_after=kill_after)
        scenario.act(scene, plant)
        return recorder.disarm()


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
    with _plant(scene, StepRecorder()) as plant:
        before = None if scenario.neighbour_waits else _neighbour(scene)
        half_made = any(e.state in ARRIVING for e in entries(scene.site))
        plant.start()
        if scenario.wanted and not scenario.reserves:
            _check_resumed(plant, half_made=half_made)
        _check_others(scene, before)
        if scenario.awaited:
            _check_told(scene, plant)
        if scenario.reserves:
            _end_reservation(scene, plant, allocated=way is _kubelet_prepares)
        way(scene, plant)
        _check_others(scene, before)
        if scenario.neighbour_waits:
            assert not plant.prepare(scene.neighbour).error
        plant.publish()
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
    failed = plant.daemon.claims.failed
    failed.registered()
    assert bool(failed.resumed) == half_made


def _check_told(scene: Scene, plant: Plant) -> None:
    """kube-scheduler is told of slices that are there, while a pod has their claim reserved."""
    for _ in range(2):  # what is written is watched too
        plant.watch(scene.target)
        plant.publish()
    wanted = "reservedFor" in scene.site.status(scene.target)
    known = {e.device for e in entries(scene.site) if e.claim == scene.target}
    there = {d for d in known if instance_of(scene.site, d) is not None}
    told = slices_made(scene.site, scene.target)
    assert told == there == (set(scene.devices) if wanted else set())


def _end_reservation(scene: Scene, plant: Plant, *, allocated: bool) -> None:
    """The controller sees the answer and allocates, or withdraws what nobody needs any more."""
    if allocated:
        plant.read_reservations()
        scene.site.allocate(scene.target, scene.devices)
    scene.site.reserve(scene.target, ())
    plant.read_reservations()


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
