"""A simulated machine from the outside, as administrators, users and accidents change it.

Everything here goes past NVML, straight to the shared state, so a test or another process can act
as a foreign client while the plugin runs.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from sim.nvml import host
from sim.nvml.faults import Fault, Faults
from sim.nvml.gpus import hardware
from sim.nvml.gpus.administration import Administration, find, reset
from sim.nvml.gpus.clients import Client
from sim.nvml.gpus.hardware import DRIVER_VERSION, GpuSpec, new_machine
from sim.nvml.products import Product, Variants
from sim.nvml.session import Call, CallLog
from sim.nvml.state import (
    RECOVERY_ACTION_CHANGED,
    WHOLE_GPU,
    ComputeInstance,
    Event,
    Gpu,
    GpuInstance,
    MachineState,
    Process,
)

__all__ = ["GpuSpec", "Machine", "Slice"]

XID_CRITICAL_ERROR = 0x8
_EVENTS_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice as `create_slice` made it; without a compute instance, `uuid` is empty."""

    gpu: str
    gpu_instance: int
    compute_instance: int | None
    uuid: str
    profile: str
    start: int
    size: int


class Machine(Administration):
    """The simulated machine in a directory. GPUs are named by UUID or index."""

    def __init__(self, state_dir: str | Path) -> None:
        super().__init__(Path(state_dir))
        self.faults = Faults(self.directory)
        self._log = CallLog(self.directory)
        self._monitors: dict[int, Client] = {}

    @classmethod
    def create(
        cls,
        state_dir: str | Path,
        gpus: list[GpuSpec],
        *,
        host_root: str | Path | None = None,
        driver_version: str = DRIVER_VERSION,
        variants: Variants | None = None,
    ) -> "Machine":
        """Builds a machine and its host files (under `<state_dir>/host` by default).

        Raises:
            FileExistsError: the directory already holds a machine.
            LookupError: a product that is not bundled.
        """
        machine = cls(state_dir)
        root = Path(host_root) if host_root else machine.directory / "host"
        state, products = new_machine(
            gpus,
            host_root=root,
            driver_version=driver_version,
            variants=variants or Variants(),
        )
        machine.store.create(state, products)
        host.build_host(root, state, {p.product: p for p in products})
        return machine

    @property
    def host_root(self) -> Path:
        """Directory with the host's /proc, /dev and /usr."""
        return Path(self.state().host_root)

    def state(self) -> MachineState:
        """The current state; not to be changed."""
        return self.store.read()

    def gpu(self, gpu: str | int = 0) -> Gpu:
        """One GPU's current state; not to be changed."""
        return find(self.state(), gpu)

    def product(self, gpu: str | int = 0) -> Product:
        """One GPU's product."""
        return self.store.product(self.gpu(gpu))

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON data, to compare before and after."""
        data: dict[str, Any] = msgspec.to_builtins(self.state())
        return data

    # -- instances, as a foreign client makes and removes them

    def create_slice(
        self, gpu: str | int, profile: str, *, start: int | None = None, compute: bool = True
    ) -> Slice:
        """Creates a slice by profile name ("1g.5gb"), full compute instance included unless told.

        Raises:
            LookupError: the GPU has no such profile.
            RefusedError: the hardware refuses, with NVML's code.
        """
        with self.store.change() as state:
            target = find(state, gpu)
            product = self.store.product(target)
            wanted = next((p for p in product.gi_profiles if p.name == profile), None)
            if wanted is None:
                names = ", ".join(p.name for p in product.gi_profiles)
                raise LookupError(f"{product.name} has no profile {profile!r}; it has {names}")
            instance = hardware.create_gpu_instance(
                state, target, product, profile_id=wanted.id, start=start
            )
            made: ComputeInstance | None = None
            if compute:
                full = max(
                    (c for c in wanted.ci_profiles if hardware.is_creatable(state, c)),
                    key=lambda c: (c.slice_count, c.multiprocessors),
                )
                made = hardware.create_compute_instance(
                    state, target, product, instance=instance, profile_id=full.id
                )
            host.sync_capabilities(Path(state.host_root), state)
        return Slice(
            gpu=target.uuid,
            gpu_instance=instance.id,
            compute_instance=made.id if made else None,
            uuid=made.uuid if made else "",
            profile=profile,
            start=instance.start,
            size=instance.size,
        )

    def destroy_slice(self, gpu: str | int, gpu_instance: int) -> None:
        """Destroys a GPU instance with its compute instances.

        Raises:
            RefusedError: IN_USE while a process holds it.
            LookupError: no such instance.
        """
        with self.store.change() as state:
            target = find(state, gpu)
            instance = _find_instance(target, gpu_instance)
            for compute in list(instance.compute_instances):
                hardware.destroy_compute_instance(target, instance, compute)
            hardware.destroy_gpu_instance(target, instance)
            host.sync_capabilities(Path(state.host_root), state)

    def destroy_compute_instances(self, gpu: str | int, gpu_instance: int) -> None:
        """Destroys the compute instances of a GPU instance and leaves it."""
        with self.store.change() as state:
            target = find(state, gpu)
            instance = _find_instance(target, gpu_instance)
            for compute in list(instance.compute_instances):
                hardware.destroy_compute_instance(target, instance, compute)
            host.sync_capabilities(Path(state.host_root), state)

    # -- processes and health

    def start_process(
        self,
        gpu: str | int,
        pid: int,
        *,
        gpu_instance: int = WHOLE_GPU,
        compute_instance: int = WHOLE_GPU,
        kind: Literal["compute", "graphics"] = "compute",
    ) -> None:
        """A process takes hold of a GPU, a GPU instance, or a MIG device (both ids)."""
        with self.store.change() as state:
            find(state, gpu).processes.append(
                Process(
                    pid=pid,
                    kind=kind,
                    gpu_instance=gpu_instance,
                    compute_instance=compute_instance,
                )
            )

    def end_process(self, pid: int) -> None:
        """A process releases every GPU."""
        with self.store.change() as state:
            for gpu in state.gpus:
                gpu.processes = [p for p in gpu.processes if p.pid != pid]

    def start_monitor(self, gpu: str | int, pid: int, *, name: str = "dcgm-exporter") -> None:
        """A program without a context opens a GPU, as monitors do: NVML does not name it."""
        target = find(self.state(), gpu)
        client = self._monitors[pid] = Client(self.directory, pid=pid, name=name)
        client.hold([target.uuid])
        host.show_opener(self.host_root, pid=pid, name=name, minor=target.minor)

    def end_monitor(self, pid: int) -> None:
        """The program that `start_monitor` began ends."""
        self._monitors.pop(pid).release()
        host.hide_process(self.host_root, pid)

    def raise_event(
        self,
        gpu: str | int,
        data: int,
        *,
        kind: int = XID_CRITICAL_ERROR,
        gpu_instance: int = WHOLE_GPU,
        compute_instance: int = WHOLE_GPU,
    ) -> None:
        """An event happens; by default an XID critical error with number `data`."""
        with self.store.change() as state:
            event = Event(
                sequence=state.next_event,
                gpu=find(state, gpu).uuid,
                type=kind,
                data=data,
                gpu_instance=gpu_instance,
                compute_instance=compute_instance,
            )
            state.next_event += 1
            state.events = [*state.events, event][-_EVENTS_KEPT:]

    def ask_recovery(self, gpu: str | int, action: int) -> None:
        """The driver asks for a recovery action, 0 for none, and tells as the variant has it.

        XID 154 is not raised: the kernel module can leave it out (SQUASH_XID154 in its gpu.c).
        """
        with self.store.change() as state:
            find(state, gpu).recovery_action = action
            tells = state.variants.recovery_action == "event"
        if tells:
            self.raise_event(gpu, action, kind=RECOVERY_ACTION_CHANGED)

    def disturb(self, gpu: str | int, **fields: bool | int) -> None:
        """Sets what a GPU says of itself: fields of `state.Gpu`."""
        with self.store.change() as state:
            target = find(state, gpu)
            for name, value in fields.items():
                setattr(target, name, value)

    def lose(self, gpu: str | int) -> None:
        """The GPU falls off the bus: every call on it is GPU_IS_LOST."""
        with self.store.change() as state:
            target = find(state, gpu)
            target.lost = True
            target.losses += 1

    def recover(self, gpu: str | int) -> None:
        """The GPU comes back, reset: its instances are gone.

        With the variant `after_loss` "anew" only sessions that begin from now on see it.
        """
        with self.store.change() as state:
            target = find(state, gpu)
            target.lost = False
            reset(target)
            host.sync_capabilities(Path(state.host_root), state)

    # -- modes and switches

    def configure(self, **switches: Any) -> None:
        """Sets the machine's switches: fields of `MachineState`, such as `privileged`."""
        with self.store.change() as state:
            for name, value in switches.items():
                setattr(state, name, value)
            hidden = state.variants.processes == "hidden"
            host.show_pid_namespace(Path(state.host_root), hidden=hidden)

    # -- faults and the record of calls

    def inject(self, fault: Fault) -> str:
        """Puts a fault into force and returns its id, for `clear_faults`."""
        self.faults.add(fault)
        return fault.id

    def clear_faults(self, identifier: str | None = None) -> None:
        """Takes away one fault or all; what hangs goes on."""
        self.faults.remove(identifier)

    def mutations(self) -> list[Call]:
        """Calls that any process made to change hardware, in order."""
        return self._log.mutations()

    def calls(self) -> list[Call]:
        """All calls made while `record_calls` was on, in order."""
        return self._log.calls()


def _find_instance(gpu: Gpu, gpu_instance: int) -> GpuInstance:
    instance = gpu.instance(gpu_instance)
    if instance is None:
        raise LookupError(f"GPU {gpu.uuid} has no GPU instance {gpu_instance}")
    return instance
