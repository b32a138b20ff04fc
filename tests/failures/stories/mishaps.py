"""What an administrator, the hardware and bad luck do to a node."""

from __future__ import annotations

import shutil

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from sim.nvml.cabi import RefusedError
from sim.nvml.faults import Fault
from tests.failures.helpers.agreement import entries, instance_of
from tests.failures.helpers.plant import WITHIN_SECONDS
from tests.failures.helpers.steps import full_disk
from tests.failures.stories.story import GPUS, Known, claims
from tests.failures.stories.usage import Usage

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
    "nvmlDeviceGetHandleByPciBusId*",
    "*",
)
_CODES = (4, 6, 10, 15, 16, 19, 23, 27, 999)

gpus = st.integers(0, GPUS - 1)


class Mishaps(Usage):
    """Other people's slices, resets, faults."""

    # -- the administrator and the hardware

    def _wiped(self, gpu: int | None = None) -> None:
        """Instances are gone from a GPU, or from all."""
        present = {g.key for gpu in self.machine.state().gpus for g in gpu.gpu_instances}
        self.foreign &= present
        for claim in self.known:
            claim.keys = {d: k for d, k in claim.keys.items() if k in present}

    @rule(order=st.permutations(range(GPUS)))
    def reboot(self, order: list[int]) -> None:
        self.end()
        self.machine.reboot(minors=order)
        shutil.rmtree(self.site.roots.cdi, ignore_errors=True)
        self.specs_lost = True
        self._wiped()
        self.restart()

    @rule()
    def reload_driver(self) -> None:
        self.processes_end()  # else the kernel keeps its module
        self.end()
        self.machine.reload_driver()
        self.specs_lost = True
        self._wiped()
        self.restart()

    @precondition(lambda self: not self.hung)
    @rule(gpu=gpus)
    def reset_gpu(self, gpu: int) -> None:
        self.machine.wipe_gpu(gpu)
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
                try:
                    self.machine.destroy_slice(gpu, instance.id)
                except RefusedError:  # a process holds it
                    continue
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

    @precondition(lambda self: not self.hung)
    @rule(claim=claims, full=st.booleans())
    def somebody_takes_the_place_of_our_slice(self, claim: Known, full: bool) -> None:  # noqa: FBT001
        found = instance_of(self.site, claim.devices[0])
        if found is None or found[1].key not in claim.keys.values():
            return
        if full and self.variants.mig_uuid == "place":
            return  # nothing tells it from ours: same place, same ids, same UUID
        gpu, ours = found
        profile = {19: "1g.5gb", 14: "2g.10gb", 9: "3g.20gb", 0: "7g.40gb"}[ours.profile]
        try:
            self.machine.destroy_slice(gpu.uuid, ours.id)
            made = self.machine.create_slice(gpu.uuid, profile, start=ours.start, compute=full)
        except RefusedError:
            return
        instance = self.machine.gpu(gpu.uuid).instance(made.gpu_instance)
        assert instance is not None
        self.foreign.add(instance.key)
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
        self.release_hung()
        assert self.plant.daemon.node.tasks.wait_idle(WITHIN_SECONDS)

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
