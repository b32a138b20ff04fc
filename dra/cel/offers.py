"""Offers of a kind of GPU: the devices that every GPU of the kind has."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from dra.cel.data import DeviceData, device_data
from dra.cel.questions import GpuIdentity, Job, shortened
from dra.cel.strangers import described, made_up, own_part
from dra.gpu.devices import gpu_attributes, gpu_capacity, slice_attributes, slice_capacity
from dra.gpu.geometry import Profile
from dra.gpu.inventory import Gpu, Inventory
from dra.gpu.names import nominal_gigabytes

SHARE_OF = "share of "
"""Beginning of the name of the offer of a share of a slice."""

_MAY_DIFFER = {
    *("minor", "uuid", "pci_bus_id", "pcie_root"),  # the identity: ``dra.cel.data.of_gpu``
    "geometry",  # only GPUs in MIG mode offer its profiles
    *("mig_pending", "claims", "instances", "idle", "layout", "unavailable", "reason", "health"),
}
"""Fields of a GPU that GPUs of one kind may differ in: selectors see none but the identity."""

_MAY_DIFFER_OF_NODE = {
    *("node", "pool", "gpus", "allocator", "cdi_hook", "ready", "message", "publication", "drain"),
    *("takeover", "progress"),
    *("resumed", "failed_claims", "mode", "capabilities"),
}
"""Fields of an Inventory that the nodes of such GPUs may differ in: selectors see none of them."""

_of_gpu = attrgetter(*(f.name for f in fields(Gpu) if f.name not in _MAY_DIFFER))
_of_node = attrgetter(*(f.name for f in fields(Inventory) if f.name not in _MAY_DIFFER_OF_NODE))


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Offer of a kind: a profile, or the whole GPU (``profile`` None).

    ``size`` is the profile's rank. ``shared``: several claims may have the slice or whole GPU.
    ``gigabytes`` are its memory, as names of profiles count it; 0 of a share.
    """

    profile: Profile | None
    size: int = 0
    shared: bool = False
    gigabytes: int = 0

    @property
    def name(self) -> str:
        """The profile's name, ``gpu``, ``share``, or ``share of`` a profile."""
        if self.profile is None:
            return "share" if self.shared else "gpu"
        return f"{SHARE_OF}{self.profile.name}" if self.shared else self.profile.name


@dataclass(frozen=True, slots=True, eq=False)
class GpuKind:
    """A kind of GPU. Compared by identity: there is one object per kind.

    ``devices``: for each of ``offers``, in this order, the device as CEL selectors see it, read
    from any one GPU of the kind.
    """

    product_name: str
    offers: tuple[Offer, ...]
    devices: tuple[DeviceData, ...]


def look(gpu: Gpu, inventory: Inventory) -> Hashable:
    """A value that is equal for all GPUs of one kind.

    It has every field of Gpu and Inventory but those in ``_MAY_DIFFER`` and
    ``_MAY_DIFFER_OF_NODE``: a field that is added later tells kinds apart.
    """
    geometry = gpu.geometry if gpu.mig_enabled else None
    has_identity = bool(gpu.pci_bus_id), bool(gpu.pcie_root)  # an empty text is no attribute
    return geometry, has_identity, _of_gpu(gpu), _of_node(inventory)


def kind_of(gpu: Gpu, inventory: Inventory) -> GpuKind:
    """A new kind, made from ``gpu``."""
    offers = tuple(_offers(gpu))
    return GpuKind(gpu.product_name, offers, tuple(describe(o, gpu, inventory) for o in offers))


def identity_of(gpu: Gpu) -> GpuIdentity:
    """Identity of ``gpu`` among those of its kind."""
    return GpuIdentity(gpu.uuid, gpu.pci_bus_id, gpu.pcie_root, gpu.minor)


def describe(offer: Offer, gpu: Gpu, inventory: Inventory) -> DeviceData:
    """``offer`` of this very GPU as CEL data."""
    shares = gpu.slice_shares if offer.shared else 0
    capacity = slice_capacity(offer.profile, shares) if offer.profile else gpu_capacity(gpu)
    attributes = attributes_of(offer, gpu, inventory)
    return device_data(inventory.driver, attributes, capacity, shared=offer.shared)


def attributes_of(offer: Offer, gpu: Gpu, inventory: Inventory) -> dict[str, Any]:
    """Attributes of ``offer`` of this very GPU, as ``dra.gpu.devices`` has them."""
    if offer.profile is None:
        return gpu_attributes(gpu, inventory)
    shares = gpu.slice_shares if offer.shared else 0
    return slice_attributes(gpu, offer.profile, inventory, shares=shares)


def _offers(gpu: Gpu) -> Iterable[Offer]:
    if not gpu.mig_enabled:
        if gpu.shares:
            return [Offer(None, shared=True)]
        return [Offer(None, gigabytes=-(-gpu.memory_mib // 1024))]
    profiles = [p for p in gpu.geometry.profiles if p.placements] if gpu.geometry else []
    alone = [Offer(p, p.rank, gigabytes=nominal_gigabytes(p.name)) for p in profiles]
    if not gpu.slice_shares:
        return alone
    return [*alone, *(Offer(p, p.rank, shared=True) for p in profiles)]


Expressions = tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Question to be answered before a decision can be made: a job for the evaluator.

    It is about one of these:

    - one expression alone: does it compile?
    - ``kind``, or ``gpus`` of that kind: which of their devices are selected?
    - ``driver``: which made-up devices of other drivers than this are selected?
    - ``others``: which existing devices of other drivers are selected?
      They are described as in ``dra.claims.otherdevices``.

    ``key`` is equal for equal questions.
    """

    expressions: Expressions
    kind: GpuKind | None = None
    gpus: tuple[GpuIdentity, ...] = ()
    driver: str = ""
    others: tuple[str, ...] = ()

    @property
    def key(self) -> Hashable:
        """Identity of the question among others."""
        return self.expressions, self.kind, self.gpus, self.driver, self.others

    @property
    def job(self) -> Job:
        """The question as a job for an evaluator."""
        if self.driver:
            # Joined by &&: for CEL a part that is false outweighs another that fails.
            own = own_part(self.expressions, self.driver)
            together = " && ".join(f"({e}\n)" for e in own)
            return Job((together,), made_up(self.expressions, self.driver))
        if self.others:
            return Job(self.expressions, tuple(map(described, self.others)))
        return Job(self.expressions, self.kind.devices if self.kind else (), self.gpus)


class UnansweredError(Exception):
    """Questions have to be evaluated first; nothing was decided."""

    def __init__(self, question: Question) -> None:
        super().__init__(f"not evaluated yet: {', '.join(map(shortened, question.expressions))}")
        self.question = question
