"""Everything that can happen to a node, in any order, with what must hold after each of it."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)

from dra.geometry import Placement
from dra.inventory import ClaimRef, InstanceState
from dra.names import MigDevice, parse_device
from kubeletplugin.entries import LEAVING
from kubeletplugin.node import Outcome
from sim.nvml.codes import RefusedError
from sim.nvml.faults import Fault
from tests.failures.agreement import (
    check_claim,
    check_foreign,
    check_settled,
    entries,
    instance_of,
    own_instances,
)
from tests.failures.conftest import MEMORY
from tests.failures.plant import Plant, Site
from tests.failures.steps import KilledError, Recorder, full_disk, hooked

T = TypeVar("T")
GPUS = 3
_SHAPES = {
    "1g5gb-19": (1, range(7)),
    "2g10gb-14": (2, (0, 2, 4)),
    "3g20gb-9": (4, (0, 4)),
    "7g40gb-0": (8, (0,)),
}
_SIZES = {label: size for label, (size, _) in _SHAPES.items()}
_DEVICES = [
    f"gpu-{gpu}-mig-{label}-{start}"
    for gpu in range(GPUS)
    for label, (_, starts) in _SHAPES.items()
    for start in starts
]
_MUTATING = (
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
)
_FUNCTIONS = (
    *_MUTATING,
    "nvmlDeviceGetGpuInstanceById",
    "nvmlDeviceGetGpuInstances",
    "nvmlGpuInstanceGetInfo",
    "nvmlComputeInstanceGetInfo_v2",
    "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetHandleByUUID",
    "*",
)
_CODES = (4, 6, 10, 15, 16, 19, 23, 27, 999)
_HUNG_SECONDS = 0.05

devices = st.lists(st.sampled_from(_DEVICES), min_size=1, max_size=3, unique=True)
gpus = st.integers(0, GPUS - 1)
kill_points = st.integers(1, 90)


@dataclass(eq=False, slots=True)
class Known:
    """A claim as its user and kubelet know it.

    ``told``: kubelet was told that it is prepared, and has not asked to take it back. ``keys`` are
    its instances on the hardware then, less those that somebody or a reset has taken since.
    ``tried``: kubelet has asked for it, and would ask to take it back.
    """

    ref: ClaimRef
    devices: tuple[str, ...]
    live: bool = True
    tried: bool = False
    told: bool = False
    keys: dict[str, int] = field(default_factory=dict)

    def gpus(self) -> set[int]:
        """The GPUs that it is on."""
        return {place(d)[0] for d in self.devices}


def place(device: str) -> tuple[int, Placement]:
    """The GPU and the memory slices that a device's name means on an A100."""
    parsed = parse_device(device)
    assert isinstance(parsed, MigDevice)
    size = _SIZES[f"{parsed.profile_label}-{parsed.profile_id}"]
    return parsed.minor, Placement(parsed.start, size)


class Counter:
    """Steps that were run, over all machines of this process."""

    steps = 0


