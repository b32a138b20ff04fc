"""``MigNode``: what a node's GPUs are, what has been cut from them, and for whom.

Cluster-scoped, named as the node, kept by the node's plugin, read by the controller, by
``kubectl get mignodes`` and by ``kubectl mig``. The CRD is ``api/crds/mignodes.yaml``. Decoding
tolerates unknown fields, so that a newer plugin can talk to an older controller.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from api.decoding import decodable
from api.errors import InvalidObjectError

GROUP = "mig.dra.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "MigNode"

MEMORY_SLICES = 64
"""Most memory slices of a GPU: where ``start + size`` ends."""
MOST_GEOMETRIES = 8
MOST_RESERVATIONS = 64
ANSWER_CHARACTERS = 512
TEXT_CHARACTERS = 2048
"""Length of texts for people, which ``clipped`` sees to."""
PROFILE_NAME = re.compile(r"^[0-9a-z]+([.+-][0-9a-z]+)*$")
"""Names of profiles that DeviceClasses, labels and selectors can be made of."""

# Bounds of what a node may say, for the reader; the definition in api/crds has the same ones.
Word = Annotated[str, Meta(max_length=63)]
Name = Annotated[str, Meta(max_length=253)]
Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS)]
Key = Annotated[str, Meta(max_length=128)]
Time = Annotated[str, Meta(max_length=64)]
Uid = Annotated[str, Meta(max_length=64)]
Uuid = Annotated[str, Meta(max_length=96)]
ProfileName = Annotated[str, Meta(max_length=32, pattern=PROFILE_NAME.pattern)]
Count = Annotated[int, Meta(ge=0, le=1000)]
Mebibytes = Annotated[int, Meta(ge=0, le=2**30)]
ProfileId = Annotated[int, Meta(ge=0, le=99999)]
InstanceId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Start = Annotated[int, Meta(ge=0, le=MEMORY_SLICES - 1)]
Slices = Annotated[int, Meta(ge=0, le=MEMORY_SLICES)]


class _Value(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """JSON in camel case; what equals its default is left out."""


class _Struct(_Value, frozen=True, kw_only=True):
    """The same with many fields, which are named where one is made."""


class Placement(_Value, frozen=True, order=True):
    """A run of memory slices: ``[start, start + size)``. Both are always written."""

    start: Start
    size: Annotated[int, Meta(ge=1, le=MEMORY_SLICES)]

    @property
    def mask(self) -> int:
        """One bit per memory slice, the lowest bit for slice 0."""
        return ((1 << self.size) - 1) << self.start

    def overlaps(self, other: Placement) -> bool:
        """True if the two share a memory slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size

    def __str__(self) -> str:
        return f"{self.start}:{self.size}"


@decodable
class Occupant(_Value, frozen=True):
    """Something that holds memory slices: an instance, or a claim that is to become one.

    ``profile_id`` is None when only the interval is known; its engines then count as none.
    """

    placement: Placement
    profile_id: int | None = None


class ProfileField(_Struct, frozen=True):
    """A GPU-instance profile; ``starts`` are its placements' first memory slices."""

    name: ProfileName
    id: ProfileId
    compute_slices: Slices
    memory_slices: Slices
    memory_mib: Mebibytes = msgspec.field(name="memoryMiB")
    multiprocessors: Count
    starts: Annotated[list[Start], Meta(max_length=32)]
    copy_engines: Count = 0
    decoders: Count = 0
    encoders: Count = 0
    jpeg_engines: Count = 0
    ofa_engines: Count = 0


class GeometryField(_Struct, frozen=True):
    """The profiles that GPUs of this node share; ``name`` is what GPUs refer to.

    ``memory_slices`` is 0 where the placements reach the end of the GPU.
    """

    name: Word
    profiles: Annotated[list[ProfileField], Meta(max_length=64)]
    memory_slices: Slices = 0


