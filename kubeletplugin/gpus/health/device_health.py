"""The health of prepared devices, judged by what was last seen of their GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dra.gpu.inventory import Gpu, InstanceState
from dra.gpu.reasons import GpuReason
from kubeletplugin.journal.entries import HELD, Entry, State

_ILL = frozenset(
    {
        GpuReason.XID_ERROR,
        GpuReason.RECOVERY_REQUIRED,
        GpuReason.GPU_LOST,
        GpuReason.NVML_ERROR,
        GpuReason.NVML_HANG,
    }
)
"""Reasons for which a GPU is not offered that also concern those who use it."""


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
    if gpu.reason in _ILL and gpu.unavailable:
        return DeviceProblem(gpu.reason, gpu.unavailable)
    if entry.state is State.LOST:
        return DeviceProblem(GpuReason.SLICE_LOST, entry.note or "the slice is gone from the GPU")
    return _of_instance(entry, gpu) or _of_daemon(entry)


def _of_daemon(entry: Entry) -> DeviceProblem | None:
    is_down = entry.mps is not None and entry.state is State.PREPARED and bool(entry.note)
    return DeviceProblem(GpuReason.MPS_DOWN, entry.note) if is_down else None


def _of_instance(entry: Entry, gpu: Gpu) -> DeviceProblem | None:
    for instance in gpu.instances:
        if instance.claim is None or instance.claim.uid != entry.claim.uid:
            continue
        if instance.placement != entry.placement:
            continue
        if instance.state is InstanceState.LOST:
            return DeviceProblem(GpuReason.SLICE_LOST, "the slice is gone from the GPU")
        if instance.unhealthy:
            return DeviceProblem(GpuReason.XID_ERROR, instance.unhealthy)
    return None
