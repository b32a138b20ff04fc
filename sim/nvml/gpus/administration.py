"""Administration of a whole machine or a whole GPU: resets, MIG modes, drivers, boots.

What a tool of the driver does is refused while a client holds what it is about; power, firmware and
hypervisors ask nobody.
"""

from pathlib import Path
from uuid import uuid4

from sim.nvml import driverfiles, host
from sim.nvml.cabi import Return
from sim.nvml.gpus import hardware
from sim.nvml.gpus.clients import Holder, clients, require_free, require_unused
from sim.nvml.state import Gpu, HostPart, MachineState, Store


class Administration:
    """The part of a `Machine` that its administrator and its fate have to do with."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = Store(directory)

    def clients(self) -> list[Holder]:
        """The processes that have the driver open, and the GPUs that each of them holds."""
        return clients(self.directory)

    def set_mig_mode(self, gpu: str | int, *, enabled: bool) -> None:
        """Change MIG mode by a reset that asks no client; instances are gone.

        So a hypervisor or the firmware resets; an administrator has to ask (`ask_mig_mode`).
        """
        with self.store.change() as state:
            target = find(state, gpu)
            reset(target)
            target.mig = target.mig_pending = enabled
            host.sync_capabilities(Path(state.host_root), state)

    def ask_mig_mode(self, gpu: str | int, *, enabled: bool) -> Return:
        """`nvidia-smi -mig`, on a machine whose driver resets GPUs: the activation status.

        The mode stays pending with IN_USE while a client holds the GPU.
        """
        with self.store.change() as state:
            target = find(state, gpu)
            held = any(target.uuid in c.gpus for c in clients(self.directory))
            product = self.store.product(target)
            return hardware.set_mig_mode(
                state, target, product, enable=enabled, held=held, resets=True
            )

    def end_monitors(self) -> None:
        """Monitors release the compute instances that they have subscribed to."""
        with self.store.change() as state:
            for gpu in state.gpus:
                for instance in gpu.gpu_instances:
                    for compute in instance.compute_instances:
                        compute.subscribed = 0

    def reboot(self, *, minors: list[int] | None = None) -> None:
        """Boots again: instances, processes and events are gone, the boot id is new.

        MIG mode stays where the product keeps it in the GPU, and what was pending is in force.
        `minors` renumbers the GPUs in order of index.
        """
        with self.store.change() as state:
            state.boot_id = str(uuid4())
            self._start_driver(state)
            for gpu, minor in zip(state.gpus, minors or [], strict=minors is not None):
                gpu.minor = minor
            self._build_host(state)

    def reload_driver(self) -> None:
        """Unloads and loads the kernel modules: as a reboot, but the boot id stays.

        Raises:
            HeldError: a process has the driver open.
        """
        with self.store.change() as state:
            require_unused(self.directory, state)
            self._start_driver(state)
            self._build_host(state)

    def upgrade_driver(self, version: str) -> None:
        """Exchanges the driver: its files on the disk, and the kernel modules.

        A process that has the old library mapped cannot use the new modules, ever.

        Raises:
            HeldError: a process has the driver open; nothing was done.
        """
        with self.store.change() as state:
            require_unused(self.directory, state)
        self.install_driver_files(version)
        with self.store.change() as state:
            state.driver_version = version
            self._start_driver(state)
            self._build_host(state)

    def install_driver_files(self, version: str) -> None:
        """Exchanges the driver's files on the disk only, as a package does; the modules stay."""
        with self.store.change() as state:
            state.library_version = version
            driverfiles.replace(Path(state.host_root), version)

    def take_away(self, *parts: HostPart) -> None:
        """Files of the driver vanish from the host, or a kernel module is unloaded."""
        with self.store.change() as state:
            state.missing = sorted({*state.missing, *parts})
            host.sync_missing(Path(state.host_root), state)

    def bring_back(self, *parts: HostPart) -> None:
        """Brings back what was taken away; without arguments all of it."""
        with self.store.change() as state:
            state.missing = [p for p in state.missing if parts and p not in parts]
            host.sync_missing(Path(state.host_root), state)

    def remove_nodes(self, *, makes: bool = True) -> None:
        """The host loses its device nodes, as where the driver's container alone has some.

        ``makes`` is the driver's parameter ModifyDeviceFiles: NVML makes what it needs of them.
        """
        with self.store.change() as state:
            state.makes_nodes = makes
            host.remove_nodes(Path(state.host_root), state)

    def reset_gpu(self, gpu: str | int) -> None:
        """`nvidia-smi -r`: instances are gone and a pending MIG mode is in force.

        Raises:
            HeldError: a process holds the GPU.
        """
        require_free(self.directory, find(self.store.read(), gpu))
        self.wipe_gpu(gpu)

    def wipe_gpu(self, gpu: str | int) -> None:
        """A reset that asks nobody: by the firmware, or the hypervisor of a virtual machine."""
        with self.store.change() as state:
            target = find(state, gpu)
            reset(target)
            target.mig = target.mig_pending
            host.sync_capabilities(Path(state.host_root), state)

    def _start_driver(self, state: MachineState) -> None:
        state.events = []
        for gpu in state.gpus:
            reset(gpu)
            gpu.lost = False
            gpu.compute_mode = 0
            keeps = self.store.product(gpu).mig_mode_survives_reboot
            gpu.mig = gpu.mig_pending = gpu.mig_pending and keeps

    def _build_host(self, state: MachineState) -> None:
        products = {gpu.product: self.store.product(gpu) for gpu in state.gpus}
        host.build_host(Path(state.host_root), state, products)


def find(state: MachineState, gpu: str | int) -> Gpu:
    """A GPU by UUID or index; LookupError if the machine has none such."""
    if isinstance(gpu, int):
        found = state.gpus[gpu] if 0 <= gpu < len(state.gpus) else None
    else:
        found = state.gpu(gpu)
    if found is None:
        raise LookupError(f"the machine has no GPU {gpu}")
    return found


def reset(gpu: Gpu) -> None:
    """Resets a GPU: all that was on it is gone, and what waited for a reset is in force."""
    gpu.gpu_instances = []
    gpu.processes = []
    gpu.recovery_action, gpu.remap_pending, gpu.ecc = 0, False, gpu.ecc_pending
    gpu.kept = []
