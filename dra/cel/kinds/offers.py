"""Offers of a kind of GPU: the devices of it, before a particular GPU is chosen."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from dra.cel.celdata import DeviceData, device_data
from dra.cel.questions import GpuIdentity
from dra.gpu.devices import gpu_attributes, gpu_capacity, slice_attributes, slice_capacity
from dra.gpu.geometry import Profile
from dra.gpu.inventory import Gpu, Inventory

SHARE_OF = "share of "
"""Beginning of the name of the offer of a share of a slice."""


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Offer of a kind: a profile, or the whole GPU (``profile`` None).

    ``size`` is the profile's rank. ``shared``: several claims may have the slice or whole GPU.
    """

    profile: Profile | None
    size: int = 0
    shared: bool = False

    @property
    def name(self) -> str:
        """The profile's name, ``gpu``, ``share``, or ``share of`` a profile."""
        if self.profile is None:
            return "share" if self.shared else "gpu"
        return f"{SHARE_OF}{self.profile.name}" if self.shared else self.profile.name


@dataclass(frozen=True, slots=True, eq=False)
class GpuKind:
    """Compared by identity: there is one object per kind.

    ``devices`` are the offers' data, of an arbitrary GPU of the kind.
    """

    product_name: str
    offers: tuple[Offer, ...]
    devices: tuple[DeviceData, ...]


def look(gpu: Gpu, inventory: Inventory) -> Hashable:
    """Equal for GPUs that are of one kind."""
    return (
        gpu.geometry if gpu.mig_enabled else None,
        gpu.product_name,
        gpu.brand,
        gpu.architecture,
        gpu.cuda_compute_capability,
        gpu.memory_mib,
        gpu.multiprocessors,
        gpu.mig_enabled,
        gpu.sharing,
        gpu.slice_sharing,
        inventory.driver,
        inventory.driver_version,
        inventory.cuda_driver_version,
        bool(gpu.pci_bus_id),
        bool(gpu.pcie_root),
    )


def kind_of(gpu: Gpu, inventory: Inventory) -> GpuKind:
    """A new kind, of which ``gpu`` is."""
    offers = tuple(_offers(gpu))
    return GpuKind(gpu.product_name, offers, tuple(describe(o, gpu, inventory) for o in offers))


def identity_of(gpu: Gpu) -> GpuIdentity:
    """Identity of ``gpu`` among those of its kind."""
    return GpuIdentity(gpu.uuid, gpu.pci_bus_id, gpu.pcie_root, gpu.minor)


def describe(offer: Offer, gpu: Gpu, inventory: Inventory) -> DeviceData:
    """``offer`` of this very GPU as CEL data."""
    if offer.profile is None:
        return device_data(
            inventory.driver,
            gpu_attributes(gpu, inventory),
            gpu_capacity(gpu),
            shared=offer.shared,
        )
    sharing = gpu.slice_sharing if offer.shared else None
    return device_data(
        inventory.driver,
        slice_attributes(gpu, offer.profile, inventory, sharing=sharing),
        slice_capacity(offer.profile, sharing),
        shared=offer.shared,
    )


def _offers(gpu: Gpu) -> Iterable[Offer]:
    if not gpu.mig_enabled:
        return [Offer(None, shared=gpu.sharing is not None)]
    profiles = [p for p in gpu.geometry.profiles if p.placements] if gpu.geometry else []
    alone = [Offer(p, p.rank) for p in profiles]
    if gpu.slice_sharing is None:
        return alone
    return [*alone, *(Offer(p, p.rank, shared=True) for p in profiles)]
