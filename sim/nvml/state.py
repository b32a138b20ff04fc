"""State of one simulated machine, and the file that several processes share.

The file is replaced atomically under a lock, so a reader sees a whole state, never a torn one.
Reading again costs one stat as long as nothing changed.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, get_ident
from typing import Literal

import msgspec

from api.decoding import decodable
from sim.nvml.products import Product, Variants

HostPart = Literal["libraries", "uvm", "capabilities"]

MIG_CONFIG_CHANGE = 0x100
"""NVML's event for a change of a GPU's MIG configuration."""

RECOVERY_ACTION_CHANGED = 0x8000
"""NVML's event for a change of what the driver wants to be done about a GPU."""

WHOLE_GPU = 0xFFFFFFFF
"""NVML's value for "no GPU instance" and "no compute instance"."""


class ComputeInstance(msgspec.Struct):
    """A live compute instance. `key` is never reused, `id` is.

    `subscribed` is how often a monitor still has its destroy refused.
    """

    key: int
    id: int
    profile: int
    start: int
    size: int
    uuid: str
    subscribed: int = 0


class KeptPlace(msgspec.Struct):
    """A run of memory slices that GSP still holds, for so many creations that touch it."""

    start: int
    size: int
    refusals: int


class GpuInstance(msgspec.Struct):
    """A live GPU instance; `start` and `size` are in memory slices. `key` is never reused.

    `lingers` is how often its destroy is still refused.
    """

    key: int
    id: int
    profile: int
    start: int
    size: int
    compute_instances: list[ComputeInstance] = []
    lingers: int = 0


class Process(msgspec.Struct):
    """A process on a GPU or, with both instance ids, on one MIG device."""

    pid: int
    kind: Literal["compute", "graphics"] = "compute"
    used_mib: int = 64
    gpu_instance: int = WHOLE_GPU
    compute_instance: int = WHOLE_GPU


class Gpu(msgspec.Struct):
    """One GPU of the machine. `product` names a file of the machine's products folder.

    `losses` counts how often it fell off the bus, `failed_destroys` in how many destroys the
    part of GSP failed; `kept` are places that GSP still holds. From `recovery_action` on: what
    nvml.h calls so (`fabric` is the probe's state), and after the next reset `ecc_pending`.
    """

    uuid: str
    product: str
    minor: int
    pci_bus_id: str
    serial: str
    mig: bool = False
    mig_pending: bool = False
    lost: bool = False
    losses: int = 0
    failed_destroys: int = 0
    kept: list[KeptPlace] = []
    recovery_action: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    ecc: bool = True
    ecc_pending: bool = True
    fabric: int = 0
    compute_mode: int = 0
    virtualization: int = 0
    gpu_instances: list[GpuInstance] = []
    processes: list[Process] = []

    def instance(self, gpu_instance_id: int) -> GpuInstance | None:
        """The live GPU instance with this id."""
        return next((g for g in self.gpu_instances if g.id == gpu_instance_id), None)


class Event(msgspec.Struct):
    """An event as nvmlEventSetWait delivers it; `sequence` orders all events of the machine."""

    sequence: int
    gpu: str
    type: int
    data: int
    gpu_instance: int = WHOLE_GPU
    compute_instance: int = WHOLE_GPU


@decodable
class MachineState(msgspec.Struct):
    """Everything that outlives a process: hardware, driver, pending events.

    `privileged` is whether callers may change MIG; `resets_gpus` whether the driver can reset a
    GPU by itself when MIG mode changes (false in a virtual machine). `latencies` are the seconds
    that functions take (`sim.nvml.library`). `variants` says in which way
    the driver behaves where that is not settled. `driver_version` is the kernel module's,
    `library_version` that of the installed files; empty while it is the same. `missing` are parts
    of the host that are not there: driver libraries, module nvidia-uvm, files of MIG capabilities.
    `makes_nodes` is the driver's parameter ModifyDeviceFiles: with it nvmlInit makes the device
    nodes that NVML opens where they are not there, never those of nvidia-uvm.
    `confidential` is whether confidential computing is on, `accepts_work` whether GPUs take work
    then.
    """

    boot_id: str
    host_root: str
    driver_version: str
    cuda_version: int
    gpus: list[Gpu]
    privileged: bool = True
    resets_gpus: bool = False
    record_calls: bool = False
    variants: Variants = Variants()
    latencies: dict[str, float] = {}
    missing: list[HostPart] = []
    library_version: str = ""
    makes_nodes: bool = True
    confidential: bool = False
    accepts_work: bool = True
    next_key: int = 1
    next_event: int = 1
    events: list[Event] = []

    def new_key(self) -> int:
        """A number that no instance of this machine ever had."""
        self.next_key += 1
        return self.next_key - 1

    def gpu(self, uuid: str) -> Gpu | None:
        """The GPU with this UUID."""
        return next((g for g in self.gpus if g.uuid == uuid), None)