class ClaimRef(_Value, frozen=True):
    """A ResourceClaim, identified as kubelet does it."""

    namespace: Word
    name: Name
    uid: Uid

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name, by which objects are known."""
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@decodable
class RoomRequest(_Value, frozen=True):
    """Annotation of a MigNode: room on its node for the pod ``uid``, by at most so many ``moves``.

    Whoever asks raises ``beat`` every few seconds: a request that does not change is over.
    """

    uid: Uid
    id: Uid
    moves: Count
    beat: Annotated[int, Meta(ge=0)] = 0

    @classmethod
    def read(cls, text: str) -> RoomRequest | None:
        """The request in an annotation; None where it is none."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError:
            return None

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()


class InstanceState(StrEnum):
    """The state of a GPU instance, or of a placement that is to become or ceases to be one."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    RECLAIMING = "reclaiming"
    ORPHAN = "orphan"
    FOREIGN = "foreign"
    LOST = "lost"


class Instance(_Value, frozen=True):
    """A GPU instance on a GPU (nvmlGpuInstanceGetInfo), and the claim that holds it.

    One that several claims share stands there once for each of them. ``profile_id`` is None only
    where hardware reports a profile that the geometry lacks. ``uuid`` is the MIG device's, empty
    while there is no compute instance. ``message`` says what keeps it in its state, such as the
    processes that hold an instance that is to go. ``unhealthy`` says in words what is wrong with a
    slice that is there, such as an XID.
    """

    placement: Placement
    state: InstanceState
    profile_id: ProfileId | None = None
    profile: Word = ""
    gpu_instance_id: InstanceId | None = msgspec.field(default=None, name="gpuInstanceID")
    compute_instance_id: InstanceId | None = msgspec.field(default=None, name="computeInstanceID")
    uuid: Uuid = ""
    claim: ClaimRef | None = None
    message: Text = ""
    unhealthy: Text = ""

    @property
    def occupant(self) -> Occupant:
        """Part of the GPU that the instance takes."""
        return Occupant(self.placement, self.profile_id)


class IdleInstance(_Value, frozen=True):
    """A GPU instance that nobody holds, kept for the next claim of ``namespace``.

    It takes no room: it is destroyed for whoever needs its memory slices otherwise.
    """

    placement: Placement
    namespace: Word
    profile_id: ProfileId | None = None


class GpuLayout(_Value, frozen=True):
    """The declared geometry of a GPU; ``ready`` are its slices that are made and nobody holds."""

    name: Name
    ready: Annotated[tuple[Placement, ...], Meta(max_length=64)] = ()


class SharingField(_Struct, frozen=True):
    """A whole GPU or slice that so many claims may have; ``enforcer`` holds them to limits."""

    shares: Annotated[int, Meta(ge=2, le=1000)]
    enforcer: Word = ""


class GpuHealth(_Value, frozen=True):
    """The driver's word on a GPU, as NVML has it; empty where it does not say.

    ``notes`` are for people, and keep nothing from being placed. ``open_in`` are programs that have
    the GPU open, ``name (pid)``, looked for while it is unavailable.
    """

    recovery: Word = msgspec.field(default="", name="recoveryAction")
    fabric: Word = ""
    compute_mode: Word = ""
    notes: Annotated[tuple[Key, ...], Meta(max_length=8)] = ()
    open_in: Annotated[tuple[Word, ...], Meta(max_length=8)] = ()


class MigModeField(_Struct, frozen=True):
    """MIG mode now and after the next reset (nvmlDeviceGetMigMode). Both are always written."""

    enabled: bool
    pending: bool


class GpuField(_Struct, frozen=True):
    """One GPU; ``reason`` and ``message`` are empty while slices can be placed on it."""

    name: Annotated[str, Meta(max_length=63, pattern=r"^gpu-(0|[1-9][0-9]{0,4})$")]
    uuid: Uuid
    mig_mode: MigModeField
    product_name: Key = ""
    brand: Word = ""
    architecture: Word = ""
    cuda_compute_capability: Word = ""
    pci_bus_id: Word = msgspec.field(default="", name="pciBusID")
    pcie_root: Key = ""
    memory_mib: Mebibytes = msgspec.field(default=0, name="memoryMiB")
    multiprocessors: Count = 0
    geometry: Word = ""
    instances: Annotated[tuple[Instance, ...], Meta(max_length=512)] = ()
    idle: Annotated[tuple[IdleInstance, ...], Meta(max_length=64)] = ()
    layout: GpuLayout | None = None
    sharing: SharingField | None = None
    slice_sharing: SharingField | None = None
    health: GpuHealth | None = None
    reason: Key = ""
    message: Text = ""


class ConditionField(_Struct, frozen=True):
    """A condition as in metav1.Condition."""

    type: Key
    status: Word
    reason: Key
    message: Text = ""
    last_transition_time: Time = ""
    observed_generation: Annotated[int, Meta(ge=0)] | None = None


class SummaryField(_Struct, frozen=True, omit_defaults=False):
    """Columns of ``kubectl get mignodes``; written whole, so that 0 is shown too."""

    products: Text = ""
    gpus: Count = 0
    slices: Annotated[int, Meta(ge=0, le=100000)] = 0
    free_memory: Word = ""
    largest: Word = ""


class Drain(_Value, frozen=True):
    """GPUs that an administrator has taken out of service: no new claim is placed there.

    No ``gpus`` means all of the node. ``since`` is RFC 3339.
    """

    gpus: Annotated[tuple[Word, ...], Meta(max_length=64)] = ()
    reason: Annotated[str, Meta(max_length=256)] = ""
    since: Time = ""

    def covers(self, gpu: str) -> bool:
        """True if ``gpu-<minor>`` is out of service."""
        return not self.gpus or gpu in self.gpus


class ReservedDevice(_Value, frozen=True):
    """A slice by its device name; ``gpu`` is the GPU's UUID, ``request`` what it is for."""

    device: Key
    gpu: Uuid
    request: Key


