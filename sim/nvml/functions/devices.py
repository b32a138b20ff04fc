"""Facts about one GPU, and its MIG mode, some of which MIG device handles answer too."""

from typing import Any

import pynvml

from sim.nvml.border.cabi import integer, put_int, put_text, put_uint, structure, versioned
from sim.nvml.border.library import exported
from sim.nvml.border.session import Session
from sim.nvml.codes import RefusedError, Return
from sim.nvml.gpus import hardware
from sim.nvml.gpus.clients import clients
from sim.nvml.products import Architecture, Brand

_MIB = 1024 * 1024
ARCHITECTURES: dict[Architecture, int] = {
    "ampere": 7,
    "ada": 8,
    "hopper": 9,
    "blackwell": 10,
    "unknown": 0xFFFFFFFF,
}
BRANDS: dict[Brand, int] = {"tesla": 2, "nvidia-rtx": 13, "nvidia": 14}


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


@exported("nvmlDeviceGetIndex")
def index(session: Session, device: Any, number: Any) -> None:
    """Index of a GPU."""
    gpu, _ = session.device(device)
    uuids = [g.uuid for g in session.store.read().gpus]
    put_uint(number, uuids.index(gpu.uuid))


@exported("nvmlDeviceGetMinorNumber")
def minor_number(session: Session, device: Any, number: Any) -> None:
    """Minor number of the GPU's device node, which need not be its index."""
    put_uint(number, session.device(device)[0].minor)


@exported("nvmlDeviceGetSerial")
def serial(session: Session, device: Any, buffer: Any, length: Any) -> None:
    """Serial number of the board."""
    put_text(buffer, length, session.device(device)[0].serial)


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


@exported("nvmlDeviceGetBrand")
def brand(session: Session, device: Any, kind: Any) -> None:
    """Brand as NVML numbers it."""
    put_uint(kind, BRANDS[session.device(device)[1].brand])


@exported("nvmlDeviceGetArchitecture")
def architecture(session: Session, device: Any, kind: Any) -> None:
    """Architecture as NVML numbers it."""
    _, product = session.device(device)
    put_uint(kind, ARCHITECTURES[product.architecture])


@exported("nvmlDeviceGetCudaComputeCapability")
def cuda_compute_capability(session: Session, device: Any, major: Any, minor: Any) -> None:
    """CUDA compute capability."""
    found = session.device(device)[1].cuda_compute_capability
    put_int(major, found[0])
    put_int(minor, found[1])


def _memory(session: Session, device: Any) -> tuple[int, int]:
    """Total and used bytes of a GPU or MIG device."""
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
    return total * _MIB, sum(p.used_mib for p in users) * _MIB


@exported("nvmlDeviceGetMemoryInfo")
def memory_info(session: Session, device: Any, info: Any) -> None:
    """Memory in bytes."""
    found = structure(info, pynvml.c_nvmlMemory_t)
    found.total, found.used = _memory(session, device)
    found.free = found.total - found.used


@exported("nvmlDeviceGetMemoryInfo_v2")
def memory_info_v2(session: Session, device: Any, info: Any) -> None:
    """Memory in bytes, with the driver's share apart (here none)."""
    found = versioned(info, pynvml.c_nvmlMemory_v2_t, pynvml.nvmlMemory_v2)
    found.total, found.used = _memory(session, device)
    found.reserved = 0
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
