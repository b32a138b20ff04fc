"""A GPU as the controller accounts for it: who holds what, and what that leaves."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from dra.allocator.fleet.shared_slices import SharedSlice, joinable
from dra.allocator.scoring.geometry_index import GeometryIndex, GpuId
from dra.allocator.scoring.score import Situation, Weights
from dra.cel.offers import GpuKind
from dra.gpu.geometry import EMPTY, Profile, Usage
from dra.gpu.holdings import Device, Holding, holdings
from dra.gpu.inventory import ClaimRef, Gpu, IdleInstance, Inventory
from dra.gpu.names import MigDevice
from dra.gpu.shares import NONE_HELD, Ask, Share, SharesHeld, share_of, sum_of, why_full


@dataclass(slots=True, eq=False)
class GpuState:
    """One GPU of a node; ``geometry_index`` is None where no slices can be made.

    ``blocked`` says why nothing can be placed, empty when something can. ``fingerprint`` is equal
    for GPUs that are in equal states: what one could give, so could the other. ``shares`` are those
    of the claims of a GPU that several may have, by UID; it is ``whole_held`` once all are given.
    ``slice_shares`` are those of slices, by UID and device, ``shared_slices`` the slices that more
    claims may join. ``instances`` is the number of those that are there, or are to be. ``idle`` are
    the idle slices that nothing held lies on.
    """

    gpu: Gpu
    inventory: Inventory
    kind: GpuKind
    geometry_index: GeometryIndex | None
    blocked: str
    claims: dict[tuple[str, Device], ClaimRef] = field(default_factory=dict)
    holdings: tuple[Holding, ...] = ()
    usage: Usage = EMPTY
    instances: int = 0
    idle: tuple[IdleInstance, ...] = ()
    whole_held: bool = False
    shares: dict[str, Share] = field(default_factory=dict)
    shared: SharesHeld | None = None
    slice_shares: dict[tuple[str, MigDevice], Share] = field(default_factory=dict)
    shared_slices: tuple[SharedSlice, ...] = ()
    fingerprint: Hashable = None

    @property
    def traits(self) -> tuple[Hashable, ...]:
        """All that decides what it gives; ``fingerprint`` stands for it in short."""
        return *self.room, self.idle

    @property
    def room(self) -> tuple[Hashable, ...]:
        """All that decides what it could give."""
        whole = self.whole_held if self.shared is None else self.shared
        found = id(self.kind), self.blocked, self.usage, self.instances, whole
        return (*found, self.shared_slices) if self.shared_slices else found

    @property
    def id(self) -> GpuId:
        """Identity of the GPU in the cluster."""
        return GpuId(self.inventory.node, self.gpu.minor)

    def recount(self) -> None:
        """Work out holdings and usage from the instances and the claims."""
        geometry = self.gpu.geometry
        self.holdings = tuple(holdings(self.gpu, self.claims))
        self.instances = len(self.holdings)
        if self.gpu.sharing is None:
            self.whole_held = any(h.occupant is None for h in self.holdings)
        else:
            self.shared = sum_of(self.shares.values())
            self.whole_held = self.shared.count >= self.gpu.sharing.shares
        if self.slice_shares or self.gpu.slice_sharing is not None:
            self._recount_shared_slices()
        elif geometry is not None:
            self.usage = geometry.usage(h.occupant for h in self.holdings if h.occupant)
        self.idle = tuple(
            sorted(
                (i for i in self.gpu.idle if not i.placement.mask & self.usage.mask),
                key=lambda i: i.placement,
            )
        )

    def situation(self, weights: Weights) -> Situation:
        """It as a policy sees it; slices can be made on it."""
        return Situation(self.usage, self.instances, weights, self.idle)

    def _recount_shared_slices(self) -> None:
        """Count a slice once that several claims have, and find those that more may join."""
        occupants = dict.fromkeys(h.occupant for h in self.holdings)
        self.instances = len(occupants)
        if self.gpu.geometry is not None:
            self.usage = self.gpu.geometry.usage(o for o in occupants if o)
        offered = self.gpu.slice_sharing is not None
        self.shared_slices = joinable(self.gpu, self.claims, self.slice_shares) if offered else ()

    def share(self, ask: Ask, namespace: str, profile: Profile | None = None) -> Share | None:
        """The share that a claim would have of the GPU, or of a slice of ``profile``.

        None where one claim has all of it.
        """
        sharing = self.gpu.sharing if profile is None else self.gpu.slice_sharing
        if sharing is None:
            return None
        memory = self.gpu.memory_mib if profile is None else profile.memory_mib
        return share_of(ask, sharing, memory, namespace)

    def why_full(self, share: Share, *, beside: SharesHeld | None = None) -> str:
        """Reason why there is no room for ``share``; empty if there is.

        ``beside`` are the shares to suppose, if not those that are held.
        """
        if self.gpu.sharing is None:
            return "it is not shared"
        held = beside or self.shared or NONE_HELD
        return why_full(held, share, self.gpu.sharing, self.gpu.memory_mib)

    def why_slice_full(self, share: Share, profile: Profile, held: SharesHeld = NONE_HELD) -> str:
        """Reason why a slice of which ``held`` is given has no room for ``share``, or empty."""
        if self.gpu.slice_sharing is None:
            return "its slices are not shared"
        return why_full(held, share, self.gpu.slice_sharing, profile.memory_mib)

    def gives_share(self, profile: Profile, ask: Ask, namespace: str) -> bool:
        """True if a claim of ``namespace`` could have a share of a slice of ``profile`` now."""
        share = self.share(ask, namespace, profile)
        if share is None or self.geometry_index is None:
            return False
        if any(
            s.profile_id == profile.id and not self.why_slice_full(share, profile, s.held)
            for s in self.shared_slices
        ):
            return True
        moves = self.geometry_index.table.moves(self.usage, profile)
        return bool(moves) and not self.why_slice_full(share, profile)

    def gives_whole(self, ask: Ask, namespace: str) -> bool:
        """True if a claim of ``namespace`` could have the GPU now, or a share of it."""
        share = self.share(ask, namespace)
        return not self.holdings if share is None else not self.why_full(share)

    @property
    def counted(self) -> bool:
        """True if it is in its geometry's index."""
        return self.geometry_index is not None and not self.blocked and not self.whole_held
