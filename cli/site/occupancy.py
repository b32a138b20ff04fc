"""Occupancy of every GPU: instances as the nodes show them, and claims that wait for theirs.

Pure: MigNodes and ResourceClaims in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from api.errors import InvalidObjectError
from dra.claims.allocation import AllocatedDevice, Allocation
from dra.claims.claims import Claim, Consumer, read_claim
from dra.claims.sharing import UNSHARED, Sharing, settings_of, sharing_of
from dra.gpu.geometry import Occupant, Placement, Profile, Usage
from dra.gpu.holdings import Device, occupant_of, why_blocked
from dra.gpu.inventory import ClaimRef, Gpu, Instance, Inventory
from dra.gpu.names import DeviceNameError, GpuDevice, MigDevice, parse_device
from dra.gpu.shares import Ask, Share, SharesHeld, share_of, sum_of

ALLOCATED = "allocated"
"""State of a slot that is allocated and not on the node yet, beside those of InstanceState."""


READY = "ready"
"""State of a slice of a layout that no claim holds."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of a GPU that something holds; ``placement`` None is the whole GPU.

    With a profile it is a slice of a GPU whose placements are not known, as its MIG mode is off.

    ``users`` are the pods that may use the claim, in its namespace. ``share`` is what it
    has of a GPU or slice that several claims may have, ``sharing`` how its processes share the
    device. A slice that several claims have is a slot of each.
    """

    placement: Placement | None
    state: str
    profile: str = ""
    profile_id: int | None = None
    claim: ClaimRef | None = None
    users: tuple[Consumer, ...] = ()
    uuid: str = ""
    message: str = ""
    unhealthy: str = ""
    share: Share | None = None
    sharing: Sharing = UNSHARED

    @property
    def pods(self) -> tuple[str, ...]:
        """Names of the pods that may use the claim."""
        return tuple(user.name for user in self.users)

    @property
    def owner(self) -> str:
        """``namespace/pod``, ``namespace/claim`` while no pod may use it, or the state."""
        if self.claim is None:
            return self.state
        return f"{self.claim.namespace}/{self.pods[0] if self.pods else self.claim.name}"

    @property
    def where(self) -> str:
        """``3g.20gb at 4:4``, or ``the whole GPU``; ``a share of`` either."""
        if self.placement is None and self.profile:
            return self.profile
        if self.placement is None:
            return "the whole GPU" if self.share is None else "a share of the GPU"
        part = "" if self.share is None else "a share of "
        return f"{part}{self.profile or 'a slice'} at {self.placement}"


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU, what holds it, and in ``blocked`` why nothing of it is given out, if so."""

    inventory: Inventory
    gpu: Gpu
    slots: tuple[Slot, ...] = ()
    blocked: str = ""

    @property
    def usage(self) -> Usage:
        """Slices and engines that the slots take together."""
        if self.gpu.geometry is None:
            return Usage()
        return self.gpu.geometry.usage(
            {Occupant(s.placement, s.profile_id) for s in self.slots if s.placement is not None}
        )

    @property
    def ready(self) -> tuple[Slot, ...]:
        """Slices of the GPU's layout that are made and that no slot holds."""
        gpu = self.gpu
        if gpu.layout is None or gpu.geometry is None:
            return ()
        held = [s.placement for s in self.slots if s.placement is not None]
        shapes = {q: p for p in gpu.geometry.profiles for q in p.placements}
        return tuple(
            Slot(place, READY, profile.name, profile.id)
            for place in gpu.layout.ready
            if (profile := shapes.get(place)) and not any(place.overlaps(h) for h in held)
        )

    @property
    def shared(self) -> SharesHeld:
        """The shares that are held of a GPU that several claims may have whole."""
        whole = (slot for slot in self.slots if slot.placement is None)
        return sum_of(slot.share for slot in whole if slot.share is not None)

    @property
    def sliceable(self) -> bool:
        """True if slices can be made on it at all."""
        return self.gpu.mig_enabled and self.gpu.geometry is not None

    @property
    def open(self) -> bool:
        """True if a slice could be made now, if there is room."""
        return self.sliceable and not self.blocked and all(s.placement for s in self.slots)

    @property
    def largest(self) -> Profile | None:
        """The largest profile that could be placed now."""
        geometry = self.gpu.geometry
        return geometry.largest_placeable(self.usage) if geometry and self.open else None

    def room_for(self, profile: Profile) -> int:
        """Slices of a profile that could be made now, if no others were."""
        geometry, usage, count = self.gpu.geometry, self.usage, 0
        if geometry is None or not self.open:
            return 0
        for placement in profile.placements:
            if geometry.fits(usage, profile, placement):
                usage = geometry.add(usage, Occupant(placement, profile.id))
                count += 1
        return count

    @property
    def is_free_whole(self) -> bool:
        """True if MIG is off and no claim has the GPU or a share of it."""
        return not (self.sliceable or self.blocked or self.slots or self.gpu.sharing)

    @property
    def free_mib(self) -> int:
        """Memory of the free memory slices, whether or not anything can be placed there."""
        geometry = self.gpu.geometry
        if self.gpu.sharing is not None:
            return max(0, self.gpu.memory_mib - self.shared.memory_mib)
        if geometry is None or not geometry.memory_slices:
            return 0 if self.slots else self.gpu.memory_mib
        free = geometry.memory_slices - self.usage.mask.bit_count()
        return self.gpu.memory_mib * free // geometry.memory_slices


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node with MIG GPUs."""

    inventory: Inventory
    gpus: tuple[GpuView, ...]

    @property
    def name(self) -> str:
        """The node's name."""
        return self.inventory.node


