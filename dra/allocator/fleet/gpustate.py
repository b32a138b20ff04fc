"""A GPU as the controller accounts for it: who holds what, and what that leaves."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from dra.allocator.scoring.geometry_index import GeometryIndex, GpuId
from dra.cel.kinds.offers import GpuKind
from dra.gpu.geometry import EMPTY, Usage
from dra.gpu.holdings import Device, Holding, holdings
from dra.gpu.inventory import ClaimRef, Gpu, IdleInstance, Inventory
from dra.gpu.shares import NONE_HELD, Ask, Share, SharesHeld, share_of, sum_of, why_full


@dataclass(slots=True, eq=False)
class GpuState:
    """One GPU of a node; ``geometry_index`` is None where no slices can be made.

    ``blocked`` says why nothing can be placed, empty when something can. ``fingerprint`` is equal
    for GPUs that are in equal states: what one could give, so could the other. ``shares`` are those
    of the claims of a GPU that several may have, by UID; it is ``whole_held`` once all are given.
    ``idle`` are the idle slices that nothing held lies on.
    """

    gpu: Gpu
    inventory: Inventory
    kind: GpuKind
    geometry_index: GeometryIndex | None
    blocked: str
    claims: dict[tuple[str, Device], ClaimRef] = field(default_factory=dict)
    holdings: tuple[Holding, ...] = ()
    usage: Usage = EMPTY
    idle: tuple[IdleInstance, ...] = ()
    whole_held: bool = False
    shares: dict[str, Share] = field(default_factory=dict)
    shared: SharesHeld | None = None
    fingerprint: Hashable = None

    @property
    def traits(self) -> tuple[Hashable, ...]:
        """All that decides what it gives; ``fingerprint`` stands for it in short."""
        return *self.room, self.idle

    @property
    def room(self) -> tuple[Hashable, ...]:
        """All that decides what it could give."""
        whole = self.whole_held if self.shared is None else self.shared
        return id(self.kind), self.blocked, self.usage, self.instances, whole

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
        if self.gpu.sharing is None:
            self.whole_held = any(h.occupant is None for h in self.holdings)
        else:
            self.shared = sum_of(self.shares.values())
            self.whole_held = self.shared.count >= self.gpu.sharing.shares
        if geometry is not None:
            self.usage = geometry.usage(h.occupant for h in self.holdings if h.occupant)
        self.idle = tuple(
            sorted(
                (i for i in self.gpu.idle if not i.placement.mask & self.usage.mask),
                key=lambda i: i.placement,
            )
        )

    def share(self, ask: Ask, namespace: str) -> Share | None:
        """The share that a claim would have; None of a GPU that is had whole or in slices."""
        if self.gpu.sharing is None:
            return None
        return share_of(ask, self.gpu.sharing, self.gpu.memory_mib, namespace)

    def why_full(self, share: Share, *, beside: SharesHeld | None = None) -> str:
        """Reason why there is no room for ``share``; empty if there is.

        ``beside`` are the shares to suppose, if not those that are held.
        """
        if self.gpu.sharing is None:
            return "it is not shared"
        held = beside or self.shared or NONE_HELD
        return why_full(held, share, self.gpu.sharing, self.gpu.memory_mib)

    def gives_whole(self, ask: Ask, namespace: str) -> bool:
        """True if a claim of ``namespace`` could have the GPU now, or a share of it."""
        share = self.share(ask, namespace)
        return not self.holdings if share is None else not self.why_full(share)

    @property
    def counted(self) -> bool:
        """True if it is in its geometry's index."""
        return self.geometry_index is not None and not self.blocked and not self.whole_held
