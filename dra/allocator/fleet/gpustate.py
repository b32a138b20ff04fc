"""A GPU as the controller accounts for it: who holds what, and what that leaves."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from dra.allocator.scoring.geometry_index import GeometryIndex, GpuId
from dra.cel.kinds import GpuKind
from dra.gpu.geometry import EMPTY, Usage
from dra.gpu.holdings import Device, Holding, holdings
from dra.gpu.inventory import ClaimRef, Gpu, Inventory


@dataclass(slots=True, eq=False)
class GpuState:
    """One GPU of a node; ``geometry_index`` is None where no slices can be made.

    ``blocked`` says why nothing can be placed, empty when something can. ``fingerprint`` is equal
    for GPUs that are in equal states: what one could give, so could the other.
    """

    gpu: Gpu
    inventory: Inventory
    kind: GpuKind
    geometry_index: GeometryIndex | None
    blocked: str
    claims: dict[tuple[str, Device], ClaimRef] = field(default_factory=dict)
    holdings: tuple[Holding, ...] = ()
    usage: Usage = EMPTY
    whole_held: bool = False
    fingerprint: Hashable = None

    @property
    def traits(self) -> tuple[Hashable, ...]:
        """All that decides what it could give; ``fingerprint`` stands for it in short."""
        return id(self.kind), self.blocked, self.usage, self.instances, self.whole_held

    @property
    def id(self) -> GpuId:
        """Its identity in the cluster."""
        return GpuId(self.inventory.node, self.gpu.minor)

    @property
    def instances(self) -> int:
        """Number of instances that are there, or are to be."""
        return len(self.holdings)

    def recount(self) -> None:
        """Work out holdings and usage from the instances and the claims."""
        geometry = self.gpu.geometry
        self.holdings = tuple(holdings(self.gpu, self.claims))
        self.whole_held = any(h.occupant is None for h in self.holdings)
        if geometry is not None:
            self.usage = geometry.usage(h.occupant for h in self.holdings if h.occupant)

    @property
    def counted(self) -> bool:
        """True if it is in its geometry's index."""
        return self.geometry_index is not None and not self.blocked and not self.whole_held
