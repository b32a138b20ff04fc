"""GPUs as NVML describes them, each call tried by itself: what one refuses hides nothing else."""

from __future__ import annotations

from typing import Any

import pynvml

from kubeletplugin.check.looking.asker import Asker
from kubeletplugin.check.looking.profiles import read_instances, read_profiles
from kubeletplugin.check.report import Gpu
from kubeletplugin.nvml.discovery import architecture_name
from kubeletplugin.nvml.errors import GpuLostError, NotSupportedError, NvmlError
from kubeletplugin.nvml.session.session import Session

_MIB = 1024 * 1024
_MODES = {None: "none", False: "off", True: "on"}


def read_gpus(session: Session) -> tuple[Gpu, ...]:
    """Every GPU that NVML counts, in its order.

    Raises:
        NvmlError: the driver itself cannot be asked.
    """
    count = session.call(pynvml.nvmlDeviceGetCount)
    return tuple(read_gpu(session, index) for index in range(count))


def read_gpu(session: Session, index: int) -> Gpu:
    """One GPU."""
    ask = Asker(session, f"with index {index}")
    found = ask.tried(lambda: session.take(index), None)
    if found is None:
        return Gpu(index=index, lost=ask.lost, errors=tuple(ask.errors))
    uuid, device = found.uuid, found.handle
    ask.gpu = uuid
    now, pending = _mig_mode(ask, device)
    architecture = ask(pynvml.nvmlDeviceGetArchitecture, device, instead=None)
    capability = ask(pynvml.nvmlDeviceGetCudaComputeCapability, device, instead=(0, 0))
    pci = ask(pynvml.nvmlDeviceGetPciInfo, device, instead=None)
    memory = ask(pynvml.nvmlDeviceGetMemoryInfo, device, instead=None)
    profiles = read_profiles(ask, device, mig_on=bool(now)) if now is not None else ()
    return Gpu(
        index=index,
        uuid=uuid,
        minor=ask(pynvml.nvmlDeviceGetMinorNumber, device, instead=-1),
        product=ask(pynvml.nvmlDeviceGetName, device, instead=""),
        pci_bus_id=_text(pci.busId) if pci is not None else "",
        pci_device_id=f"{pci.pciDeviceId:08x}" if pci is not None else "",
        architecture=architecture_name(architecture),
        cuda_compute_capability=f"{capability[0]}.{capability[1]}",
        memory_mib=memory.total // _MIB if memory is not None else 0,
        mig=_MODES[now],
        mig_pending=_MODES[pending],
        mode_needs_reset=now is not None and needs_reset(architecture),
        processes=_processes(ask, device),
        events=ask(pynvml.nvmlDeviceGetSupportedEventTypes, device, instead=0),
        profiles=profiles,
        instances=read_instances(ask, device, profiles) if now else (),
        lost=ask.lost,
        errors=tuple(ask.errors),
    )


def needs_reset(architecture: int | None) -> bool:
    """True if a change of MIG mode needs a reset of the GPU: before Hopper, or unknown."""
    return (
        architecture is None
        or architecture == pynvml.NVML_DEVICE_ARCH_UNKNOWN
        or architecture < pynvml.NVML_DEVICE_ARCH_HOPPER
    )


def found_by_uuid(session: Session, uuid: str) -> str:
    """Answer of the look-up by UUID for a GPU: a code's name, SUCCESS among them."""
    try:
        session.call(pynvml.nvmlDeviceGetHandleByUUID, uuid, gpu=uuid)
    except GpuLostError:
        return "GPU_IS_LOST"
    except NvmlError as error:
        return str(error)
    return "SUCCESS"


def _mig_mode(ask: Asker, device: Any) -> tuple[bool | None, bool | None]:
    def mode() -> tuple[bool | None, bool | None]:
        try:
            now, pending = ask.session.call(pynvml.nvmlDeviceGetMigMode, device, gpu=ask.gpu)
        except NotSupportedError:
            return None, None
        return bool(now), bool(pending)

    return ask.tried(mode, (None, None))


def _processes(ask: Asker, device: Any) -> int:
    functions = (
        pynvml.nvmlDeviceGetComputeRunningProcesses_v3,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    )
    found = [ask(function, device, instead=None) for function in functions]
    return -1 if any(f is None for f in found) else len({p.pid for f in found for p in f or ()})


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
