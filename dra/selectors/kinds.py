"""Kinds of GPU: what can be had of one, before asking which.

Selectors are evaluated once per kind. GPUs of a kind differ only in ``celdata.IDENTITY``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from dra.devices import gpu_attributes, gpu_capacity, slice_attributes, slice_capacity
from dra.geometry import Geometry, Profile
from dra.inventory import Gpu, Inventory
from dra.selectors.cache import BoundedCache
from dra.selectors.cel import Selectors, Verdict
from dra.selectors.celdata import DeviceData, device_data


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """What a kind offers: a profile, or the whole GPU (``profile`` None).

    ``size`` ranks the profiles that would do: by memory (to the GiB, so that the same profile of
    two products ranks alike), then compute slices, then plain before variants (``+me``).
    """

    profile: Profile | None
    size: int = 0

    @property
    def name(self) -> str:
        """The profile's name, or ``gpu``."""
        return self.profile.name if self.profile else "gpu"


@dataclass(frozen=True, slots=True, eq=False)
class GpuKind:
    """Compared by identity: there is one object per kind.

    ``devices`` are the offers' data, of an arbitrary GPU of the kind.
    """

    product_name: str
    offers: tuple[Offer, ...]
    devices: tuple[DeviceData, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """The offers that a request's selectors select. ``error`` is a selector's run-time failure."""

    offers: tuple[Offer, ...]
    error: str = ""


class Kinds:
    """Tells kinds apart, and which of their offers selectors select. Not thread-safe."""

    def __init__(self, selectors: Selectors) -> None:
        self.selectors = selectors
        self._kinds: BoundedCache[tuple[object, ...], GpuKind] = BoundedCache(2048)
        self._matches: BoundedCache[tuple[object, ...], Match] = BoundedCache(20_000)

    def of(self, gpu: Gpu, inventory: Inventory) -> GpuKind:
        """The kind of ``gpu``."""
        geometry: Geometry | None = gpu.geometry if gpu.mig_enabled else None
        key = (
            geometry,
            gpu.product_name,
            gpu.brand,
            gpu.architecture,
            gpu.cuda_compute_capability,
            gpu.memory_mib,
            gpu.multiprocessors,
            gpu.mig_enabled,
            inventory.driver,
            inventory.driver_version,
            inventory.cuda_driver_version,
            bool(gpu.pci_bus_id),
            bool(gpu.pcie_root),
        )
        return self._kinds.get(key, lambda: _kind(gpu, inventory))

    def tells_gpus_apart(self, expressions: tuple[str, ...]) -> bool:
        """Whether one of them may select differently on GPUs of one kind."""
        return any(self.selectors.tells_gpus_apart(e) for e in expressions)

    def match(
        self, expressions: tuple[str, ...], kind: GpuKind, *, gpu: Gpu, inventory: Inventory
    ) -> Match:
        """What of ``gpu``, which is of ``kind``, all ``expressions`` select.

        Raises:
            SelectorError: an expression does not compile.
        """
        if self.tells_gpus_apart(expressions):
            devices = (describe(o, gpu, inventory) for o in kind.offers)
            return self._select(expressions, zip(kind.offers, devices, strict=True))
        return self.match_kind(expressions, kind)

    def match_kind(self, expressions: tuple[str, ...], kind: GpuKind) -> Match:
        """What of any GPU of ``kind`` all ``expressions``, which tell none apart, select.

        Raises:
            SelectorError: an expression does not compile.
        """
        return self._matches.get(
            (expressions, kind),
            lambda: self._select(expressions, zip(kind.offers, kind.devices, strict=True)),
        )

    def selected(self, expressions: tuple[str, ...]) -> Hashable:
        """Equal for expressions that select the same of every GPU.

        Raises:
            SelectorError: an expression does not compile.
        """
        if self.tells_gpus_apart(expressions):
            return expressions
        return tuple(self.match_kind(expressions, kind).offers for kind in self._kinds.values())

    def select(
        self, expressions: tuple[str, ...], offer: Offer, *, gpu: Gpu, inventory: Inventory
    ) -> Match:
        """Whether ``offer``, which the GPU need not make now, would be selected."""
        return self._select(expressions, [(offer, describe(offer, gpu, inventory))])

    def _select(
        self, expressions: tuple[str, ...], candidates: Iterable[tuple[Offer, DeviceData]]
    ) -> Match:
        selected: list[Offer] = []
        failure = ""
        for offer, device in candidates:
            verdict = Verdict(selected=True)
            for expression in expressions:
                verdict = self.selectors.evaluate(expression, device)
                if verdict.error:
                    failure = failure or f"{verdict.error} (in {_shortened(expression)})"
                if not verdict.selected:
                    break
            if verdict.selected:
                selected.append(offer)
        return Match(tuple(selected), failure)


def describe(offer: Offer, gpu: Gpu, inventory: Inventory) -> DeviceData:
    """``offer`` of this very GPU as CEL data."""
    if offer.profile is None:
        return device_data(inventory.driver, gpu_attributes(gpu, inventory), gpu_capacity(gpu))
    return device_data(
        inventory.driver,
        slice_attributes(gpu, offer.profile, inventory),
        slice_capacity(offer.profile),
    )


def _kind(gpu: Gpu, inventory: Inventory) -> GpuKind:
    offers = tuple(_offers(gpu))
    return GpuKind(gpu.product_name, offers, tuple(describe(o, gpu, inventory) for o in offers))


def _offers(gpu: Gpu) -> Iterable[Offer]:
    if not gpu.mig_enabled:
        return [Offer(None)]
    profiles = gpu.geometry.profiles if gpu.geometry else ()
    return [Offer(p, _size(p)) for p in profiles if p.placements]


def _size(profile: Profile) -> int:
    variant = "+" in profile.name or "-" in profile.name
    return (round(profile.memory_mib / 1024) * 100 + profile.compute_slices) * 2 + variant


def _shortened(expression: str) -> str:
    limit = 120
    return expression if len(expression) <= limit else expression[: limit - 3] + "..."
