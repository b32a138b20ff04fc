"""Partitions of a node that kube-scheduler may allocate, in the order in which it should try.

kube-scheduler takes the first device of a list that fits and scores none, so that the order of the
list is the whole placement policy. It is the static form of the charges of ``dra.allocator.score``:
a placement costs the placements that it makes impossible, each by its memory slices. The order
cannot depend on what the cluster is short of, nor on the state of the GPU.

A claim's allocation accounts for what its device takes. An instance that no allocation accounts
for, such as one that somebody else made, is ``blocked``: its counters are taken off the GPU's, and
devices that do not fit beside it are left out. Taking its counters off alone would not do: where a
counter falls below zero, because a device in the instance's place is allocated already,
kube-scheduler allocates nothing of the whole pool any more (1.36, checkAvailableCounters).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from dra.gpu.devices import full_gpu_device, slice_device
from dra.gpu.geometry import EMPTY, Geometry, Occupant, Placement, Profile, Usage
from dra.gpu.inventory import Gpu, GpuReason, InstanceState, Inventory


def size(profile: Profile) -> tuple[int, int, int]:
    """Rank of a profile by size: of several that would do, the least is to be taken.

    Of profiles of one size the one with fewer engines ranks lower.
    """
    return (profile.rank, sum(profile.engines), profile.id)


@lru_cache(maxsize=64)
def placements_in_order(geometry: Geometry, profile: Profile) -> tuple[Placement, ...]:
    """The placements of ``profile`` in the order in which to take them, one beside the others.

    Next comes the one that makes the fewest memory slices' worth of placements impossible; of
    equals the one with the highest start, because larger profiles start low.
    """
    ordered: list[Placement] = []
    left = set(profile.placements)
    usage = EMPTY
    while left:
        fitting = [p for p in left if geometry.fits(usage, profile, p)]
        if not fitting:
            # Engines suffice for one instance, or placements overlap: begin on an empty GPU.
            usage = EMPTY
            fitting = [*left]
        feasible = _value(geometry, usage)
        taken = {p: geometry.add(usage, Occupant(p, profile.id)) for p in fitting}
        best = min(fitting, key=lambda p: (feasible - _value(geometry, taken[p]), -p.start))
        ordered.append(best)
        left.remove(best)
        usage = taken[best]
    return tuple(ordered)


def _value(geometry: Geometry, usage: Usage) -> int:
    """Memory slices of all placements still possible: every placement of every profile counts."""
    return sum(
        placement.size
        for profile in geometry.profiles
        for placement in geometry.free_placements(usage, profile)
    )


Blocked = Mapping[str, tuple[Occupant, ...]]
"""By GPU UUID, the occupants that no claim's allocation accounts for."""


@dataclass(frozen=True, slots=True)
class Doubts:
    """GPUs, by UUID, on which making a slice may fail.

    ``left_out``: GPUs of which no slice is to be allocated now. ``made_first``: GPUs of which a
    slice has to be made before a pod is bound to it.
    """

    left_out: frozenset[str] = frozenset()
    made_first: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Partition:
    """A device to publish: a placement, or a whole GPU (``profile`` and ``placement`` None).

    ``trouble``: why it is not to be allocated now, in a word; empty when it may be. ``made_first``:
    the slice has to be made before a pod is bound to it. ``shared``: several claims may have the
    slice.
    """

    gpu: Gpu
    profile: Profile | None = None
    placement: Placement | None = None
    trouble: str = ""
    made_first: bool = False
    shared: bool = False

    @property
    def name(self) -> str:
        """The device name."""
        if self.profile is None or self.placement is None:
            return self.gpu.name
        return str(slice_device(self.gpu, self.profile, self.placement, shared=self.shared))


@dataclass(frozen=True, slots=True)
class Offered:
    """All that a node offers; equal values are published alike.

    ``sliced`` are the GPUs in MIG mode, by number. Inventory and GPUs lack the fields that change
    from pod to pod.
    """

    inventory: Inventory
    sliced: tuple[Gpu, ...]
    partitions: tuple[Partition, ...]
    blocked: Blocked = field(hash=False)


