"""Knowledge about one GPU of the node at one moment, as a value that nobody changes."""

from __future__ import annotations

from dataclasses import dataclass

from dra.gpu.geometry import Geometry, Occupant
from dra.gpu.inventory import Gpu
from dra.gpu.shares import ShareOffer
from kubeletplugin.gpus.coexistence.other_managers import Conflict
from kubeletplugin.nvml.condition import trouble
from kubeletplugin.nvml.gpus import Card


@dataclass(frozen=True, slots=True)
class DeclaredLayout:
    """Wish of the node's mode for a GPU that is not cut for claims alone.

    ``slices`` are to stay on it, none for one that is to be whole. ``waits`` says why that is not
    so yet, or cannot be if it ``failed``; nothing new is given out meanwhile.
    """

    name: str
    slices: tuple[Occupant, ...] = ()
    waits: str = ""
    failed: bool = False


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """One GPU as it is known now; ``GpuUnit`` has the next value after every change.

    ``card`` is NVML's description, ``geometry`` what is offered of its profiles: without those that
    could not be delivered as advertised, None without MIG mode.
    ``layout`` is None where slices are made for claims.
    ``conflict``: no slice is given out here, because of another program or a pause.
    ``unhealthy``: the reason why no slice is made although the GPU answers; empty if one may be.
    ``released``: this program has nothing of the GPU open; says why and what ends that.
    ``away``: the GPU may have lost its instances since the last look: it was lost, or its driver or
    this program did not run. ``wiped``: keys of journal entries that were prepared on it when it
    was seen empty right after such a time.
    ``sharing``: several claims may have it whole, while it is not in MIG mode; ``slice_sharing``:
    several claims of shares may have one slice of it, while it is.
    ``open_in`` are programs that have it open, looked for while the driver calls it unusable.
    ``seen`` is what was published of it last.
    """

    number: int
    card: Card
    pcie_root: str = ""
    geometry: Geometry | None = None
    layout: DeclaredLayout | None = None
    conflict: Conflict | None = None
    unhealthy: str = ""
    released: str = ""
    away: bool = True
    wiped: frozenset[tuple[str, str]] = frozenset()
    open_in: tuple[str, ...] = ()
    seen: Gpu | None = None
    sharing: ShareOffer | None = None
    slice_sharing: ShareOffer | None = None

    @property
    def name(self) -> str:
        """``gpu-<number>``."""
        return f"gpu-{self.number}"

    @property
    def uuid(self) -> str:
        """The GPU's UUID."""
        return self.card.uuid

    def __str__(self) -> str:
        return f"{self.name} ({self.uuid})"

    @property
    def problem(self) -> tuple[str, str]:
        """Reason and words for which the driver has nothing new given out here; or both empty."""
        card = self.card
        if card.reason:
            return card.reason, card.problem
        return trouble(card.condition, mig=card.mig_enabled, uuid=self.uuid, name=self.name)

    @property
    def unwell(self) -> str:
        """Words for which nothing new is given out here for the GPU's own sake; empty if none."""
        return self.problem[1] or self.unhealthy
