"""Record of calls, so that a test can assert which of them reached the hardware.

Calls that change hardware are always recorded; all calls are while the machine asks for it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import msgspec

from api.decoding import decodable
from sim.nvml import cabi, driverfiles, host
from sim.nvml.cabi import RefusedError, Return
from sim.nvml.faults import Faults
from sim.nvml.gpus.clients import Client
from sim.nvml.products import Product
from sim.nvml.state import ComputeInstance, Gpu, GpuInstance, MachineState, Store


@decodable
class Call(msgspec.Struct, frozen=True):
    """One finished call; `gpu` is a UUID, or empty for calls that concern no GPU."""

    function: str
    gpu: str
    code: int
    mutation: bool
    pid: int


class CallLog:
    """The records in a machine's directory: mutations.jsonl and, if wanted, calls.jsonl."""

    def __init__(self, directory: Path) -> None:
        self._mutations = directory / "mutations.jsonl"
        self._calls = directory / "calls.jsonl"

    def record(self, function: str, *, gpu: str, code: int, mutation: bool, wanted: bool) -> None:
        """Appends a call where it belongs."""
        if not (mutation or wanted):
            return
        line = msgspec.json.encode(Call(function, gpu, code, mutation, os.getpid())) + b"\n"
        if mutation:
            _append(self._mutations, line)
        if wanted:
            _append(self._calls, line)

    def mutations(self) -> list[Call]:
        """Calls that were made to change hardware, whatever they returned."""
        return _read(self._mutations)

    def calls(self) -> list[Call]:
        """All calls made while recording was on."""
        return _read(self._calls)


def _append(path: Path, line: bytes) -> None:
    # One write of one line in append mode is atomic among processes.
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _read(path: Path) -> list[Call]:
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=Call) for line in path.read_bytes().splitlines()]


def _mapped(state: MachineState) -> mmap.mmap | None:
    """The library as a process loads it: ``/proc/self/maps`` names the file."""
    version = state.library_version or state.driver_version
    found = driverfiles.library_file(Path(state.host_root), version)
    if found is None:
        return None
    with found.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


Kind = Literal["device", "gpu-instance", "compute-instance", "mig-device"]
_FIRST_ADDRESS = 0x51000000
_MOST_HANDLES = 1000
_ADDRESS_STEP = 0x40


@dataclass(frozen=True, slots=True)
class Target:
    """Target of a handle: a GPU, or by key one of its instances."""

    kind: Kind
    gpu: str
    key: int = 0


@dataclass(slots=True, eq=False)
class EventSet:
    """An event set: GPUs registered with a mask of event types, and the last event seen."""

    masks: dict[str, int] = field(default_factory=dict)
    last: int = 0