def replace_file(path: Path, content: bytes) -> None:
    """Writes the file so that readers see the old or the new content, whole.

    The file gets a time of its own: the kernel's is too coarse to tell two quick writes apart when
    the second one gets the inode of the one before.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.{get_ident()}")
    partial.write_bytes(content)
    now = time.time_ns()
    os.utime(partial, ns=(now, now))
    partial.replace(path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the lock file exclusively, against threads and processes alike."""
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _instances(state: MachineState) -> dict[str, list[object]]:
    return {
        gpu.uuid: [(g.key, [c.key for c in g.compute_instances]) for g in gpu.gpu_instances]
        for gpu in state.gpus
    }


def _announce(state: MachineState, before: dict[str, list[object]]) -> None:
    """An event for each GPU whose instances have changed; of one GPU's only the last is kept."""
    for uuid, instances in _instances(state).items():
        if instances == before.get(uuid):
            continue
        state.events = [e for e in state.events if (e.type, e.gpu) != (MIG_CONFIG_CHANGE, uuid)] + [
            Event(state.next_event, uuid, MIG_CONFIG_CHANGE, 0)
        ]
        state.next_event += 1


class Store:
    """The state file of the machine in `directory`, and the products that it refers to."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / "state.json"
        self._name = str(self._path)
        self._mutex = Lock()
        self._seen: tuple[int, int] | None = None
        self._state: MachineState | None = None
        self._products: dict[str, Product] = {}

    def create(self, state: MachineState, products: list[Product]) -> None:
        """Writes the first state and the machine's products.

        Raises:
            FileExistsError: the directory already holds a machine.
        """
        if self._path.exists():
            raise FileExistsError(f"{self.directory} already holds a simulated machine")
        (self.directory / "products").mkdir(parents=True, exist_ok=True)
        for product in products:
            content = msgspec.json.format(msgspec.json.encode(product), indent=1)
            replace_file(self._product_path(product.product), content)
        replace_file(self._path, msgspec.json.encode(state))

    def read(self) -> MachineState:
        """The current state. It is shared: never change it.

        Raises:
            FileNotFoundError: the directory holds no machine.
        """
        with self._mutex:
            stat = os.stat(self._name)  # noqa: PTH116 - at each call of NVML; a Path takes longer
            mark = (stat.st_ino, stat.st_mtime_ns)
            if self._state is None or mark != self._seen:
                self._state = msgspec.json.decode(self._path.read_bytes(), type=MachineState)
                self._seen = mark
            return self._state

    @contextmanager
    def change(self) -> Iterator[MachineState]:
        """A private copy of the state under the machine's lock; written if the block succeeds."""
        with locked(self.directory / "state.lock"):
            state = msgspec.json.decode(self._path.read_bytes(), type=MachineState)
            before, told = _instances(state), bool(state.events)
            yield state
            started_anew = told and not state.events  # and with the driver whoever listened
            if state.variants.config_events == "delivered" and not started_anew:
                _announce(state, before)
            replace_file(self._path, msgspec.json.encode(state))

    def product(self, gpu: Gpu) -> Product:
        """The product of a GPU."""
        product = self._products.get(gpu.product)
        if product is None:
            content = self._product_path(gpu.product).read_bytes()
            product = msgspec.json.decode(content, type=Product)
            self._products[gpu.product] = product
        return product

    def _product_path(self, name: str) -> Path:
        return self.directory / "products" / f"{name}.json"
