"""The health of GPUs, slices and devices: problems, the devices that they affect, their end."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from msgspec import structs

from dra.gpu.inventory import HARMFUL, Gpu, GpuReason, Instance, InstanceState
from kubeletplugin import times
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.journal.entries import HELD, Entry, State
from kubeletplugin.nvml.errors import reset
from kubeletplugin.nvml.events import RESET_XIDS, Scope, Xid

_THERE = frozenset({InstanceState.PREPARED, InstanceState.PREPARING})
_TOLD = frozenset(
    {
        GpuReason.GPU_LOST,
        GpuReason.RECOVERY_REQUIRED,
        GpuReason.RECOVERY_ADVISED,
        GpuReason.FABRIC_NOT_READY,
        GpuReason.COMPUTE_MODE,
        GpuReason.VIRTUALIZED,
        GpuReason.CONFIDENTIAL,
    }
)


def is_told(gpu: Gpu) -> bool:
    """True if the Node gets an event of the reason why this GPU is unavailable.

    Other reasons are shown in the MigNode alone, or have an event from elsewhere.
    """
    return gpu.reason in _TOLD


@dataclass(frozen=True, slots=True)
class GpuProblem:
    """Problem of a whole GPU (``gi_id`` None) or of one slice on it.

    ``at``: monotonic time of the last sign of the problem. ``needs_reset``: the problem does not
    end by itself after a quiet time. ``blocks``: no slice is made on the GPU meanwhile. ``beside``:
    UUIDs of the MIG devices that were on the GPU then; of a slice, the UUID of its own.
    ``away``: the GPU has been lost since.
    """

    gpu: str
    reason: str
    message: str
    at: float
    gi_id: int | None = None
    needs_reset: bool = False
    blocks: bool = True
    beside: frozenset[str] = frozenset()
    away: bool = False

    def has_passed(self, gpu: Gpu, *, now: float) -> bool:
        """True if the problem is over; ``gpu``: its GPU as last seen, not lost now.

        A slice's problem ends when the slice has been removed. A GPU's problem ends when the GPU
        was lost and is back, or when its slices are gone without an Unprepare: both mean a reset.
        A problem that needs no reset also ends after a time without another XID. A denied change
        (``NO_PERMISSION``) ends when a slice has been made or removed since. While the GPU is
        unavailable, no problem ends.
        """
        if gpu.unavailable:
            return False
        there = {i.uuid for i in gpu.instances if i.state in _THERE and i.uuid}
        if self.reason == GpuReason.NO_PERMISSION:
            return self.away or self.beside != {i.uuid for i in gpu.instances if i.uuid}
        lost = {i.uuid for i in gpu.instances if i.state is InstanceState.LOST}
        is_gone = not self.beside & there and (self.gi_id is not None or bool(self.beside & lost))
        is_quiet = not self.needs_reset and now - self.at >= times.QUIET_SECONDS
        return self.away or is_gone or is_quiet


def xid_problem(gpu: GpuUnit, xid: Xid, scope: Scope, *, at: float, node: str) -> GpuProblem:
    """Problem of ``gpu`` or of a slice on it, with its remedy, made from an XID.

    ``scope``: the slice or the GPU. ``at``: monotonic time. ``node``: the Node's name.
    """
    seen = gpu.seen
    instances = seen.instances if seen is not None else ()
    if scope is Scope.SLICE:
        message = (
            f"XID {xid.number} in GPU instance {xid.gi_id} of {gpu}; it counts "
            "as healthy once it is made anew, or after 5 minutes without another"
        )
        own = frozenset(i.uuid for i in instances if i.gpu_instance_id == xid.gi_id and i.uuid)
        return GpuProblem(gpu.uuid, GpuReason.XID_ERROR, message, at, gi_id=xid.gi_id, beside=own)
    needs_reset = xid.number in RESET_XIDS
    remedy = "it counts as healthy after 5 minutes without another"
    if needs_reset:
        remedy = reset(gpu.uuid, node=node, gpu=gpu.name)
    return GpuProblem(
        gpu.uuid,
        GpuReason.XID_ERROR,
        f"XID {xid.number} on {gpu}: {remedy}",
        at,
        needs_reset=needs_reset,
        beside=frozenset(i.uuid for i in instances if i.uuid),
    )


class GpuProblems:
    """Known problems of GPUs and slices, apart from what NVML itself says of a GPU. Thread-safe.

    They are kept in memory only, and so forgotten when the plugin ends.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int | None, str], GpuProblem] = {}

    def add(self, problem: GpuProblem) -> bool:
        """Add a problem; if it is known, only its time is renewed, and False is returned."""
        key = (problem.gpu, problem.gi_id, problem.message)
        with self._lock:
            known = self._known.get(key)
            self._known[key] = problem if known is None else replace(known, at=problem.at)
            return known is None

    def forget(self, gpu: str) -> tuple[GpuProblem, ...]:
        """Forget the problems of a GPU and of its slices; returns these problems."""
        with self._lock:
            gone = [key for key, problem in self._known.items() if problem.gpu == gpu]
            return tuple(self._known.pop(key) for key in gone)

    def review(self, gpus: Iterable[Gpu], *, now: float) -> tuple[GpuProblem, ...]:
        """Forget and return the problems that are over; ``gpus``: all GPUs as last seen."""
        by_uuid = {g.uuid: g for g in gpus}
        with self._lock:
            healed: list[GpuProblem] = []
            for key, problem in list(self._known.items()):
                gpu = by_uuid.get(problem.gpu)
                if gpu is None or gpu.reason == GpuReason.GPU_LOST:
                    self._known[key] = replace(problem, away=True)
                elif problem.has_passed(gpu, now=now):
                    healed.append(self._known.pop(key))
            return tuple(healed)

    def of_gpu(self, gpu: str) -> GpuProblem | None:
        """The gravest problem of a GPU as a whole; None without one."""
        if not self._known:
            return None
        with self._lock:
            found = [a for a in self._known.values() if a.gpu == gpu and a.gi_id is None]
        return max(found, key=lambda a: (a.blocks, a.needs_reset), default=None)

    def of_slice(self, gpu: str, instance: Instance) -> GpuProblem | None:
        """A problem of this slice alone, not of its whole GPU; None without one."""
        with self._lock:
            for problem in self._known.values():
                is_slice = problem.gpu == gpu and problem.gi_id is not None
                if is_slice and instance.uuid in problem.beside:
                    return problem
        return None

    def shown(self, gpu: Gpu) -> Gpu:
        """A GPU as last seen, with its known problems added; NVML's own reason comes first."""
        if not self._known:
            return gpu
        instances = tuple(
            structs.replace(i, unhealthy=problem.message)
            if (problem := self.of_slice(gpu.uuid, i)) is not None
            else i
            for i in gpu.instances
        )
        whole = self.of_gpu(gpu.uuid)
        if whole is None or gpu.unavailable:
            return replace(gpu, instances=instances) if instances != gpu.instances else gpu
        return replace(gpu, instances=instances, unavailable=whole.message, reason=whole.reason)