class Session:
    """The simulated library's memory in this process, over the machine in `directory`.

    `openings` counts initialisations, `waits` the waits for events that have looked for one;
    `inside` has the event set of each wait that is under way.
    """

    def __init__(self, directory: Path) -> None:
        self.store = Store(directory)
        self.faults = Faults(directory)
        self.log = CallLog(directory)
        self.references = 0
        self.openings = 0
        self.waits = 0
        self.event_sets: dict[int, EventSet] = {}
        self.inside: list[EventSet] = []
        state = self.store.read()
        self._version = state.library_version or state.driver_version
        self._mapping = _mapped(state)
        self.client = Client(directory)
        self._held: set[str] = set()
        self._left: set[str] = set()
        self._mutex = Lock()
        self._next_address = _FIRST_ADDRESS
        self._targets: dict[int, Target] = {}
        self._addresses: dict[Target, int] = {}
        self._losses: dict[str, int] = {}

    def open(self) -> None:
        """Counts one nvmlInit: it keeps the kernel module loaded, and holds no GPU yet.

        The first one finds those GPUs that are on the bus now. LIB_RM_VERSION_MISMATCH unless the
        mapped library is of the module's version, DRIVER_NOT_LOADED without `/dev/nvidiactl`.
        """
        if self._version != self.store.read().driver_version:
            raise RefusedError(Return.LIB_RM_VERSION_MISMATCH)
        state = self.store.read()
        root = Path(state.host_root)
        if state.makes_nodes:
            host.make_nodes(root, state)
        if not (root / "dev/nvidiactl").exists():
            raise RefusedError(Return.DRIVER_NOT_LOADED)
        with self._mutex:
            if self.references == 0:
                self.openings += 1
                gpus = self.store.read().gpus
                self._losses = {g.uuid: g.losses for g in gpus if not g.lost}
            self.references += 1
            self._held |= self._left
            self.client.hold(self._held)

    def close(self) -> None:
        """Counts one nvmlShutdown; the last one ends every handle."""
        with self._mutex:
            self.references -= 1
            if self.references == 0:
                self._forget()

    def end(self) -> None:
        """The process is gone, and with it all that it held."""
        with self._mutex:
            self.references = 0
            self.event_sets.clear()
            self._left.clear()
            self._forget()
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None

    def attach(self, *gpus: Gpu) -> None:
        """Holds GPUs, from now to the last nvmlShutdown."""
        state = self.store.read()
        wanted = {g.uuid for g in (state.gpus if state.variants.attach == "all" else gpus)}
        with self._mutex:
            if self.references and not wanted <= self._held:
                self._held |= wanted
                self.client.hold(self._held)

    def _forget(self) -> None:
        self._targets.clear()
        self._addresses.clear()
        # An event set that is left keeps its GPUs' device files open (580.159 on H100).
        self._left.update(*(events.masks for events in self.event_sets.values()))
        self.event_sets.clear()
        self._held.clear()
        if self._left:
            self.client.hold(self._left)
        else:
            self.client.release()

    def new_address(self) -> int:
        """An address that this process never had before."""
        with self._mutex:
            self._next_address += _ADDRESS_STEP
            return self._next_address

    def handle(self, kind: Kind, gpu: Gpu, key: int = 0) -> int:
        """The handle of a GPU or instance, the same one for as long as the session lasts.

        Of instances only the handles that were given out last are known: others are long gone.
        """
        target = Target(kind, gpu.uuid, key)
        with self._mutex:
            address = self._addresses.get(target)
            if address is None:
                self._next_address += _ADDRESS_STEP
                address = self._addresses[target] = self._next_address
                self._targets[address] = target
                self._forget_old()
            return address

    def _forget_old(self) -> None:
        while len(self._targets) > _MOST_HANDLES:
            old = next(a for a, t in self._targets.items() if t.key)
            del self._addresses[self._targets.pop(old)]

    def target(self, handle: Any, *kinds: Kind) -> Target:
        """Target of a handle; INVALID_ARGUMENT unless it is of one of the kinds."""
        target = self._targets.get(cabi.address(handle))
        if target is None or (kinds and target.kind not in kinds):
            raise RefusedError(Return.INVALID_ARGUMENT)
        return target

    def is_lost(self, state: MachineState, gpu: Gpu) -> bool:
        """True if a GPU is off the bus, or was since this session found it."""
        anew = state.variants.after_loss == "anew"
        return gpu.lost or (anew and self._losses.get(gpu.uuid) != gpu.losses)

    def gpu(self, state: MachineState, target: Target) -> Gpu:
        """The target's GPU; GPU_IS_LOST if it is off the bus."""
        gpu = state.gpu(target.gpu)
        if gpu is None or self.is_lost(state, gpu):
            raise RefusedError(Return.GPU_IS_LOST)
        return gpu

    def device(self, handle: Any) -> tuple[Gpu, Product]:
        """The GPU of a whole-GPU handle and its product, from the current state."""
        gpu = self.gpu(self.store.read(), self.target(handle, "device"))
        return gpu, self.store.product(gpu)

    def gpu_instance(self, state: MachineState, handle: Any) -> tuple[Gpu, GpuInstance]:
        """The GPU instance of a handle; NOT_FOUND if it is gone."""
        target = self.target(handle, "gpu-instance")
        gpu = self.gpu(state, target)
        for instance in gpu.gpu_instances:
            if instance.key == target.key:
                return gpu, instance
        raise RefusedError(Return.NOT_FOUND)

    def compute_instance(
        self, state: MachineState, target: Target
    ) -> tuple[Gpu, GpuInstance, ComputeInstance]:
        """The compute instance or MIG device of a target; NOT_FOUND if it is gone."""
        gpu = self.gpu(state, target)
        for instance in gpu.gpu_instances:
            for compute in instance.compute_instances:
                if compute.key == target.key:
                    return gpu, instance, compute
        raise RefusedError(Return.NOT_FOUND)

    @contextmanager
    def change(self) -> Iterator[MachineState]:
        """Changes the hardware as a privileged caller; the host's files follow."""
        with self.store.change() as state:
            if not state.privileged:
                raise RefusedError(Return.NO_PERMISSION)
            yield state
            host.sync_capabilities(Path(state.host_root), state)
