"""Processes on a GPU or MIG device. On a GPU with MIG, each names the instances that it uses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pynvml

from sim.nvml.cabi import (
    RefusedError,
    Return,
    integer,
    put_int,
    put_text,
    put_uint,
    structure,
    versioned,
)
from sim.nvml.gpus import hardware
from sim.nvml.gpus.clients import clients
from sim.nvml.library import exported
from sim.nvml.products import Architecture, Brand, Product
from sim.nvml.session import Session
from sim.nvml.state import ComputeInstance, Gpu, GpuInstance, MachineState

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


_COMPUTE_MODES = (0, 2, 3)


def _field(state: MachineState, gpu: Gpu, field: int) -> int | None:
    """A field's value; None for one that the driver does not have."""
    if field == pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
        return None if state.variants.recovery_action == "none" else gpu.recovery_action
    values = {
        pynvml.NVML_FI_DEV_ECC_CURRENT: gpu.ecc,
        pynvml.NVML_FI_DEV_ECC_PENDING: gpu.ecc_pending,
        pynvml.NVML_FI_DEV_REMAPPED_PENDING: gpu.remap_pending,
        pynvml.NVML_FI_DEV_REMAPPED_FAILURE: gpu.remap_failed,
    }
    value = values.get(field)
    return None if value is None else int(value)


@exported("nvmlDeviceGetFieldValues")
def field_values(session: Session, device: Any, count: Any, values: Any) -> None:
    """Values of fields, each with a code of its own; success as long as one of them has a value."""
    gpu, _ = session.device(device)
    state = session.store.read()
    for each in structure(values, pynvml.c_nvmlFieldValue_t * integer(count)):
        value = _field(state, gpu, each.fieldId)
        each.nvmlReturn = Return.NOT_SUPPORTED if value is None else Return.SUCCESS
        each.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
        each.value.uiVal = value or 0


@exported("nvmlDeviceGetGpuFabricInfoV")
def fabric_info(session: Session, device: Any, info: Any) -> None:
    """The state of the GPU's registration with the fabric manager."""
    gpu, _ = session.device(device)
    if not gpu.fabric and session.store.read().variants.no_fabric == "refused":
        raise RefusedError(Return.NOT_SUPPORTED)
    found = versioned(info, pynvml.c_nvmlGpuFabricInfoV_t, pynvml.nvmlGpuFabricInfo_v2)
    found.state, found.status = gpu.fabric, Return.SUCCESS


@exported("nvmlDeviceGetComputeMode")
def compute_mode(session: Session, device: Any, mode: Any) -> None:
    """Compute mode of a GPU."""
    gpu, _ = session.device(device)
    if gpu.mig and session.store.read().variants.compute_mode == "refused":
        raise RefusedError(Return.NOT_SUPPORTED)
    put_uint(mode, gpu.compute_mode)


@exported("nvmlDeviceSetComputeMode", mutation=True)
def set_compute_mode(session: Session, device: Any, mode: Any) -> None:
    """Sets the compute mode of a GPU, not in MIG mode; it lasts until the driver is unloaded."""
    target = session.target(device, "device")
    if integer(mode) not in _COMPUTE_MODES:
        raise RefusedError(Return.INVALID_ARGUMENT)
    with session.change() as state:
        gpu = session.gpu(state, target)
        if gpu.mig:
            raise RefusedError(Return.NOT_SUPPORTED)
        gpu.compute_mode = integer(mode)


@exported("nvmlSystemGetConfComputeState", on_handle=False)
def confidential_computing(session: Session, state: Any) -> None:
    """State of confidential computing: on or off."""
    on = session.store.read().confidential
    found = structure(state, pynvml.c_nvmlConfComputeSystemState_t)
    found.environment, found.ccFeature, found.devToolsMode = (2 if on else 0), int(on), 0


@exported("nvmlSystemGetConfComputeGpusReadyState", on_handle=False)
def accepts_work(session: Session, accepting: Any) -> None:
    """Readiness of GPUs for work with confidential computing; NOT_SUPPORTED without."""
    state = session.store.read()
    if not state.confidential:
        raise RefusedError(Return.NOT_SUPPORTED)
    put_uint(accepting, int(state.accepts_work))


ARCHITECTURES: dict[Architecture, int] = {
    "ampere": 7,
    "ada": 8,
    "hopper": 9,
    "blackwell": 10,
    "unknown": 0xFFFFFFFF,
}
BRANDS: dict[Brand, int] = {"tesla": 2, "nvidia-rtx": 13, "nvidia": 14}


_NUMBERS: dict[str, Callable[[Gpu, Product], int]] = {
    "nvmlDeviceGetArchitecture": lambda _, product: ARCHITECTURES[product.architecture],
    "nvmlDeviceGetBrand": lambda _, product: BRANDS[product.brand],
    "nvmlDeviceGetMinorNumber": lambda gpu, _: gpu.minor,
    "nvmlDeviceGetVirtualizationMode": lambda gpu, _: gpu.virtualization,
}
"""Functions that say one number of a GPU."""


def _number(session: Session, device: Any, number: Any, *, of: str) -> None:
    put_uint(number, _NUMBERS[of](*session.device(device)))


for _name in _NUMBERS:
    exported(_name)(partial(_number, of=_name))


