"""Inventory of a node: GPUs, their geometry, the instances on them and the holders of those."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dra.gpu.geometry import Geometry, Occupant, Placement, Usage
from dra.gpu.names import gpu_name
from dra.gpu.shares import ShareOffer

HOST_USERS_ONLY = "HostUsersOnly"
"""Word in ``status.capabilities`` of a node whose plugin cannot make device nodes on the host.

No container with a user namespace of its own starts there. A plugin that does not say it can.
"""


class InstanceState(StrEnum):
    """The state of a GPU instance, or of a placement that is to become or ceases to be one."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    RECLAIMING = "reclaiming"
    ORPHAN = "orphan"
    FOREIGN = "foreign"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A ResourceClaim, identified as kubelet does it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Instance:
    """A GPU instance on a GPU (nvmlGpuInstanceGetInfo), and the claim that holds it.

    ``profile_id`` is None only where hardware reports a profile that the geometry lacks.
    ``uuid`` is the MIG device's, empty while there is no compute instance. ``message`` says what
    keeps it in its state, such as the processes that hold an instance that is to go. ``unhealthy``
    says in words what is wrong with a slice that is there, such as an XID.
    """

    placement: Placement
    state: InstanceState
    profile_id: int | None = None
    profile: str = ""
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    uuid: str = ""
    claim: ClaimRef | None = None
    message: str = ""
    unhealthy: str = ""

    @property
    def occupant(self) -> Occupant:
        """Part of the GPU that the instance takes."""
        return Occupant(self.placement, self.profile_id)


@dataclass(frozen=True, slots=True)
class IdleInstance:
    """A GPU instance that nobody holds, kept for the next claim of ``namespace``.

    It takes no room: it is destroyed for whoever needs its memory slices otherwise.
    """

    placement: Placement
    profile_id: int | None
    namespace: str


