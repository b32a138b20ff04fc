"""The GPUs of this machine, each read on its own: one that fails hides no other."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pynvml

from dra.gpu.geometry import Geometry
from dra.gpu.inventory import GpuFacts
from dra.gpu.reasons import GpuReason
from kubeletplugin.nvml.condition import UNSAID, Condition, read_condition
from kubeletplugin.nvml.errors import NotSupportedError, NvmlError, reset
from kubeletplugin.nvml.gpus import read_geometry
from kubeletplugin.nvml.session import Device, Session

_MIB = 1024 * 1024
_MOST_GPUS = 64
_ARCHITECTURES = {
    value: name.removeprefix("NVML_DEVICE_ARCH_").capitalize()
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_DEVICE_ARCH_") and isinstance(value, int)
}
_BRANDS = {
    pynvml.NVML_BRAND_TESLA: "Tesla",
    pynvml.NVML_BRAND_NVIDIA: "Nvidia",
    pynvml.NVML_BRAND_NVIDIA_RTX: "NvidiaRTX",
    pynvml.NVML_BRAND_QUADRO_RTX: "QuadroRTX",
    pynvml.NVML_BRAND_GEFORCE: "GeForce",
}


@dataclass(frozen=True, slots=True)
class Card(GpuFacts):
    """A GPU as NVML describes it now.

    ``minor`` is the number of its device node. ``geometry`` is None without MIG mode.
    The ids of the PCI device and of its board have the vendor in their lower halves.
    ``switches_mig``: its MIG mode changes without a reset, as from Hopper on.
    ``condition`` is what else the driver says of it.
    ``reason`` and ``problem`` say, for programs and for people, why it cannot be used; both are
    empty when it can.
    """

    uuid: str
    minor: int
    pci_device_id: int = 0
    pci_subsystem_id: int = 0
    mig_capable: bool = False
    mig_enabled: bool = False
    mig_pending: bool = False
    switches_mig: bool = False
    geometry: Geometry | None = None
    condition: Condition = UNSAID
    reason: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Discovery:
    """GPUs that were found; ``problems`` lists those that did not even give their UUID."""

    driver_version: str
    cuda_version: str
    cards: tuple[Card, ...]
    problems: tuple[str, ...]


def discover(session: Session, addresses: Collection[str] | None = None) -> Discovery:
    """Read every GPU, or with PCI ``addresses`` those alone: no other is touched then.

    Raises:
        NvmlError: the driver itself cannot be asked.
    """
    driver, cuda = session.driver_version(), session.cuda_version()
    cards: list[Card] = []
    problems: list[str] = []
    uncounted: NvmlError | None = None
    try:
        count = session.call(pynvml.nvmlDeviceGetCount)
    except NvmlError as error:
        # nvml.h names no state of a GPU that makes this call fail; should one, others are found.
        count, uncounted = _MOST_GPUS, error
        problems.append(str(error))
    for index in range(count) if addresses is None else ():
        try:
            cards.append(_read(session, session.take(index)))
        except NvmlError as error:
            if uncounted is not None and error.code == pynvml.NVML_ERROR_INVALID_ARGUMENT:
                break  # past the last
            problems.append(str(error))
    for address in addresses or ():
        try:
            cards.append(_read(session, session.take_at(address)))
        except NvmlError as error:
            problems.append(str(error))
    if uncounted is not None and not cards:
        raise uncounted
    return Discovery(driver, cuda, _sharing_geometries(cards), tuple(problems))


def _sharing_geometries(cards: Iterable[Card]) -> tuple[Card, ...]:
    """The cards; those with equal geometries have the same object, which need not be compared."""
    known: dict[Geometry, Geometry] = {}
    return tuple(
        card if (g := card.geometry) is None else replace(card, geometry=known.setdefault(g, g))
        for card in cards
    )


def architecture_name(number: int | None) -> str:
    """``Ampere`` for 7; ``Unknown`` for what NVML's bindings do not know."""
    return "Unknown" if number is None else _ARCHITECTURES.get(number, "Unknown")


def mig_mode(session: Session, device: Any, *, gpu: str) -> tuple[bool, bool] | None:
    """MIG mode (now, after the next reset); None for a GPU that has no MIG."""
    try:
        current, pending = session.call(pynvml.nvmlDeviceGetMigMode, device, gpu=gpu)
    except NotSupportedError:
        return None
    return bool(current), bool(pending)


def _read(session: Session, found: Device) -> Card:
    device, uuid = found.handle, found.uuid
    minor = session.call(pynvml.nvmlDeviceGetMinorNumber, device, gpu=uuid)
    try:
        return _describe(session, device, uuid=uuid, minor=minor)
    except NvmlError as error:
        return Card(uuid, minor, reason=GpuReason.NVML_ERROR, problem=str(error))


def _describe(session: Session, device: Any, *, uuid: str, minor: int) -> Card:
    def ask(function: Any) -> Any:
        return session.call(function, device, gpu=uuid)

    def fact(function: Any) -> Any:
        try:
            return ask(function)
        except NotSupportedError:  # the driver may be older than the call
            return ""

    mode = mig_mode(session, device, gpu=uuid)
    enabled, pending = mode or (False, False)
    reason, problem = _availability(enabled=enabled, pending=pending, uuid=uuid)
    major, minor_version = ask(pynvml.nvmlDeviceGetCudaComputeCapability)
    architecture = ask(pynvml.nvmlDeviceGetArchitecture)
    brand = ask(pynvml.nvmlDeviceGetBrand)
    pci = ask(pynvml.nvmlDeviceGetPciInfo)
    bus_id = pci.busId
    return Card(
        uuid=uuid,
        minor=minor,
        product_name=fact(pynvml.nvmlDeviceGetName),
        brand=_BRANDS.get(brand, f"Brand{brand}"),
        architecture=architecture_name(architecture),
        cuda_compute_capability=f"{major}.{minor_version}",
        pci_bus_id=_pci_address(bus_id.decode() if isinstance(bus_id, bytes) else bus_id),
        pci_device_id=pci.pciDeviceId,
        pci_subsystem_id=pci.pciSubSystemId,
        memory_mib=ask(pynvml.nvmlDeviceGetMemoryInfo).total // _MIB,
        mig_capable=mode is not None,
        mig_enabled=enabled,
        mig_pending=pending,
        switches_mig=pynvml.NVML_DEVICE_ARCH_HOPPER
        <= architecture
        < pynvml.NVML_DEVICE_ARCH_UNKNOWN,
        geometry=read_geometry(session, device, gpu=uuid) if enabled else None,
        condition=read_condition(session, device, gpu=uuid),
        reason=reason,
        problem=problem,
    )


def _availability(*, enabled: bool, pending: bool, uuid: str) -> tuple[str, str]:
    if enabled != pending:
        wanted = "on" if pending else "off"
        return (
            GpuReason.MIG_PENDING,
            f"MIG mode turns {wanted} at the next GPU reset; {reset(uuid)}",
        )
    return "", ""


def _pci_address(bus_id: str) -> str:
    """``00000000:07:00.0`` as Linux writes it: ``0000:07:00.0``."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"