class Reservation(_Value, frozen=True):
    """Slices that a node makes for a claim before the claim is allocated.

    The controller writes it into ``spec``, the node answers in ``status``, and only then the claim
    is allocated. It gives nothing away: two of the same place cannot both be made. ``id`` is used
    once. ``seconds`` is how long the slices wait for the allocation, from the moment at which the
    plugin first sees the reservation, by its own clock.
    """

    id: Annotated[str, Meta(min_length=1, max_length=64)]
    claim: ClaimRef
    devices: Annotated[tuple[ReservedDevice, ...], Meta(min_length=1, max_length=32)]
    seconds: Annotated[int, Meta(ge=1, le=3600)]


class MigNodeSpec(_Struct, frozen=True):
    """Owner of the node's devices. ``allocator`` is ``controller`` or ``scheduler``.

    ``drain`` is the administrator's, ``reservations`` the controller's, everything else the
    plugin's.
    """

    driver: Word
    pool: Name
    allocator: Word
    drain: Drain | None = None
    reservations: Annotated[tuple[Reservation, ...], Meta(max_length=MOST_RESERVATIONS)] = ()


class FailedClaim(_Value, frozen=True):
    """A claim whose last Prepare failed, at ``time`` (RFC 3339 with microseconds).

    ``passing``: the same call would succeed now, or a little later with nothing done by anybody.
    ``gpu`` is the UUID of the GPU that refused, empty where it was not a GPU that did: a claim that
    no node could serve says nothing of the GPU that it was given.
    """

    namespace: Word
    name: Name
    uid: Uid
    time: Time
    passing: bool = False
    gpu: Uuid = ""

    @property
    def claim(self) -> ClaimRef:
        """The claim."""
        return ClaimRef(self.namespace, self.name, self.uid)


class NodeMode(_Value, frozen=True):
    """Mode of a node's GPUs, and how far it is reached.

    ``mode`` is a word of ``api.nodeclass.Mode``, ``layout`` the declared geometry of a node that
    has one. ``state`` is ``pending``, ``success`` or ``failed``, as mig-manager has them;
    ``message`` says what it waits for or why it cannot be.
    """

    mode: Word
    state: Word
    layout: Name = ""
    message: Text = ""


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