@dataclass(frozen=True, slots=True)
class DeviceProblem:
    """Problem of a device. ``reason``: a word for programs. ``message``: text for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """Health of one prepared device. ``problem``: text, empty while the device is healthy."""

    pool: str
    device: str
    problem: str = ""


def device_health(entries: Iterable[Entry], gpus: Iterable[Gpu]) -> tuple[DeviceHealth, ...]:
    """Health of every device that kubelet knows; ``gpus``: all GPUs as last seen.

    Kubelet knows a device by pool and name. A device that several claims have is listed once, and
    is unhealthy if it is so for any of these claims.
    """
    by_uuid = {g.uuid: g for g in gpus}
    found: dict[tuple[str, str], str] = {}
    for entry in entries:
        if entry.state in HELD:
            problem = device_problem(entry, by_uuid.get(entry.gpu))
            message = problem.message if problem else ""
            name = (entry.pool, entry.device)
            found[name] = found.get(name) or message
    return tuple(DeviceHealth(pool, device, problem) for (pool, device), problem in found.items())


def device_problem(entry: Entry, gpu: Gpu | None) -> DeviceProblem | None:
    """Problem of a device, None without one; ``gpu``: its GPU, None if the node has no such GPU."""
    if gpu is None:
        return DeviceProblem(GpuReason.GPU_LOST, f"GPU {entry.gpu} is not in the node")
    if gpu.unavailable and gpu.reason in HARMFUL:
        return DeviceProblem(gpu.reason, gpu.unavailable)
    gone = DeviceProblem(GpuReason.SLICE_LOST, "the slice is gone from the GPU")
    if entry.state is State.LOST:
        return replace(gone, message=entry.note or gone.message)
    for instance in gpu.instances:
        held = instance.claim is not None and instance.claim.uid == entry.claim.uid
        if not held or instance.placement != entry.placement:
            continue
        if instance.state is InstanceState.LOST or instance.unhealthy:
            ill = DeviceProblem(GpuReason.XID_ERROR, instance.unhealthy)
            return gone if instance.state is InstanceState.LOST else ill
    if entry.mps is not None and entry.state is State.PREPARED and entry.note:
        return DeviceProblem(GpuReason.MPS_DOWN, entry.note)
    return None