def offered(
    inventory: Inventory,
    blocked: Blocked,
    *,
    taints: bool,
    shares: bool = True,
    doubts: Doubts | None = None,
) -> Offered:
    """Offer of the node: the smallest profile first, then GPU by GPU, then least damage first.

    So the smallest of several profiles that would do is taken, and a GPU is filled before the next
    is begun. With ``taints`` a device that is in trouble is offered too, to be published with a
    taint. Without, the devices of a GPU that is out of service and slices of GPUs in
    ``doubts.left_out`` are not offered; a claim's slice that is lost or unhealthy stays. With
    ``shares``, the shares of slices come after the slices.
    """
    gpus = sorted(inventory.gpus, key=lambda g: g.minor)
    doubts = doubts or Doubts()
    slices = [*_slices(gpus, inventory, blocked, doubts)]
    parts = [*_shares(slices)] if shares else []
    found = [*slices, *parts, *_whole(gpus, inventory)]
    kept = (p for p in found if taints or not _is_left_out(p, inventory, doubts))
    bare = {g.uuid: _bare(g) for g in gpus}
    return Offered(
        inventory=replace(
            inventory, gpus=(), ready=True, message="", publication=None, drain=None, mode=None
        ),
        sliced=tuple(bare[g.uuid] for g in gpus if g.mig_enabled and g.geometry is not None),
        partitions=tuple(replace(p, gpu=bare[p.gpu.uuid]) for p in kept),
        blocked={uuid: occupants for uuid, occupants in blocked.items() if occupants},
    )


def _bare(gpu: Gpu) -> Gpu:
    return replace(gpu, instances=(), unavailable="", reason="", layout=None)


def _slices(
    gpus: Iterable[Gpu], inventory: Inventory, blocked: Blocked, doubts: Doubts
) -> Iterator[Partition]:
    orders: dict[Geometry, dict[int, tuple[Placement, ...]]] = {}
    usages: dict[str, Usage] = {}
    pairs: list[tuple[Geometry, Gpu, Profile]] = []
    for gpu in gpus:
        geometry = gpu.geometry
        if geometry is None or not gpu.mig_enabled:
            continue
        if geometry not in orders:
            orders[geometry] = {p.id: placements_in_order(geometry, p) for p in geometry.profiles}
        usages[gpu.uuid] = geometry.usage(blocked.get(gpu.uuid, ()))
        pairs.extend((geometry, gpu, profile) for profile in geometry.profiles)
    for geometry, gpu, profile in sorted(pairs, key=lambda p: (size(p[2]), p[1].minor)):
        for placement in orders[geometry][profile.id]:
            if geometry.fits(usages[gpu.uuid], profile, placement):
                trouble = _out_of_service(gpu, inventory) or _trouble(gpu, profile, placement)
                if not trouble and gpu.uuid in doubts.left_out:
                    trouble = GpuReason.CREATION_FAILED
                first = gpu.uuid in doubts.made_first
                yield Partition(gpu, profile, placement, trouble, made_first=first)


def _shares(slices: Iterable[Partition]) -> Iterator[Partition]:
    """Shares of ``slices``, where their GPUs offer some; pods are bound before slices are made."""
    for each in slices:
        if each.gpu.slice_shares:
            yield replace(each, shared=True, made_first=False)


def _whole(gpus: Iterable[Gpu], inventory: Inventory) -> Iterator[Partition]:
    for gpu in gpus:
        if full_gpu_device(gpu) is not None:
            yield Partition(gpu, trouble=_out_of_service(gpu, inventory))


def _trouble(gpu: Gpu, profile: Profile, placement: Placement) -> str:
    """Problem of the slice that a claim holds at ``placement``, in a word; empty without one."""
    for instance in gpu.instances:
        here = (instance.profile_id, instance.placement) == (profile.id, placement)
        if here and instance.claim is not None:
            if instance.state is InstanceState.LOST:
                return GpuReason.SLICE_LOST
            if instance.unhealthy:
                return GpuReason.XID_ERROR
    return ""


def _is_left_out(partition: Partition, inventory: Inventory, doubts: Doubts) -> bool:
    gpu = partition.gpu
    doubtful = partition.profile is not None and gpu.uuid in doubts.left_out
    return doubtful or bool(_out_of_service(gpu, inventory))


def _out_of_service(gpu: Gpu, inventory: Inventory) -> str:
    """Reason why nothing of a GPU is to be allocated; "" if there is none."""
    if not inventory.ready:
        return GpuReason.NOT_READY
    if inventory.is_drained(gpu.name):
        return GpuReason.DRAINED
    return gpu.reason or GpuReason.UNAVAILABLE if gpu.unavailable else ""
