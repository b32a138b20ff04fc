"""The cluster as the commands see it: the GPUs of every node, and who holds what of them.

It is made from MigNodes and ResourceClaims: instances as the nodes show them, and claims whose
instances are not made yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from api.errors import ApiError, InvalidObjectError
from cli.output import CliError, Exit, ago, natural
from dra.claims.allocation import AllocatedDevice, Allocation
from dra.claims.claims import Claim, Consumer
from dra.claims.remedies import remedy
from dra.claims.sharing import TIME_SLICING, UNSHARED, Sharing, settings_of, sharing_of
from dra.common.resources import Obj
from dra.gpu.geometry import Occupant, Placement, Profile, Usage
from dra.gpu.holdings import Device, occupant_of, why_blocked
from dra.gpu.inventory import ClaimRef, Gpu, Instance, Inventory
from dra.gpu.mignode import SILENT, from_mignode, heartbeat_of
from dra.gpu.names import DeviceNameError, GpuDevice, MigDevice, parse_device
from dra.gpu.shares import Ask, Share, SharesHeld, share_of, sum_of

ALLOCATED = "allocated"
"""State of a slot that is allocated and not on the node yet; others are of InstanceState."""

READY = "ready"
"""State of a slice of a layout that no claim holds."""

_NAMED = 4
"""Number of pods of a claim that are named where these share a device."""

_SINGULAR = {"pods": "pod"}


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of a GPU that something holds. A slice that several claims have is a slot of each.

    ``placement``: None for the whole GPU or, with a ``profile``, for a slice of a GPU whose
    placements are not known, as its MIG mode is off. ``users``: pods that may use the claim, in its
    namespace. ``share``: the claim's share of a GPU or slice that several claims may have.
    ``sharing``: how the claim's processes share the device.
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
        """Place in words: ``3g.20gb at 4:4``, ``the whole GPU``, ``a share of the GPU``."""
        if self.placement is None and self.profile:
            return self.profile
        if self.placement is None:
            return "the whole GPU" if self.share is None else "a share of the GPU"
        part = "" if self.share is None else "a share of "
        return f"{part}{self.profile or 'a slice'} at {self.placement}"

    def overlaps(self, other: Slot) -> bool:
        """True if both have a part of the GPU in common; a slot without placement has all of it."""
        mine, theirs = self.placement, other.placement
        return mine is None or theirs is None or mine.overlaps(theirs)

    @property
    def is_shared(self) -> bool:
        """True if several may use the device, by shares, a strategy, or a claim of several pods."""
        strategy = self.sharing.config.strategy
        return self.share is not None or strategy != "None" or len(self.pods) > 1

    @property
    def sharers(self) -> str:
        """Namespace and pods of the claim, the first few by name."""
        if self.claim is None or len(self.pods) < 2:  # noqa: PLR2004 - one is no list
            return self.owner
        names, more = ", ".join(self.pods[:_NAMED]), len(self.pods) - _NAMED
        return f"{self.claim.namespace}/{names}{f' and {more} more' if more > 0 else ''}"

    @property
    def terms(self) -> str:
        """In words: the claim's share of its device, the strategy, limits of each process."""
        share, config = self.share, self.sharing.config
        found = []
        if share is not None:
            found.append(f"{share.memory_mib} MiB")
            if share.cores:
                found.append(f"{share.cores} % of the cores")
        if self.sharing.by_mps:
            limits = []
            if config.mps.limits_threads:
                limits.append(f"{config.mps.active_thread_percentage} % of the multiprocessors")
            if config.mps.memory_mebibytes is not None:
                limits.append(f"{config.mps.memory_mebibytes} MiB")
            found.append(f"MPS, each process {' and '.join(limits) or 'without limits of its own'}")
        elif config.strategy == TIME_SLICING:
            found.append(f"TimeSlicing, {config.time_slicing.interval} turns")
        elif share is None:
            found.append("in turns, without limits")
        return "  ".join(found)

    @property
    def as_json(self) -> dict[str, Any]:
        """The slot as every command prints it; ``placement`` is null for a whole GPU."""
        share, config = self.share, self.sharing.config
        sharing: dict[str, Any] = {}
        if self.sharing.by_mps:
            limits = {
                "activeThreadPercentage": config.mps.active_thread_percentage,
                "pinnedDeviceMemoryLimit": config.mps.pinned_device_memory_limit,
            }
            sharing = {"sharing": {"strategy": config.strategy, "mps": limits}}
        elif config.strategy == TIME_SLICING:
            turns = {"interval": config.time_slicing.interval}
            sharing = {"sharing": {"strategy": config.strategy, "timeSlicing": turns}}
        return {
            "placement": self.placement,
            "profile": self.profile,
            "state": self.state,
            "claim": self.claim,
            "pods": list(self.pods),
            "migUUID": self.uuid,
            "message": self.message,
            "unhealthy": self.unhealthy,
            **({"share": {"memoryMiB": share.memory_mib, "cores": share.cores}} if share else {}),
            **sharing,
        }


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU and what holds it. ``blocked``: reason why nothing of it is given out, or empty."""

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
        """True if slices can be made now as far as there is room."""
        return self.sliceable and not self.blocked and all(s.placement for s in self.slots)

    @property
    def largest(self) -> Profile | None:
        """The largest profile that could be placed now."""
        geometry = self.gpu.geometry
        return geometry.largest_placeable(self.usage) if geometry and self.open else None

    @property
    def is_free_whole(self) -> bool:
        """True if MIG is off and no claim has the GPU or a share of it."""
        return not (self.sliceable or self.blocked or self.slots or self.gpu.shares)

    @property
    def free_mib(self) -> int:
        """Memory of the free memory slices, whether or not anything can be placed there."""
        geometry = self.gpu.geometry
        if self.gpu.shares:
            return max(0, self.gpu.memory_mib - self.shared.memory_mib)
        if geometry is None or not geometry.memory_slices:
            return 0 if self.slots else self.gpu.memory_mib
        free = geometry.memory_slices - self.usage.mask.bit_count()
        return self.gpu.memory_mib * free // geometry.memory_slices


def remedy_of(view: GpuView, reason: str) -> str:
    """Remedy for a reason of a GPU, or of a slice on it, with the GPU's names put in."""
    gpu = view.gpu
    return remedy(reason, node=view.inventory.node, gpu=gpu.name, uuid=gpu.uuid)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node with MIG GPUs. ``silence``: in words, that its plugin is silent; empty if not."""

    inventory: Inventory
    gpus: tuple[GpuView, ...]
    silence: str = ""

    @property
    def name(self) -> str:
        """The node's name."""
        return self.inventory.node

    @property
    def faults(self) -> list[str]:
        """Reasons why the node's driver does not serve, and why its mode is not reached."""
        found, mode = [], self.inventory.mode
        if not self.inventory.ready:
            found.append(self.inventory.message or "the driver is not ready")
        if self.silence:
            found.append(f"{self.silence}: what is shown of it may be old")
        if mode is not None and mode.state != "success":
            what = f"layout {mode.layout}" if mode.layout else f"mode {mode.mode}"
            found.append(f"{what} is {mode.state}: {mode.message}")
        wish, progress = self.inventory.takeover, self.inventory.progress
        if wish and progress and progress.since == wish.since and progress.state != "success":
            found.append(f"its takeover ({wish.wish}) is {progress.state}: {progress.message}")
        return found