class Answer(_Value, frozen=True):
    """The node's answer to the reservation ``id``; ``state`` is a word of ``AnswerState``.

    A newer node may have other words.
    """

    id: Uid
    state: Annotated[str, Meta(max_length=32)]
    message: Annotated[str, Meta(max_length=ANSWER_CHARACTERS)] = ""


class MigNodeStatus(_Struct, frozen=True):
    """State of the node as the plugin last saw it.

    ``capabilities`` names what the plugin does that older ones do not, such as ``Reservations``,
    and what it cannot that others can: ``HostUsersOnly``.

    ``cdi_hook`` is the path of NVIDIA's hook program on the node, where specs use it.
    ``resumed`` is when kubelet could call the plugin again after calls were cut short (RFC 3339).
    """

    driver_version: Key = ""
    cuda_driver_version: Word = ""
    cdi_hook: Annotated[str, Meta(max_length=4096)] = ""
    resumed: Time = ""
    mode: NodeMode | None = None
    failed_claims: Annotated[tuple[FailedClaim, ...], Meta(max_length=64)] = ()
    capabilities: Annotated[tuple[Word, ...], Meta(max_length=16)] = ()
    reservations: Annotated[tuple[Answer, ...], Meta(max_length=MOST_RESERVATIONS)] = ()
    geometries: Annotated[list[GeometryField], Meta(max_length=MOST_GEOMETRIES)] = msgspec.field(
        default_factory=list
    )
    gpus: Annotated[list[GpuField], Meta(max_length=64)] = msgspec.field(default_factory=list)
    summary: SummaryField | None = None
    conditions: Annotated[list[ConditionField], Meta(max_length=16)] = msgspec.field(
        default_factory=list
    )


@decodable
class MigNode(_Struct, frozen=True):
    """The resource without its metadata but for the name."""

    name: str
    spec: MigNodeSpec
    status: MigNodeStatus = MigNodeStatus()


def clipped(text: str) -> str:
    """A text for people, as long as a MigNode takes it."""
    return text if len(text) <= TEXT_CHARACTERS else f"{text[: TEXT_CHARACTERS - 3]}..."


def decode(obj: dict[str, Any]) -> MigNode:
    """The MigNode in ``obj``, a Kubernetes object as JSON.

    Raises:
        InvalidObjectError: a field is missing, of a wrong type or out of bounds; names it.
    """
    try:
        name = obj["metadata"]["name"]
        return MigNode(
            name=name,
            spec=msgspec.convert(obj["spec"], MigNodeSpec),
            status=msgspec.convert(obj.get("status") or {}, MigNodeStatus),
        )
    except KeyError as error:
        raise InvalidObjectError(KIND, str(error.args[0]), "missing") from error
    except msgspec.ValidationError as error:
        problem, _, at = str(error).partition(" - at ")
        raise InvalidObjectError(KIND, at.strip("`").removeprefix("$."), problem) from error


def encode(node: MigNode) -> dict[str, Any]:
    """``{"apiVersion", "kind", "metadata": {"name"}, "spec", "status"}``."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": node.name},
        "spec": as_json(node.spec),
        "status": as_json(node.status),
    }


def as_json(value: msgspec.Struct) -> dict[str, Any]:
    """A value as JSON has it, equal to what is read back."""
    obj: dict[str, Any] = msgspec.to_builtins(value)
    _with_lists(obj)
    return obj


def _with_lists(obj: dict[str, Any]) -> None:
    """Have lists in the place of tuples, in which msgspec leaves what it finds in some."""
    for key, value in obj.items():
        if type(value) is tuple:
            value = obj[key] = [*value]  # noqa: PLW2901 - looked into below
        for each in value if type(value) is list else (value,):
            if type(each) is dict:
                _with_lists(each)
