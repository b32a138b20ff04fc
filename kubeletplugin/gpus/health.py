"""The health of GPUs, slices and devices: what counts as a problem, for whom, and until when."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from msgspec import structs

from dra.gpu.inventory import Gpu, GpuReason, Instance, InstanceState
from kubeletplugin import times
from kubeletplugin.gpus.gpu import GpuUnit
from kubeletplugin.journal.entries import HELD, Entry, State
from kubeletplugin.nvml.errors import reset
from kubeletplugin.nvml.events import RESET_XIDS, Scope, Xid

_THERE = frozenset({InstanceState.PREPARED, InstanceState.PREPARING})
_ILL, _TOLD, _BOTH = (True, False), (False, True), (True, True)
_CONDITIONS: dict[str, tuple[bool, bool]] = {
    GpuReason.XID_ERROR: _ILL,
    GpuReason.NVML_ERROR: _ILL,
    GpuReason.NVML_HANG: _ILL,
    GpuReason.GPU_LOST: _BOTH,
    GpuReason.RECOVERY_REQUIRED: _BOTH,
    GpuReason.RECOVERY_ADVISED: _TOLD,
    GpuReason.FABRIC_NOT_READY: _TOLD,
    GpuReason.COMPUTE_MODE: _TOLD,
    GpuReason.VIRTUALIZED: _TOLD,
    GpuReason.CONFIDENTIAL: _TOLD,
}
"""Reasons for which a GPU is not offered: whether they concern those who use it too, and whether
the Node gets an event of them here. Of others nobody but the MigNode tells."""


def is_told(gpu: Gpu) -> bool:
    """True if the Node gets an event of what is wrong with a GPU."""
    return _CONDITIONS.get(gpu.reason, (False, False))[1]


@dataclass(frozen=True, slots=True)
class GpuProblem:
    """One reason for which a GPU (``gi_id`` None) or a slice on it is not healthy.

    ``at``: monotonic time of its last sign. ``needs_reset``: no quiet time heals it. ``blocks``: no
    slice is made on the GPU. ``beside``: UUIDs of the MIG devices present at the time (for a slice,
    its own). ``away``: the GPU has been lost since.
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
        """True if it is over, as its GPU was last seen, which is not lost.

        A slice is well again when it has been removed: what is made next is another. A GPU is when
        it was lost and is back, or when the slices that were on it are gone without an Unprepare:
        both mean a reset. Where no reset is needed, it is enough that for a time no further XID
        came, the GPU answers, and the slice is there. Where a change was denied it is enough that a
        slice has come or gone since.
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
    """The problem of ``gpu``, or of the slice in which it happened, with its remedy.

    ``scope`` is the slice or the GPU; ``at`` is monotonic time, ``node`` the Node's name.
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
    """Problems of GPUs and slices that NVML answers for nevertheless. Thread-safe.

    Kept in memory only: what was said of a GPU before the plugin's start is not known to it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[tuple[str, int | None, str], GpuProblem] = {}

    def add(self, problem: GpuProblem) -> bool:
        """Take one more sign of a problem; False if it was known, and keeps its words."""
        key = (problem.gpu, problem.gi_id, problem.message)
        with self._lock:
            known = self._known.get(key)
            self._known[key] = problem if known is None else replace(known, at=problem.at)
            return known is None

    def forget(self, gpu: str) -> tuple[GpuProblem, ...]:
        """Forget what concerns a GPU or slices on it; returns it."""
        with self._lock:
            gone = [key for key, problem in self._known.items() if problem.gpu == gpu]
            return tuple(self._known.pop(key) for key in gone)

    def review(self, gpus: Iterable[Gpu], *, now: float) -> tuple[GpuProblem, ...]:
        """Forget what has passed, judged by what was last seen of the GPUs; returns it."""
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
        """The gravest problem of a GPU as a whole."""
        if not self._known:
            return None
        with self._lock:
            found = [a for a in self._known.values() if a.gpu == gpu and a.gi_id is None]
        return max(found, key=lambda a: (a.blocks, a.needs_reset), default=None)

    def of_slice(self, gpu: str, instance: Instance) -> GpuProblem | None:
        """The problem of one slice, beside those of its GPU."""
        with self._lock:
            for problem in self._known.values():
                is_slice = problem.gpu == gpu and problem.gi_id is not None
                if is_slice and instance.uuid in problem.beside:
                    return problem
        return None

    def shown(self, gpu: Gpu) -> Gpu:
        """A GPU as last seen, with its problems; NVML's own verdict on it comes first."""
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
    """Problem of a device: a reason for programs, and a message for people."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DeviceHealth:
    """One prepared device; ``problem`` is empty while it is healthy."""

    pool: str
    device: str
    problem: str = ""


def device_health(entries: Iterable[Entry], gpus: Iterable[Gpu]) -> tuple[DeviceHealth, ...]:
    """The health of every device that kubelet was told of, from what was last seen of its GPU.

    Kubelet knows devices by pool and name: one that several claims have is told of once, and is ill
    if it is for any of them.
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
    """The problem of a device, if it has one; ``gpu`` is None if the node has not got it."""
    if gpu is None:
        return DeviceProblem(GpuReason.GPU_LOST, f"GPU {entry.gpu} is not in the node")
    if gpu.unavailable and _CONDITIONS.get(gpu.reason, (False, False))[0]:
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
