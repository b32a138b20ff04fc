"""Devices of a node, as a ResourceSlice would describe them.

Attribute and capacity names are those of NVIDIA's DRA driver; unqualified names belong to the
driver's own domain (KEP-4381).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from dra.common.quantity import mebibytes
from dra.gpu.geometry import Placement, Profile
from dra.gpu.inventory import Gpu, Inventory
from dra.gpu.names import NVIDIA_DRIVER, GpuDevice, MigDevice, mig_device, nominal_gigabytes
from dra.gpu.shares import ALL_CORES

PARENT = "parentUUID"
INDEX = "index"
"""Number of a whole GPU, under NVIDIA's name only: its driver published NVML's until September
2025, and its sample ``gpu-test6`` selects by it. Here the minor number, as in the device's name."""

PCI_BUS_ID = "resource.kubernetes.io/pciBusID"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"

TYPE_GPU = "gpu"
TYPE_MIG = "mig"
TYPE_SHARE = "gpu-share"
"""A whole GPU that several claims may have; a request for a GPU is not given a share of one."""
TYPE_MIG_SHARE = "mig-share"
"""A slice that several claims may have; a request for a slice is not given a share of one."""


ENGINES = ("copyEngines", "decoders", "encoders", "jpegEngines", "ofaEngines")
"""Names of their capacities, in the order of :class:`dra.gpu.geometry.Engines`."""


def slice_device(
    gpu: Gpu, profile: Profile, placement: Placement, *, shared: bool = False
) -> MigDevice:
    """The device of a slice, or of a share of it, whose text is the device name."""
    return mig_device(
        gpu.minor, profile.name, profile_id=profile.id, start=placement.start, shared=shared
    )


def full_gpu_device(gpu: Gpu) -> GpuDevice | None:
    """The whole GPU as a device; None in MIG mode, where CUDA cannot use it whole."""
    return None if gpu.mig_enabled else GpuDevice(gpu.minor)


def slice_attributes(
    gpu: Gpu, profile: Profile, inventory: Inventory, *, shares: int = 0
) -> dict[str, Any]:
    """Attributes of a slice: ``{name: {"string" | "version" | "int": value}}``.

    They do not depend on the placement, so that a selector is evaluated once per GPU and profile.
    ``shares``: number of claims that may have the slice at the same time; 0 where one has it alone.
    """
    return {
        "type": {"string": TYPE_MIG_SHARE if shares else TYPE_MIG},
        "profile": {"string": profile.name},
        "memoryPercent": {"int": memory_percent(gpu, profile)},
        PARENT: {"string": gpu.uuid},
        **_common_attributes(gpu, inventory),
    }


def memory_percent(gpu: Gpu, profile: Profile) -> int:
    """Percent of the GPU's memory that a slice has, rounded down, by the size in its name.

    By MiB half of a GPU would be less than 50 percent of it: the driver keeps some for itself.
    """
    total = round(gpu.memory_mib / 1024)
    return min(100, nominal_gigabytes(profile.name) * 100 // total) if total else 0


def gpu_attributes(gpu: Gpu, inventory: Inventory) -> dict[str, Any]:
    """Attributes of a whole GPU, in the same shape as ``slice_attributes``."""
    return {
        "type": {"string": TYPE_SHARE if gpu.shares else TYPE_GPU},
        "uuid": {"string": gpu.uuid},
        **({INDEX: {"int": gpu.minor}} if inventory.driver == NVIDIA_DRIVER else {}),
        **_common_attributes(gpu, inventory),
    }


def slice_capacity(profile: Profile, shares: int = 0) -> dict[str, Any]:
    """Capacities of a slice: ``{name: {"value": quantity}}``, canonical.

    A slice that several claims may have also has ``cores``, in percent, and ``shares``.
    """
    engines = zip(ENGINES, profile.engines, strict=True)
    return {
        "memory": {"value": mebibytes(profile.memory_mib)},
        "multiprocessors": {"value": str(profile.multiprocessors)},
        **{name: {"value": str(count)} for name, count in engines},
        **_shared_capacity(shares),
    }


def gpu_capacity(gpu: Gpu) -> dict[str, Any]:
    """Capacities of a whole GPU, with ``cores`` in percent and ``shares`` where it is shared."""
    return {
        "memory": {"value": mebibytes(gpu.memory_mib)},
        "multiprocessors": {"value": str(gpu.multiprocessors)},
        **_shared_capacity(gpu.shares),
    }


def _shared_capacity(shares: int) -> dict[str, Any]:
    if not shares:
        return {}
    return {"cores": {"value": str(ALL_CORES)}, "shares": {"value": str(shares)}}


def _common_attributes(gpu: Gpu, inventory: Inventory) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "productName": {"string": gpu.product_name},
        "brand": {"string": gpu.brand},
        "architecture": {"string": gpu.architecture},
        "cudaComputeCapability": {"version": _semver(gpu.cuda_compute_capability)},
        "driverVersion": {"version": _semver(inventory.driver_version)},
        "cudaDriverVersion": {"version": _semver(inventory.cuda_driver_version)},
        PCI_BUS_ID: {"string": gpu.pci_bus_id},
        PCIE_ROOT: {"string": gpu.pcie_root},
    }
    return {name: value for name, value in attributes.items() if next(iter(value.values())) != ""}


@lru_cache(maxsize=256)
def _semver(version: str) -> str:
    """A version as Kubernetes wants it: three numbers without leading zeros (570.86.10)."""
    if not version:
        return ""
    parts = [str(int(p)) for p in version.split(".") if p.isdigit()]
    return ".".join([*parts, "0", "0", "0"][:3])
