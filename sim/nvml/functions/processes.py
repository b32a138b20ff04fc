"""Processes on a GPU or MIG device. On a GPU with MIG, each names the instances that it uses."""

from typing import Any, Literal

import pynvml

from sim.nvml.border.cabi import structure
from sim.nvml.border.library import exported
from sim.nvml.border.session import Session
from sim.nvml.codes import RefusedError, Return

_MIB = 1024 * 1024


def _list(
    session: Session, device: Any, count: Any, *, found: Any, kind: Literal["compute", "graphics"]
) -> None:
    target = session.target(device, "device", "mig-device")
    state = session.store.read()
    processes = [p for p in session.gpu(state, target).processes if p.kind == kind]
    if state.variants.processes == "hidden":
        processes = []
    if target.kind == "mig-device":
        _, instance, compute = session.compute_instance(state, target)
        holder = (instance.id, compute.id)
        processes = [p for p in processes if (p.gpu_instance, p.compute_instance) == holder]
    room = structure(count, pynvml.c_uint)
    given, room.value = room.value, len(processes)
    if given < len(processes):
        raise RefusedError(Return.INSUFFICIENT_SIZE)
    if not processes:
        return
    slots = structure(found, pynvml.c_nvmlProcessInfo_v3_t * len(processes))
    for slot, process in zip(slots, processes, strict=True):
        slot.pid = process.pid
        slot.usedGpuMemory = process.used_mib * _MIB
        slot.gpuInstanceId = process.gpu_instance
        slot.computeInstanceId = process.compute_instance


@exported("nvmlDeviceGetComputeRunningProcesses_v3")
def compute_processes(session: Session, device: Any, count: Any, found: Any) -> None:
    """Processes with a compute context."""
    _list(session, device, count, found=found, kind="compute")


@exported("nvmlDeviceGetGraphicsRunningProcesses_v3")
def graphics_processes(session: Session, device: Any, count: Any, found: Any) -> None:
    """Processes with a graphics context."""
    _list(session, device, count, found=found, kind="graphics")
