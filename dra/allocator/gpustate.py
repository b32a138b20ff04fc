"""A GPU as the controller accounts for it: its claims, and what they leave.

A slice either is shared or belongs to one claim alone, never both.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from dra.allocator.moves import Move, MoveTable, move_table
from dra.allocator.score import NO_WEIGHTS, Situation, Weights
from dra.cel.offers import GpuKind
from dra.claims.allocation import Allocation
from dra.gpu.geometry import EMPTY, Occupant, Placement, Profile, Usage
from dra.gpu.holdings import Device, Holding, holdings, occupant_of
from dra.gpu.inventory import ClaimRef, Gpu, IdleInstance, Instance, InstanceState, Inventory
from dra.gpu.names import DeviceNameError, GpuDevice, parse_device
from dra.gpu.shares import (
    NO_ASK,
    NONE_HELD,
    Ask,
    Share,
    SharesHeld,
    share_of,
    sum_of,
    why_full,
)
from dra.resourceslices.partitions import placements_in_order

HELD_BACK = "next:"
"""Beginning of the UIDs under which slices count that are held back for a pod: no claim has them.

kube-scheduler does not know that they are held back.
"""

_IN_USE = (InstanceState.PREPARING, InstanceState.PREPARED)


@dataclass(frozen=True, slots=True, order=True)
class SharedSlice:
    """A slice of which only shares are given. ``held``: the sum of the shares given."""

    placement: Placement
    profile_id: int
    held: SharesHeld


def devices_held(
    gpus: Sequence[Gpu], driver: str, holder: Holder
) -> Iterator[tuple[int, Device, Held]]:
    """Devices of ``gpus`` that a claim holds: index of the GPU, device, claim with its ask."""
    ref, allocation = holder
    indexes = {gpu.name: index for index, gpu in enumerate(gpus)}
    for allocated in allocation.of_driver(driver):
        if allocated.admin_access:
            continue
        try:
            device = parse_device(allocated.device)
        except DeviceNameError:
            continue  # nothing of ours is called so; the node refuses it too
        index = indexes.get(str(device) if isinstance(device, GpuDevice) else device.gpu)
        if index is not None:
            yield index, device, (ref, allocated.ask)


def _joinable(
    gpu: Gpu, shares: int, claims: Mapping[tuple[str, Device], Held]
) -> tuple[SharedSlice, ...]:
    """The shared slices of ``gpu`` that one more claim may join if they have room, sorted."""
    parts: dict[Occupant, dict[str, Share]] = {}
    for (uid, device), (ref, ask) in claims.items():
        occupant = occupant_of(device, gpu.geometry) if _is_part(device) else None
        profile = None
        if occupant is not None and occupant.profile_id is not None and gpu.geometry is not None:
            profile = gpu.geometry.by_id(occupant.profile_id)
        if occupant is not None and profile is not None:
            share = share_of(ask, shares, profile.memory_mib, ref.namespace)
            parts.setdefault(occupant, {})[uid] = share
    alone = [occupant_of(device, gpu.geometry) for _, device in claims if not _is_part(device)]
    masks = [None if o is None else o.placement.mask for o in (*alone, *parts)]
    return tuple(
        sorted(
            SharedSlice(o.placement, o.profile_id, sum_of(sharers.values()))
            for o, sharers in parts.items()
            if o.profile_id is not None
            and sum(m is None or bool(m & o.placement.mask) for m in masks) == 1
            and _is_sound(gpu.instances, o.placement, sharers)
        )
    )


def _is_part(device: Device) -> bool:
    return not isinstance(device, GpuDevice) and device.shared


def _is_sound(
    instances: Iterable[Instance], placement: Placement, sharers: Collection[str]
) -> bool:
    """True unless the instance at ``placement`` is about to go, is unhealthy or not the sharers'.

    A claim that has ended may be listed with the same instance as a sharer. That instance stays, so
    the ended claim is ignored.
    """
    here = [i for i in instances if i.placement.overlaps(placement)]
    own = [i for i in here if i.claim is not None and i.claim.uid in sharers]
    ended = [i for i in here if i not in own]
    if not own:
        return not ended
    return all(i.state in _IN_USE and not i.unhealthy for i in own) and all(
        i.claim is not None and i.placement == placement for i in ended
    )


class GpuId(NamedTuple):
    """A GPU of the cluster; ``minor`` is the number in its name."""

    node: str
    minor: int


Held = tuple[ClaimRef, Ask]
"""A claim, and what it states of its share of a device."""

Holder = tuple[ClaimRef, Allocation]
"""A claim and what it holds."""


class SharedDevice(NamedTuple):
    """A slice or whole GPU with shares: their sum, how many it may have, and its memory in MiB."""

    held: SharesHeld
    shares: int
    memory_mib: int

    def takes(self, share: Share) -> bool:
        """True if kube-scheduler, which knows no tenants, may put ``share`` of another one here.

        Where a claim states no memory, it has one part of the memory of whatever device it gets.
        """
        memory = min(share.memory_mib, self.memory_mib // self.shares)
        here = replace(share, tenant=self.held.tenant, memory_mib=memory)
        is_full = why_full(self.held, here, self.shares, self.memory_mib)
        return share.tenant != self.held.tenant and not is_full


_OTHER_TENANT = (
    "kube-scheduler would take a share of another namespace's device: a class with share.tenants "
    "any is needed on both sides"
)


@dataclass(slots=True, eq=False)
class GpuState:
    """One GPU of a node, the claims on it, and what they leave. Replaced by another, not changed.

    ``blocked``: reason why nothing can be placed, empty when something can. ``claims``: those that
    are allocated on it, by UID and device. The other fields follow from these. ``table``: None
    where no slices can be made. ``instances``: number of those that are there, or are to be.
    ``idle``: the idle slices that nothing held overlaps. ``shared``: sum of the shares of a GPU
    that several claims may have; None for others. ``whole_held``: the GPU is held whole, or all its
    shares are given. ``shared_slices``: the slices that more claims may join. ``room``: all that
    decides what the GPU could give. ``traits``: that, and what a
    policy sees of it. ``fingerprint``: short key for ``traits``, equal for GPUs in equal states;
    set by the fleet.

    ``passed``: where kube-scheduler allocates, the names of the profiles that earlier GPUs of the
    node give, so that none is taken of this one; None where the controller allocates. ``before``:
    shared devices of the node that kube-scheduler may take before one of this GPU.
    """

    gpu: Gpu
    inventory: Inventory
    kind: GpuKind
    blocked: str
    claims: Mapping[tuple[str, Device], Held] = field(default_factory=dict)
    passed: frozenset[str] | None = None
    before: tuple[SharedDevice, ...] = ()
    fingerprint: Hashable = field(init=False, default=None)
    table: MoveTable | None = field(init=False)
    holdings: tuple[Holding, ...] = field(init=False)
    usage: Usage = field(init=False, default=EMPTY)
    instances: int = field(init=False)
    idle: tuple[IdleInstance, ...] = field(init=False, default=())
    whole_held: bool = field(init=False)
    shared: SharesHeld | None = field(init=False, default=None)
    shared_slices: tuple[SharedSlice, ...] = field(init=False, default=())
    room: tuple[Hashable, ...] = field(init=False)
    traits: tuple[Hashable, ...] = field(init=False)

    def __post_init__(self) -> None:
        gpu, geometry = self.gpu, self.gpu.geometry
        self.table = move_table(geometry) if gpu.mig_enabled and geometry is not None else None
        self.holdings = tuple(holdings(gpu, {key: ref for key, (ref, _) in self.claims.items()}))
        occupants: Collection[Occupant | None] = [h.occupant for h in self.holdings]
        if not gpu.shares:
            self.whole_held = None in occupants
        else:
            known = {uid for uid, _ in self.claims}
            left = ((ref, NO_ASK) for ref in gpu.claims if ref.uid not in known)
            held = (*self._held(), *left)
            given = (share_of(a, gpu.shares, gpu.memory_mib, r.namespace) for r, a in held)
            self.shared = sum_of(given)
            self.whole_held = self.shared.count >= gpu.shares
        if gpu.slice_shares or any(_is_part(device) for _, device in self.claims):
            occupants = dict.fromkeys(occupants)  # claims that share a slice are one occupant
            if gpu.slice_shares:
                self.shared_slices = _joinable(gpu, gpu.slice_shares, self.claims)
        self.instances = len(occupants)
        if geometry is not None:
            self.usage = geometry.usage(o for o in occupants if o)
        if gpu.idle:
            free = (i for i in gpu.idle if not i.placement.mask & self.usage.mask)
            self.idle = tuple(sorted(free, key=lambda i: i.placement))
        whole = self.whole_held if self.shared is None else self.shared
        self.room = id(self.kind), self.blocked, self.usage, self.instances, whole
        if self.shared_slices:
            self.room = *self.room, self.shared_slices
        if self.passed is not None:
            self.room = *self.room, self.passed, self.before, self._usage_of_claims()
        self.traits = *self.room, self.situation(NO_WEIGHTS)

    def _held(self) -> Collection[Held]:
        """Claims with their asks, each claim once: none has two shares of a GPU."""
        return {uid: held for (uid, _), held in self.claims.items()}.values()

    @property
    def id(self) -> GpuId:
        """Identity of the GPU in the cluster."""
        return GpuId(self.inventory.node, self.gpu.minor)

    def with_claims(self, claims: Mapping[tuple[str, Device], Held]) -> GpuState:
        """The same GPU with other claims on it."""
        known = self.gpu, self.inventory, self.kind, self.blocked
        return GpuState(*known, claims, self.passed, self.before)

    def unprepared(self, gone: Collection[str]) -> GpuState:
        """The same GPU without the slices of claims with these UIDs; itself without any."""
        kept = tuple(i for i in self.gpu.instances if i.claim is None or i.claim.uid not in gone)
        if len(kept) == len(self.gpu.instances):
            return self
        return replace(self, gpu=replace(self.gpu, instances=kept))

    @property
    def takes_slices(self) -> bool:
        """True if slices can be made on it as far as there is room."""
        return self.table is not None and not self.blocked and not self.whole_held

    def moves(self) -> Mapping[int, tuple[Move, ...]]:
        """By profile id, the ways to make a slice now; without profiles of which none can be made.

        Where kube-scheduler allocates that is one at the most, as it takes the first that is free.
        """
        table = self.table
        if table is None or not self.takes_slices:
            return {}
        if self.passed is not None:
            return _next_moves(table, self._usage_of_claims(), self.usage, self.passed)
        found = {p.id: table.moves(self.usage, p) for p in table.geometry.profiles}
        return {profile: moves for profile, moves in found.items() if moves}

    def shared_devices(self) -> Iterator[SharedDevice]:
        """The slices of the GPU that claims share, or the GPU itself."""
        geometry, of_gpu, of_slices = self.gpu.geometry, self.gpu.shares, self.gpu.slice_shares
        if of_gpu and self.shared is not None and self.shared.count:
            yield SharedDevice(self.shared, of_gpu, self.gpu.memory_mib)
        for part in self.shared_slices:
            profile = geometry.by_id(part.profile_id) if geometry is not None else None
            if profile is not None and of_slices:
                yield SharedDevice(part.held, of_slices, profile.memory_mib)

    def gives_first(self) -> AbstractSet[str]:
        """Names of the profiles of which kube-scheduler takes the first free one from this GPU."""
        if self.table is None or not self.takes_slices:
            return frozenset()
        return _free_profiles(self.table, self._usage_of_claims())

    def _usage_of_claims(self) -> Usage:
        """The usage without what is held back."""
        held = [h for h in self.holdings if h.claim_uid.startswith(HELD_BACK)]
        if not held or self.gpu.geometry is None:
            return self.usage
        others = dict.fromkeys(h.occupant for h in self.holdings if h not in held)
        return self.gpu.geometry.usage(o for o in others if o)

    def situation(self, weights: Weights) -> Situation:
        """The GPU as a placement policy sees it; only for a GPU on which slices can be made."""
        return Situation(self.usage, self.instances, weights, self.idle)

    def share(self, ask: Ask, namespace: str, profile: Profile | None = None) -> Share | None:
        """The share that a claim would have of the GPU, or of a slice of ``profile``.

        None where these are not shared: one claim has all of it.
        """
        shares, memory = self._shared_as(profile)
        return share_of(ask, shares, memory, namespace) if shares else None

    def why_full(
        self, share: Share, profile: Profile | None = None, held: SharesHeld = NONE_HELD
    ) -> str:
        """Reason why the GPU, or a slice of ``profile``, has no room for ``share``; or empty.

        ``held``: sum of the shares of it that are given already.
        """
        shares, memory = self._shared_as(profile)
        if not shares:
            return "it is not shared" if profile is None else "its slices are not shared"
        if any(device.takes(share) for device in self.before):
            return _OTHER_TENANT
        return why_full(held, share, shares, memory)

    def gives(self, profile: Profile | None, ask: Ask, namespace: str) -> bool:
        """True if a claim of ``namespace`` could have a share of a slice of ``profile`` now.

        Without a profile: the whole GPU, or a share of it.
        """
        share = self.share(ask, namespace, profile)
        if profile is None:
            if share is None:
                return not self.holdings
            return not self.why_full(share, held=self.shared or NONE_HELD)
        if share is None or self.table is None:
            return False
        there = (s.held for s in self.shared_slices if s.profile_id == profile.id)
        if any(not self.why_full(share, profile, held) for held in there):
            return True
        is_room = bool(self.table.moves(self.usage, profile))
        return is_room and not self.why_full(share, profile)

    def _shared_as(self, profile: Profile | None) -> tuple[int, int]:
        """Offer of shares of the GPU, or of slices of ``profile``; and the MiB of one of these."""
        if profile is None:
            return self.gpu.shares, self.gpu.memory_mib
        return self.gpu.slice_shares, profile.memory_mib


@lru_cache(maxsize=2**14)
def _next_moves(
    table: MoveTable, seen: Usage, usage: Usage, passed: frozenset[str]
) -> Mapping[int, tuple[Move, ...]]:
    """By profile id, the move that kube-scheduler would make next, if what is held back allows it.

    ``seen``: the usage as kube-scheduler sees it. ``usage``: with what is held back.
    """
    found: dict[int, tuple[Move, ...]] = {}
    for profile in table.geometry.profiles:
        free = {move.placement for move in table.moves(seen, profile)}
        order = placements_in_order(table.geometry, profile) if free else ()
        first = next((place for place in order if place in free), None)
        moves = tuple(m for m in table.moves(usage, profile) if m.placement == first)
        if moves and profile.name not in passed:
            found[profile.id] = moves
    return found


@lru_cache(maxsize=2**13)
def _free_profiles(table: MoveTable, usage: Usage) -> frozenset[str]:
    profiles = table.geometry.profiles
    return frozenset(p.name for p, n in zip(profiles, table.feasible(usage), strict=True) if n)