@dataclass(frozen=True, slots=True)
class Site:
    """The nodes by name, and why some MigNodes could not be read."""

    nodes: tuple[NodeView, ...]
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def node(self, name: str) -> NodeView | None:
        """The node called ``name``."""
        return next((n for n in self.nodes if n.name == name), None)

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        """Occupancy of the GPUs of all nodes."""
        return tuple(g for n in self.nodes for g in n.gpus)

    def instances_of(self, claim_uid: str) -> list[tuple[GpuView, Slot]]:
        """Instances of a claim on the nodes, in whatever state."""
        return [
            (v, s)
            for v in self.gpus
            for s in v.slots
            if s.claim is not None and s.claim.uid == claim_uid and s.state != ALLOCATED
        ]


class _Held(NamedTuple):
    """A device that a claim was given."""

    claim: Claim
    device: Device
    ask: Ask
    sharing: Sharing


def survey(
    inventories: Iterable[Inventory],
    claims: Iterable[Mapping[str, Any]],
    *,
    driver: str,
    unreadable: Mapping[str, str] | None = None,
) -> Site:
    """Site that MigNodes and claims (as JSON) show together."""
    known = [read_claim(c) for c in claims]
    pods = {c.ref.uid: _pods(c) for c in known}
    held: dict[tuple[str, str], list[_Held]] = {}
    for claim in known:
        allocation = claim.allocation
        for allocated in allocation.of_driver(driver) if allocation else ():
            device = _device(allocated.device)
            if device is not None and allocation is not None and not allocated.admin_access:
                gpu = str(device) if isinstance(device, GpuDevice) else device.gpu
                sharing = _sharing(allocation, allocated, driver)
                found = _Held(claim, device, allocated.ask, sharing)
                held.setdefault((allocation.node, gpu), []).append(found)
    nodes = []
    for inventory in sorted(inventories, key=lambda i: i.node):
        views = [
            _view(g, inventory, held.get((inventory.node, g.name), []), pods)
            for g in sorted(inventory.gpus, key=lambda g: g.minor)
        ]
        nodes.append(NodeView(inventory, tuple(views)))
    return Site(tuple(nodes), dict(unreadable or {}))


def _view(
    gpu: Gpu,
    inventory: Inventory,
    held: list[_Held],
    pods: Mapping[str, tuple[Consumer, ...]],
) -> GpuView:
    made = [_instance(i, pods) for i in gpu.instances]
    found = {(s.claim.uid, s.placement.start) for s in made if s.claim and s.placement}
    slots = [s for s in made if s.claim is None]
    given: dict[tuple[str, int | None], tuple[Sharing, Share | None]] = {}
    for claim, device, ask, sharing in held:
        key = (claim.ref.uid, None if isinstance(device, GpuDevice) else device.start)
        share = _share(gpu, device, ask, claim.ref.namespace)
        given[key] = sharing, share
        if key not in found:
            slot = _allocated(claim, device, gpu, pods)
            slots.append(replace(slot, sharing=sharing, share=share))
    for slot in made:
        if slot.claim is not None:
            key = (slot.claim.uid, slot.placement.start if slot.placement else None)
            sharing, share = given.get(key, (UNSHARED, None))
            slots.append(replace(slot, sharing=sharing, share=share))
    slots.sort(key=lambda s: s.placement or Placement(0, 0))
    return GpuView(inventory, gpu, tuple(slots), why_blocked(gpu, inventory))


def _share(gpu: Gpu, device: Device, ask: Ask, namespace: str) -> Share | None:
    """Share of a GPU or slice that several claims may have; None of one that a claim has alone."""
    if isinstance(device, GpuDevice):
        return share_of(ask, gpu.sharing, gpu.memory_mib, namespace) if gpu.sharing else None
    profile = gpu.geometry.by_id(device.profile_id) if gpu.geometry else None
    if not device.shared or gpu.slice_sharing is None or profile is None:
        return None
    return share_of(ask, gpu.slice_sharing, profile.memory_mib, namespace)


def _sharing(allocation: Allocation, device: AllocatedDevice, driver: str) -> Sharing:
    """Sharing of a device by its allocation; none where that cannot be understood."""
    try:
        return sharing_of(settings_of(allocation.config, driver), device.request)
    except InvalidObjectError:
        return UNSHARED


def _instance(instance: Instance, pods: Mapping[str, tuple[Consumer, ...]]) -> Slot:
    return Slot(
        instance.placement,
        instance.state.value,
        instance.profile,
        instance.profile_id,
        instance.claim,
        pods.get(instance.claim.uid, ()) if instance.claim else (),
        instance.uuid,
        instance.message,
        instance.unhealthy,
    )


def _allocated(
    claim: Claim, device: Device, gpu: Gpu, pods: Mapping[str, tuple[Consumer, ...]]
) -> Slot:
    occupant = occupant_of(device, gpu.geometry)
    named = pods.get(claim.ref.uid, ())
    if not isinstance(device, MigDevice):
        return Slot(None, ALLOCATED, claim=claim.ref, users=named)
    if occupant is None:
        return Slot(None, ALLOCATED, device.profile_label, claim=claim.ref, users=named)
    profile = gpu.geometry.by_id(device.profile_id) if gpu.geometry else None
    return Slot(
        occupant.placement,
        ALLOCATED,
        profile.name if profile else device.profile_label,
        device.profile_id,
        claim.ref,
        named,
    )


def _pods(claim: Claim) -> tuple[Consumer, ...]:
    return tuple(c for c in claim.reserved_for if c.resource == "pods")


def _device(name: str) -> Device | None:
    try:
        return parse_device(name)
    except DeviceNameError:
        return None