@dataclass(frozen=True, slots=True)
class Site:
    """The nodes. ``unreadable``: by node, the reason why its MigNode could not be read."""

    nodes: tuple[NodeView, ...]
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def node(self, name: str) -> NodeView | None:
        """The node called ``name``."""
        return next((n for n in self.nodes if n.name == name), None)

    def named(self, name: str) -> NodeView:
        """The node called ``name``. Raises CliError if there is none."""
        node = self.node(name)
        if node is None:
            have = ", ".join(n.name for n in self.nodes[:10]) or "none"
            raise CliError(Exit.NOT_FOUND, f"there is no MigNode {name!r}; there are: {have}")
        return node

    def silence(self, node: str) -> str:
        """Words for the silence of a node's plugin, or why it is not known; empty if it serves."""
        found, problem = self.node(node), self.unreadable.get(node)
        if found is not None:
            return found.silence
        return f"its MigNode cannot be read: {problem}" if problem else "it has no MigNode"

    def gpu(self, node: str, gpu: str) -> GpuView | None:
        """A GPU of a node; None if either is not known."""
        found = self.node(node)
        return next((v for v in (found.gpus if found else ()) if v.gpu.name == gpu), None)

    def slots(self, node: str, gpu: str) -> tuple[Slot, ...]:
        """The slots of a GPU of a node; empty if either is not known."""
        view = self.gpu(node, gpu)
        return view.slots if view is not None else ()

    @property
    def gpus(self) -> tuple[GpuView, ...]:
        """The GPUs of all nodes."""
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


def silence_of(mignode: Obj, now: datetime) -> str:
    """Words for a plugin that has been silent for too long; empty otherwise."""
    last = heartbeat_of(mignode)
    if last is None or last >= now - SILENT:
        return ""
    return f"its plugin has been silent for {ago(last, now)}"