@dataclass(frozen=True, slots=True)
class GpuLayout:
    """The declared geometry of a GPU; ``ready`` are its slices that are made and nobody holds."""

    name: str
    ready: tuple[Placement, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeMode:
    """Mode of a node's GPUs and how far it is reached, as words of ``api.mignode.ModeField``."""

    mode: str
    state: str
    layout: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class GpuHealth:
    """The driver's word on a GPU, as NVML has it; empty where it does not say.

    ``notes`` are for people, and keep nothing from being placed. ``open_in`` are programs that have
    the GPU open, ``name (pid)``, looked for while it is unavailable.
    """

    recovery: str = ""
    fabric: str = ""
    compute_mode: str = ""
    notes: tuple[str, ...] = ()
    open_in: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """Facts that the driver has about a GPU and devices tell, whatever is on it.

    Each is a text or a number, empty or 0 where it is not known, and has its name in
    ``api.mignode.GpuField`` too.
    """

    product_name: str = ""
    brand: str = ""
    architecture: str = ""
    cuda_compute_capability: str = ""
    pci_bus_id: str = ""
    memory_mib: int = 0


@dataclass(frozen=True, slots=True)
class Gpu(GpuFacts):
    """One GPU of a node.

    ``minor`` is the number in its name, kept with the UUID over reboots. ``geometry`` is None where
    the GPU has no MIG, and its profiles may be known while MIG mode is off. ``unavailable`` says in
    words why nothing can be placed on it now, and is empty when something can. ``layout`` is None
    where slices are made for claims: of a GPU with one, ``geometry`` has no other placements.
    ``sharing``: several claims may have it whole; None in MIG mode. ``slice_sharing``: several
    claims of shares may have one slice of it, beside slices that one claim has; such a slice has an
    instance in ``instances`` for each of its claims. ``health`` is None where nothing was said.
    """

    minor: int
    uuid: str
    pcie_root: str = ""
    multiprocessors: int = 0
    mig_enabled: bool = False
    mig_pending: bool = False
    geometry: Geometry | None = None
    instances: tuple[Instance, ...] = ()
    unavailable: str = ""
    reason: str = ""
    idle: tuple[IdleInstance, ...] = ()
    layout: GpuLayout | None = None
    sharing: ShareOffer | None = None
    slice_sharing: ShareOffer | None = None
    health: GpuHealth | None = None

    def __hash__(self) -> int:
        """Hash of what tells GPUs apart: all of them are looked up at each change of a node."""
        return hash((self.uuid, self.instances))

    @property
    def name(self) -> str:
        """``gpu-<minor>``."""
        return gpu_name(self.minor)

    @property
    def usage(self) -> Usage:
        """Slices and engines that the GPU's instances take together."""
        if self.geometry is None:
            return Usage()
        return self.geometry.usage({i.occupant for i in self.instances})


class AllocatorKind(StrEnum):
    """Program that allocates the GPUs of a node."""

    CONTROLLER = "controller"
    SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class Publication:
    """State of a node's ResourceSlices: whether they are there, and in words why not.

    ``done`` is None as long as that is not known.
    """

    done: bool | None
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Drain:
    """GPUs that an administrator has taken out of service: no new claim is placed there.

    No ``gpus`` means all of the node. ``since`` is RFC 3339.
    """

    gpus: tuple[str, ...] = ()
    reason: str = ""
    since: str = ""

    def covers(self, gpu: str) -> bool:
        """True if ``gpu-<minor>`` is out of service."""
        return not self.gpus or gpu in self.gpus


@dataclass(frozen=True, slots=True)
class FailedClaim:
    """A claim whose last Prepare failed, at ``time`` (RFC 3339 with microseconds).

    ``passing``: the same call would succeed now, or a little later with nothing done by anybody.
    ``gpu`` is the UUID of the GPU that refused, empty where it was not a GPU that did: a claim that
    no node could serve says nothing of the GPU that it was given.
    """

    claim: ClaimRef
    time: str
    passing: bool = False
    gpu: str = ""


class AnswerState(StrEnum):
    """Outcome of a reservation on its node.

    ``made``: all its slices are there. ``failed``: they cannot be made. ``refused``: the node makes
    nothing ahead for the claim, which says nothing of its GPUs. ``expired``: nothing came of it in
    time, and nothing is left.
    """

    MADE = "made"
    FAILED = "failed"
    REFUSED = "refused"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Answer:
    """The node's answer to the reservation ``id`` of its MigNode (``dra.gpu.reservations``)."""

    id: str
    state: AnswerState
    message: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """A node's GPUs and what allocates them. ``pool`` is the pool of the node's devices.

    ``publication`` is None where nobody asked for ResourceSlices, ``drain`` where nothing is
    drained. ``cdi_hook`` is the hook program on the node that containers' CDI specs use.
    ``resumed`` is when kubelet could call the plugin again after calls were cut short (RFC 3339
    with microseconds), empty if they never were. ``mode`` is None where no class of nodes is
    configured. ``capabilities`` are what it does that not every node does.
    """

    node: str
    pool: str
    driver: str
    gpus: tuple[Gpu, ...] = ()
    allocator: AllocatorKind = AllocatorKind.CONTROLLER
    driver_version: str = ""
    cuda_driver_version: str = ""
    cdi_hook: str = ""
    ready: bool = True
    message: str = ""
    publication: Publication | None = None
    drain: Drain | None = None
    resumed: str = ""
    failed_claims: tuple[FailedClaim, ...] = ()
    mode: NodeMode | None = None
    capabilities: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()

    def gpu(self, name: str) -> Gpu | None:
        """The GPU called ``gpu-<minor>``."""
        return next((g for g in self.gpus if g.name == name), None)

    def is_drained(self, gpu: str) -> bool:
        """True if an administrator has taken ``gpu-<minor>`` out of service."""
        return self.drain is not None and self.drain.covers(gpu)