class AnyOrder(RuleBasedStateMachine):
    """A node with three GPUs, a kubelet, users, an administrator and bad luck."""

    claims: Bundle[Known] = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        logging.disable(logging.CRITICAL)
        self.folder = Path(tempfile.mkdtemp(prefix="any-", dir=MEMORY))
        self.site = Site.create(self.folder / "n", gpus=GPUS)
        self.machine = self.site.machine
        self.recorder = Recorder(in_process=True)
        self._hooks = hooked(self.recorder)
        self._hooks.__enter__()
        self.known: list[Known] = []
        self.foreign: set[int] = set()
        self.hung: set[int] = set()
        self.faulty = False
        self.full = False
        self.api_down = False
        self.pids: list[int] = []
        self.specs_lost = False
        self.plant = self._new_plant()

    # -- the program

    def _new_plant(self) -> Plant:
        plant = Plant(self.site, self.recorder)
        plant.api_down = self.api_down
        plant.start()
        return plant

    def _restart(self) -> None:
        """The process is dead; another one starts."""
        self.recorder.die()
        self._release_hung()
        wait_until(lambda: not self.recorder.busy)
        self.recorder.disarm()
        self.plant = self._new_plant()

    def _release_hung(self) -> None:
        for gpu in self.hung:
            self.machine.clear_faults(f"hang-{gpu}")
        self.hung.clear()

    def _within(self, claim: Known) -> float:
        return _HUNG_SECONDS if claim.gpus() & self.hung else 30.0

    @property
    def undisturbed(self) -> bool:
        """Nothing is wrong with NVML, disk and API."""
        return not (self.faulty or self.full or self.api_down or self.hung)

    @property
    def well(self) -> bool:
        """Undisturbed, and no process holds a slice."""
        return self.undisturbed and not any(g.processes for g in self.machine.state().gpus)

    # -- users and kubelet

    @rule(target=claims, devices=devices)
    def create_claim(self, devices: list[str]) -> Known:
        return self._claim(f"claim-{len(self.known)}", devices)

    @rule(target=claims, old=claims, devices=devices)
    def create_claim_of_the_same_name(self, old: Known, devices: list[str]) -> Known:
        self.site.delete_claim(old.ref)
        old.live = False
        if any(k.live and k.ref.name == old.ref.name for k in self.known):
            return old
        return self._claim(old.ref.name, devices)

    def _claim(self, name: str, devices: Sequence[str]) -> Known:
        claim = Known(self.site.claim(name, devices), tuple(devices))
        self.known.append(claim)
        return claim

    @rule(claim=claims)
    def delete_claim(self, claim: Known) -> None:
        self.site.delete_claim(claim.ref)
        claim.live = False

    @rule(claim=claims)
    def prepare(self, claim: Known) -> None:
        self._answered(claim, self.plant.prepare(claim.ref, within=self._within(claim)))

    @rule(claim=claims)
    def prepare_twice(self, claim: Known) -> None:
        first = self.plant.prepare(claim.ref, within=self._within(claim))
        self._answered(claim, first)
        if not first.error and self.undisturbed:
            assert self.plant.prepare(claim.ref) == first, "a repeated call changes nothing"

    def _answered(self, claim: Known, outcome: Outcome) -> None:
        claim.tried = True
        if outcome.error:
            note(outcome.error)
            if len(claim.keys) < len(claim.devices):
                claim.told = False  # now it was told otherwise
            return
        assert {d.device for d in outcome.devices} == set(claim.devices)
        with self.recorder.outside():
            check_claim(self.site, claim.ref, claim.devices)
        claim.told = True
        claim.keys = {}
        for device in claim.devices:
            found = instance_of(self.site, device)
            assert found is not None
            claim.keys[device] = found[1].key

    @rule(claim=claims)
    def unprepare(self, claim: Known) -> None:
        # From the moment that kubelet asks, nothing is promised of the slices.
        claim.told = False
        outcome = self.plant.unprepare(claim.ref, within=self._within(claim))
        if outcome.error:
            note(outcome.error)
            claim.tried = True
            return
        claim.tried = False
        self._check_gone(claim)

    def _check_gone(self, claim: Known) -> None:
        """No spec; no slice either, but for those that are withheld until they can be removed."""
        with self.recorder.outside():
            left = {e.device: e for e in entries(self.site) if e.claim.uid == claim.ref.uid}
            assert all(e.state in LEAVING for e in left.values()), left
            assert not left or not self.well, f"nothing is wrong, and it is left: {left}"
            present = {g.key for _, g in own_instances(self.site, self.foreign)}
            stays = {k for d, k in claim.keys.items() if d not in left}
            assert not present & stays, "success, and the slice is there"
            assert not list(self.site.roots.cdi.glob(f"*{claim.ref.uid}*"))
        claim.keys = {}

    # -- the program's own rounds, and its end

    @precondition(lambda self: not self.hung)
    @rule()
    def look(self) -> None:
        self.plant.look()

    @precondition(lambda self: not self.hung)
    @rule()
    def tend(self) -> None:
        self._collect()
        self.plant.tend()

    def _collect(self) -> None:
        """Claims that are gone may be taken from the hardware from now on."""
        for claim in self.known:
            if not claim.live:
                claim.told = False

    @rule()
    def publish(self) -> None:
        self.plant.publish()

    @rule()
    def crash(self) -> None:
        self._restart()

    @rule(claim=claims, point=kill_points)
    def killed_in_prepare(self, claim: Known, point: int) -> None:
        within = self._within(claim)
        outcome = self._killed(point, lambda: self.plant.prepare(claim.ref, within=within))
        claim.tried = True
        if outcome is not None:
            self._answered(claim, outcome)
        self._restart()

    @rule(claim=claims, point=kill_points)
    def killed_in_unprepare(self, claim: Known, point: int) -> None:
        claim.told, claim.tried = False, True
        within = self._within(claim)
        self._killed(point, lambda: self.plant.unprepare(claim.ref, within=within))
        self._restart()

    @precondition(lambda self: not self.hung)
    @rule(point=kill_points)
    def killed_in_a_round(self, point: int) -> None:
        self._collect()
        self._killed(point, self.plant.tend)
        self._restart()

    @rule(point=kill_points)
    def killed_at_its_start(self, point: int) -> None:
        self.recorder.die()
        self._release_hung()
        self._killed(point, self._new_plant)
        self._restart()

    def _killed(self, point: int, work: Callable[[], T]) -> T | None:
        """What it came to, or None if the process was killed at that step."""
        self.recorder.arm(kill_after=point)
        try:
            return work()
        except KilledError:
            return None
        finally:
            self.recorder.disarm()

    # -- the administrator and the hardware

    def _wiped(self, gpu: int | None = None) -> None:
        """Instances are gone from a GPU, or from all."""
        present = {g.key for gpu in self.machine.state().gpus for g in gpu.gpu_instances}
        self.foreign &= present
        for claim in self.known:
            claim.keys = {d: k for d, k in claim.keys.items() if k in present}

    @rule(order=st.permutations(range(GPUS)))
    def reboot(self, order: list[int]) -> None:
        self.recorder.die()
        self.machine.reboot(minors=order)
        shutil.rmtree(self.site.roots.cdi, ignore_errors=True)
        self.specs_lost = True
        self._wiped()
        self._restart()

    @rule()
    def reload_driver(self) -> None:
        self.recorder.die()
        self.machine.reload_driver()
        self.specs_lost = True
        self._wiped()
        self._restart()

    @precondition(lambda self: not self.hung)
    @rule(gpu=gpus)
    def reset_gpu(self, gpu: int) -> None:
        self.machine.reset_gpu(gpu)
        self._wiped()

    @rule(gpu=gpus, profile=st.sampled_from(["1g.5gb", "2g.10gb", "3g.20gb"]), full=st.booleans())
    def foreign_slice(self, gpu: int, profile: str, full: bool) -> None:  # noqa: FBT001
        if gpu in self.hung:
            return
        try:
            made = self.machine.create_slice(gpu, profile, compute=full)
        except RefusedError:
            return
        instance = self.machine.gpu(gpu).instance(made.gpu_instance)
        assert instance is not None
        self.foreign.add(instance.key)

    @rule(gpu=gpus)
    def foreign_slices_go(self, gpu: int) -> None:
        for instance in self.machine.gpu(gpu).gpu_instances:
            if instance.key in self.foreign:
                self.machine.destroy_slice(gpu, instance.id)
                self.foreign.discard(instance.key)

    @precondition(lambda self: not self.hung)
    @rule(claim=claims)
    def somebody_destroys_our_slice(self, claim: Known) -> None:
        found = instance_of(self.site, claim.devices[0])
        if found is None or found[1].key not in claim.keys.values():
            return
        try:
            self.machine.destroy_slice(found[0].uuid, found[1].id)
        except RefusedError:
            return
        self._wiped()

    @rule(claim=claims)
    def a_process_holds_the_slice(self, claim: Known) -> None:
        found = instance_of(self.site, claim.devices[0])
        if found is None or not found[1].compute_instances:
            return
        pid = 1000 + len(self.pids)
        ci = found[1].compute_instances[0].id
        self.machine.start_process(
            found[0].uuid, pid, gpu_instance=found[1].id, compute_instance=ci
        )
        self.pids.append(pid)

    @rule()
    def processes_end(self) -> None:
        for pid in self.pids:
            self.machine.end_process(pid)

    # -- faults

    @rule(
        function=st.sampled_from(_FUNCTIONS),
        code=st.sampled_from(_CODES),
        after=st.integers(0, 12),
        times=st.integers(1, 3),
        gpu=st.none() | gpus,
    )
    def nvml_fails(self, function: str, code: int, after: int, times: int, gpu: int | None) -> None:
        self.machine.inject(
            Fault(
                id=f"fault-{after % 3}",
                function=function,
                action="return",
                code=code,
                after=after,
                times=times,
                gpu=gpu,
            )
        )
        self.faulty = True

    @rule(function=st.sampled_from(_MUTATING))
    def nvml_says_success_and_does_nothing(self, function: str) -> None:
        self.machine.inject(Fault(id="nothing", function=function, action="no-effect"))
        self.faulty = True

    @rule()
    def nvml_is_well(self) -> None:
        for name in ("fault-0", "fault-1", "fault-2", "nothing"):
            self.machine.clear_faults(name)
        self.faulty = False

    @precondition(lambda self: self.undisturbed)
    @rule(claim=claims)
    def gpu_hangs(self, claim: Known) -> None:
        """While a claim's GPU hangs, kubelet gets its answer in time, and other GPUs serve."""
        gpu = min(claim.gpus())
        self.hung.add(gpu)
        fault = Fault(id=f"hang-{gpu}", function="nvml*Create*", action="hang", gpu=gpu, times=0)
        self.machine.inject(fault)
        self.prepare(claim)
        others = [g for g in range(GPUS) if g not in claim.gpus()]
        free = [g for g in others if not self.machine.gpu(g).gpu_instances and not self._held(g)]
        if not free:
            return
        other = free[0]
        neighbour = self._claim(f"neighbour-{len(self.known)}", [f"gpu-{other}-mig-1g5gb-19-0"])
        self.prepare(neighbour)
        assert neighbour.told, "a GPU that hangs stops another"

    def _held(self, gpu: int) -> bool:
        uuid = self.machine.gpu(gpu).uuid
        with self.recorder.outside():
            return any(e.gpu == uuid for e in entries(self.site))

    @precondition(lambda self: self.hung)
    @rule()
    def gpu_goes_on(self) -> None:
        self._release_hung()
        assert self.plant.daemon._works.wait_idle(30)

    @rule()
    def api_goes(self) -> None:
        self.api_down = self.plant.api_down = True

    @rule()
    def api_comes(self) -> None:
        self.api_down = self.plant.api_down = False

    @rule(state=st.booleans(), cdi=st.booleans())
    def disk_is_full(self, state: bool, cdi: bool) -> None:  # noqa: FBT001
        roots = self.site.roots
        folders = [f for f, full in ((roots.state, state), (roots.cdi, cdi)) if full]
        self.recorder.refuse = full_disk(*folders)
        self.full = bool(folders)

    @rule()
    def disk_has_room(self) -> None:
        self.recorder.refuse = full_disk()
        self.full = False

    # -- what must hold

    @invariant()
    def counted(self) -> None:
        Counter.steps += 1

    @invariant()
    def no_foreign_instance_is_touched(self) -> None:
        check_foreign(self.site, self.foreign)

    @invariant()
    def every_instance_of_ours_is_in_the_journal(self) -> None:
        if self.hung:
            return
        with self.recorder.outside():
            journal = {(e.gpu, e.profile_id, e.placement) for e in entries(self.site)}
            for gpu, gi in own_instances(self.site, self.foreign):
                assert (gpu.uuid, gi.profile, Placement(gi.start, gi.size)) in journal, (
                    f"{gi} on {gpu.uuid} is in no journal"
                )

    @invariant()
    def what_kubelet_was_told_is_there(self) -> None:
        with self.recorder.outside():
            present = {g.key: g for _, g in own_instances(self.site, self.foreign)}
            journal = {e.key: e for e in entries(self.site)}
            for claim in self.known:
                if not claim.told:
                    continue
                for device in claim.devices:
                    assert (claim.ref.uid, device) in journal, f"{device} of {claim.ref} forgotten"
                for device, key in claim.keys.items():
                    assert key in present, f"{device} of {claim.ref} was destroyed"
                    assert present[key].compute_instances, f"{device} has no compute instance"
                if len(claim.keys) == len(claim.devices) and not self.specs_lost:
                    spec = f"*claim_{claim.ref.uid}.yaml"
                    assert list(self.site.roots.cdi.glob(spec)), f"no CDI spec of {claim.ref}"

    @invariant()
    def no_two_claims_overlap(self) -> None:
        held = [(c, place(d)) for c in self.known if c.told for d in c.devices]
        for index, (claim, (gpu, placement)) in enumerate(held):
            for other, (other_gpu, other_placement) in held[:index]:
                assert gpu != other_gpu or not placement.overlaps(other_placement), (
                    f"{claim.ref} and {other.ref} hold the same memory slices of GPU {gpu}"
                )

    @invariant()
    def mig_mode_is_as_it_was(self) -> None:
        assert all(g.mig and g.mig_pending for g in self.machine.state().gpus)

    @precondition(lambda self: self.undisturbed)
    @rule()
    def what_is_published_is_what_is_there(self) -> None:
        self.plant.look()
        self.plant.look()
        inventory = self.plant.inventory()
        assert inventory is not None
        by_uuid = {g.uuid: g for g in inventory.gpus}
        for gpu in self.machine.state().gpus:
            shown = by_uuid[gpu.uuid].instances
            for gi in gpu.gpu_instances:
                here = [i for i in shown if i.placement == Placement(gi.start, gi.size)]
                assert len(here) == 1, f"{gi} is published as {here}"
                is_foreign = here[0].state is InstanceState.FOREIGN
                assert is_foreign == (gi.key in self.foreign), f"{gi} is published as {here}"

    # -- when the faults stop

    @rule()
    def everything_settles(self) -> None:
        self._faults_stop()
        for _ in range(2):
            self.plant.look()
            self._collect()
            self.plant.tend()
            self.plant.publish()
        left: dict[ClaimRef, tuple[str, ...]] = {}
        for claim in self.known:
            if claim.live and claim.told:
                self._keep_or_end(claim)
            elif claim.tried and claim.live:
                self._end(claim)
            elif claim.tried:
                self._check_gone(claim)
                claim.tried = False
            if claim.told:
                left[claim.ref] = claim.devices
        self.plant.publish()
        with self.recorder.outside():
            check_settled(self.site, left, self.foreign)

    def _keep_or_end(self, claim: Known) -> None:
        """Kubelet asks again, as after its restart; what somebody else sits on now has to go."""
        whole = len(claim.keys) == len(claim.devices)
        outcome = self.plant.prepare(claim.ref)
        self._answered(claim, outcome)
        if outcome.error:
            assert not whole, f"whole, and refused: {outcome.error}"
            assert "did not make" in outcome.error, outcome.error
            self._end(claim)

    def _end(self, claim: Known) -> None:
        """The pod goes: kubelet unprepares, once."""
        self.unprepare(claim)
        assert not claim.tried, "nothing is wrong, and it cannot be unprepared"

    def _faults_stop(self) -> None:
        self.disk_has_room()
        self.api_comes()
        self.nvml_is_well()
        self._release_hung()
        assert self.plant.daemon._works.wait_idle(30)
        self.processes_end()
        self.specs_lost = False

    def teardown(self) -> None:
        try:
            self.everything_settles()
            self._rests()
            for index, claim in enumerate(self.known):
                if index % 2 and claim.told:
                    self._end(claim)
                else:
                    self.delete_claim(claim)
            self._collect()
            self.plant.tend()
            with self.recorder.outside():
                check_settled(self.site, {}, self.foreign)
        finally:
            self.recorder.refuse = full_disk()
            self._release_hung()
            self.recorder.die()
            self._hooks.__exit__(None, None, None)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _rests(self) -> None:
        """At rest nothing is written anywhere, over a restart too."""
        self._restart()
        self.plant.publish()
        before = self._traces()
        for _ in range(2):
            self.plant.look()
            self.plant.tend()
            self.plant.publish()
            after = self._traces()
            changed = {k for k in before | after if before.get(k) != after.get(k)}
            assert not changed, f"written although nothing happens: {changed}"
            self._restart()

    def _traces(self) -> dict[str, Any]:
        roots = self.site.roots
        files = [
            *roots.cdi.glob("*"),
            *roots.state.glob("*.json*"),
            *(self.site.root / "api").rglob("object.json"),
        ]
        stats = {str(p): (p.stat().st_ino, p.stat().st_mtime_ns) for p in files}
        return {"mutations": len(self.machine.mutations())} | stats


def wait_until(check: Callable[[], bool], *, timeout: float = 30.0) -> None:
    """Wait for threads of a process that is dead to notice it."""
    end = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < end, "threads of a dead process go on"
        time.sleep(0.001)
