"""Initialisation, versions, and finding GPUs."""

from typing import Any

from sim.nvml.border.cabi import integer, put_handle, put_int, put_text, put_uint, text
from sim.nvml.border.library import exported
from sim.nvml.border.session import Kind, Session
from sim.nvml.codes import RefusedError, Return
from sim.nvml.state import Gpu


@exported("nvmlInit_v2", on_handle=False, needs_init=False)
def init(session: Session) -> None:
    """Initialises; NVML counts references."""
    session.open()


@exported("nvmlInitWithFlags", on_handle=False, needs_init=False)
def init_with_flags(session: Session, _flags: Any) -> None:
    """Initialises; no flag changes anything here."""
    session.open()


@exported("nvmlShutdown", on_handle=False)
def shutdown(session: Session) -> None:
    """Undoes one initialisation; what becomes of waits for events is a variant."""
    session.close()


@exported("nvmlSystemGetDriverVersion", on_handle=False)
def driver_version(session: Session, buffer: Any, length: Any) -> None:
    """Version of the kernel driver."""
    put_text(buffer, length, session.store.read().driver_version)


@exported("nvmlSystemGetNVMLVersion", on_handle=False)
def nvml_version(session: Session, buffer: Any, length: Any) -> None:
    """Version of the library."""
    put_text(buffer, length, session.store.read().nvml_version)


@exported("nvmlSystemGetCudaDriverVersion", on_handle=False)
@exported("nvmlSystemGetCudaDriverVersion_v2", on_handle=False)
def cuda_driver_version(session: Session, version: Any) -> None:
    """CUDA version of the driver, as 1000 * major + 10 * minor."""
    put_int(version, session.store.read().cuda_version)


@exported("nvmlDeviceGetCount_v2", on_handle=False)
def device_count(session: Session, count: Any) -> None:
    """Number of GPUs, lost ones included."""
    put_uint(count, len(session.store.read().gpus))


def _give(session: Session, gpu: Gpu, device: Any, *, mig_device: int = 0) -> None:
    if session.is_lost(session.store.read(), gpu):
        raise RefusedError(Return.GPU_IS_LOST)
    session.attach(gpu)
    kind: Kind = "mig-device" if mig_device else "device"
    put_handle(device, session.handle(kind, gpu, mig_device))


@exported("nvmlDeviceGetHandleByIndex_v2", on_handle=False)
def device_by_index(session: Session, index: Any, device: Any) -> None:
    """GPU by index."""
    gpus = session.store.read().gpus
    if not 0 <= integer(index) < len(gpus):
        raise RefusedError(Return.INVALID_ARGUMENT)
    _give(session, gpus[integer(index)], device)


@exported("nvmlDeviceGetHandleByUUID", on_handle=False)
def device_by_uuid(session: Session, uuid: Any, device: Any) -> None:
    """GPU or MIG device by UUID; the search may stop at any GPU that is lost."""
    wanted = text(uuid)
    state = session.store.read()
    lost = any(session.is_lost(state, gpu) for gpu in state.gpus)
    if lost and state.variants.lookup_by_uuid == "any":
        raise RefusedError(Return.GPU_IS_LOST)
    for gpu in state.gpus:
        # "NVML may initialize additional GPUs as it searches for the target GPU" (nvml.h).
        session.attach(gpu)
        if gpu.uuid == wanted:
            _give(session, gpu, device)
            return
        for instance in gpu.gpu_instances:
            for compute in instance.compute_instances:
                if compute.uuid == wanted:
                    _give(session, gpu, device, mig_device=compute.key)
                    return
    raise RefusedError(Return.NOT_FOUND)


@exported("nvmlDeviceGetHandleByPciBusId_v2", on_handle=False)
def device_by_pci_bus_id(session: Session, bus_id: Any, device: Any) -> None:
    """GPU by PCI bus id, with a domain of four or eight digits."""
    domain, _, rest = text(bus_id).lower().partition(":")
    for gpu in session.store.read().gpus:
        if gpu.pci_bus_id.lower() == f"{domain:0>8}:{rest}":
            _give(session, gpu, device)
            return
    raise RefusedError(Return.NOT_FOUND)