@exported("nvmlDeviceGetName")
def name(session: Session, device: Any, buffer: Any, length: Any) -> None:
    """Product name; a MIG device adds its profile."""
    target = session.target(device, "device", "mig-device")
    state = session.store.read()
    gpu = session.gpu(state, target)
    product = session.store.product(gpu)
    if target.kind == "device":
        put_text(buffer, length, product.name)
        return
    _, instance, _ = session.compute_instance(state, target)
    profile = hardware.profile_of(product, instance.profile)
    put_text(buffer, length, f"{product.name} MIG {profile.name}")


@exported("nvmlDeviceGetUUID")
def uuid(session: Session, device: Any, buffer: Any, length: Any) -> None:
    """UUID of a GPU ("GPU-...") or MIG device ("MIG-...")."""
    target = session.target(device, "device", "mig-device")
    if target.kind == "device":
        put_text(buffer, length, target.gpu)
        return
    _, _, compute = session.compute_instance(session.store.read(), target)
    put_text(buffer, length, compute.uuid)


@exported("nvmlDeviceGetPciInfo_v3")
def pci_info(session: Session, device: Any, info: Any) -> None:
    """PCI address; `busId` has a domain of eight digits, `busIdLegacy` of four."""
    gpu, product = session.device(device)
    found = structure(info, pynvml.nvmlPciInfo_t)
    domain, bus, rest = gpu.pci_bus_id.split(":")
    found.busId = gpu.pci_bus_id
    found.busIdLegacy = gpu.pci_bus_id[4:]
    found.domain = int(domain, 16)
    found.bus = int(bus, 16)
    found.device = int(rest.split(".")[0], 16)
    found.pciDeviceId = int(product.pci_device_id, 16)
    found.pciSubSystemId = 0


@exported("nvmlDeviceGetCudaComputeCapability")
def cuda_compute_capability(session: Session, device: Any, major: Any, minor: Any) -> None:
    """CUDA compute capability."""
    found = session.device(device)[1].cuda_compute_capability
    put_int(major, found[0])
    put_int(minor, found[1])


@exported("nvmlDeviceGetMemoryInfo")
def memory_info(session: Session, device: Any, info: Any) -> None:
    """Memory of a GPU or MIG device in bytes."""
    target = session.target(device, "device", "mig-device")
    state = session.store.read()
    gpu = session.gpu(state, target)
    product = session.store.product(gpu)
    if target.kind == "device":
        total, users = product.memory_total_mib, gpu.processes
    else:
        _, instance, _ = session.compute_instance(state, target)
        total = hardware.profile_of(product, instance.profile).memory_mib
        users = [p for p in gpu.processes if p.gpu_instance == instance.id]
    found = structure(info, pynvml.c_nvmlMemory_t)
    found.total, found.used = total * _MIB, sum(p.used_mib for p in users) * _MIB
    found.free = found.total - found.used


@exported("nvmlDeviceGetMigMode")
def mig_mode(session: Session, device: Any, current: Any, pending: Any) -> None:
    """Current and pending MIG mode; NOT_SUPPORTED on a product without MIG."""
    gpu, product = session.device(device)
    if not product.gi_profiles:
        raise RefusedError(Return.NOT_SUPPORTED)
    put_uint(current, int(gpu.mig))
    put_uint(pending, int(gpu.mig_pending))


@exported("nvmlDeviceSetMigMode", mutation=True)
def set_mig_mode(session: Session, device: Any, mode: Any, activation_status: Any) -> None:
    """Sets MIG mode; SUCCESS with another activation status means that the mode is pending."""
    target = session.target(device, "device")
    if integer(mode) not in (0, 1):
        raise RefusedError(Return.INVALID_ARGUMENT)
    with session.change() as state:
        gpu = session.gpu(state, target)
        product = session.store.product(gpu)
        others = clients(session.store.directory, but=session.client)
        held = any(gpu.uuid in c.gpus for c in others)
        status = hardware.set_mig_mode(
            state, gpu, product, enable=integer(mode) == 1, held=held, resets=state.resets_gpus
        )
    put_uint(activation_status, status)


def _mig_device(session: Session, device: Any) -> tuple[Gpu, GpuInstance, ComputeInstance]:
    target = session.target(device, "mig-device")
    return session.compute_instance(session.store.read(), target)


@exported("nvmlDeviceGetAttributes_v2")
def attributes(session: Session, mig_device: Any, found: Any) -> None:
    """Slices, engines, multiprocessors and memory of a MIG device."""
    gpu, instance, compute = _mig_device(session, mig_device)
    profile = hardware.profile_of(session.store.product(gpu), instance.profile)
    share = hardware.compute_profile_of(profile, compute.profile)
    filled = structure(found, pynvml.c_nvmlDeviceAttributes)
    filled.multiprocessorCount = share.multiprocessors
    filled.sharedCopyEngineCount = profile.copy_engines
    filled.sharedDecoderCount = profile.decoders
    filled.sharedEncoderCount = profile.encoders
    filled.sharedJpegCount = profile.jpeg
    filled.sharedOfaCount = profile.ofa
    filled.gpuInstanceSliceCount = profile.slice_count
    filled.computeInstanceSliceCount = share.slice_count
    filled.memorySizeMB = profile.memory_mib