def survey(mignodes: Iterable[Obj], claims: Iterable[Claim], *, driver: str, now: datetime) -> Site:
    """The site that MigNodes, as objects of the API, and claims show together ``now``."""
    inventories, unreadable = list[Inventory](), dict[str, str]()
    silent = dict[str, str]()
    for obj in mignodes:
        try:
            inventories.append(from_mignode(obj))
            silent[inventories[-1].node] = silence_of(obj, now)
        except (ApiError, ValueError) as error:
            unreadable[obj["metadata"]["name"]] = str(error)
    pods: dict[str, tuple[Consumer, ...]] = {}
    held: dict[tuple[str, str], list[_Held]] = {}
    for claim in claims:
        pods[claim.ref.uid] = tuple(c for c in claim.reserved_for if c.resource == "pods")
        for allocated in claim.allocation.of_driver(driver) if claim.allocation else ():
            try:
                device = parse_device(allocated.device)
            except DeviceNameError:
                continue
            if claim.allocation is not None and not allocated.admin_access:
                name = str(device) if isinstance(device, GpuDevice) else device.gpu
                sharing = _sharing(claim.allocation, allocated, driver)
                found = _Held(claim, device, allocated.ask, sharing)
                held.setdefault((claim.allocation.node, name), []).append(found)
    nodes = []
    for inventory in sorted(inventories, key=lambda i: natural(i.node)):
        views = []
        for gpu in sorted(inventory.gpus, key=lambda g: g.minor):
            slots = _slots(gpu, held.get((inventory.node, gpu.name), []), pods)
            views.append(GpuView(inventory, gpu, slots, why_blocked(gpu, inventory)))
        nodes.append(NodeView(inventory, tuple(views), silent[inventory.node]))
    return Site(tuple(nodes), unreadable)


def _slots(
    gpu: Gpu, held: list[_Held], pods: Mapping[str, tuple[Consumer, ...]]
) -> tuple[Slot, ...]:
    """Slots of a GPU: those that the node has made, and those that claims have and it has not."""
    made = {
        (i.claim.uid if i.claim else "", i.placement.start): _instance(i, pods)
        for i in gpu.instances
    }
    waiting: list[Slot] = []
    for claim, device, ask, sharing in held:
        share = _share(gpu, device, ask, claim.ref.namespace)
        key = claim.ref.uid, -1 if isinstance(device, GpuDevice) else device.start
        if key in made:
            made[key] = replace(made[key], sharing=sharing, share=share)
        else:
            slot = _allocated(claim, device, gpu, pods.get(claim.ref.uid, ()))
            waiting.append(replace(slot, sharing=sharing, share=share))
    return tuple(sorted([*waiting, *made.values()], key=lambda s: s.placement or Placement(0, 0)))


def _share(gpu: Gpu, device: Device, ask: Ask, namespace: str) -> Share | None:
    """Share of a GPU or slice that several claims may have; None of one that a claim has alone."""
    if isinstance(device, GpuDevice):
        return share_of(ask, gpu.shares, gpu.memory_mib, namespace) if gpu.shares else None
    profile = gpu.geometry.by_id(device.profile_id) if gpu.geometry else None
    if not device.shared or not gpu.slice_shares or profile is None:
        return None
    return share_of(ask, gpu.slice_shares, profile.memory_mib, namespace)


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


def _allocated(claim: Claim, device: Device, gpu: Gpu, users: tuple[Consumer, ...]) -> Slot:
    slot = Slot(None, ALLOCATED, claim=claim.ref, users=users)
    if not isinstance(device, MigDevice):
        return slot
    occupant = occupant_of(device, gpu.geometry)
    if occupant is None:
        return replace(slot, profile=device.profile_label)
    profile = gpu.geometry.by_id(device.profile_id) if gpu.geometry else None
    return replace(
        slot,
        placement=occupant.placement,
        profile=profile.name if profile else device.profile_label,
        profile_id=device.profile_id,
    )


@dataclass(frozen=True, slots=True)
class Hindrance:
    """Reason why a claim is not released.

    ``forcible``: only a node says so, maybe long ago, and ``--force`` overrides it.
    """

    message: str
    forcible: bool = False


def find_hindrance(
    claim: Claim, site: Site, nodes: Collection[str], *, driver: str
) -> Hindrance | None:
    """Reason not to release ``claim``, or None. ``nodes``: names of the Nodes that exist.

    The pods that have reserved a claim hold it. Otherwise its node holds it as long as the Node
    exists and has a slice of the claim, or cannot tell.
    """
    if claim.reserved_for:
        users = [f"{_SINGULAR.get(c.resource, c.resource)} {c.name}" for c in claim.reserved_for]
        return Hindrance(f"in use by {', '.join(users)}")
    for view, slot in site.instances_of(claim.ref.uid):
        node = view.inventory.node
        if node in nodes:
            why = f"{slot.state}: {slot.message}" if slot.message else slot.state
            return Hindrance(
                f"{node} {view.gpu.name} still has its {slot.where}, {why}", forcible=True
            )
    allocation = claim.allocation
    if allocation is None or not allocation.of_driver(driver) or allocation.node not in nodes:
        return None
    node = allocation.node
    if node in site.unreadable:
        return Hindrance(f"the MigNode of its node {node} cannot be read", forcible=True)
    if site.node(node) is None:
        return Hindrance(f"its node {node} has no MigNode that shows it gone", forcible=True)
    return None
