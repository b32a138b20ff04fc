"""``MigNode``: a node's GPUs, their slices, and the claims that have them.

A MigNode is cluster-scoped and has its node's name. The node's plugin writes it; the controller,
``kubectl get mignodes`` and ``kubectl mig`` read it. The CRD is ``api/crds/mignodes.yaml``.
Decoding tolerates unknown fields, so that a newer plugin can talk to an older controller.
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
"""Most memory slices of a GPU: upper bound on ``start + size`` of a placement."""
MOST_GPU_CLAIMS = 512
MOST_GEOMETRIES = 8
SILENT_SECONDS = 100.0
"""Age of ``status.lastHeartbeatTime`` from which a plugin counts as silent."""
TEXT_CHARACTERS = 2048
"""Most characters of a text for people; ``clipped`` cuts longer ones."""
PROFILE_NAME = re.compile(r"^[0-9a-z]+([.+-][0-9a-z]+)*$")
"""Pattern of profile names that can be part of DeviceClasses, labels and selectors."""

# Bounds that a reader of a MigNode checks; the definition in api/crds has the same bounds.
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
    """Base of types whose JSON is in camel case and leaves out fields with their default value."""


class _Struct(_Value, frozen=True, kw_only=True):
    """Base of such types with many fields, which take keyword arguments only."""


class Placement(_Value, frozen=True, order=True):
    """Consecutive memory slices of a GPU: ``[start, start + size)``."""

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
    """Holder of memory slices: an instance, or a claim whose instance is still to be made.

    ``profile_id``: None if only the placement is known; the holder then counts as without engines.
    """

    placement: Placement
    profile_id: int | None = None


class ProfileField(_Struct, frozen=True):
    """A GPU-instance profile. ``starts``: the first memory slice of each of its placements."""

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
    """Profiles that several GPUs of this node have in common.

    ``name``: name by which GPUs refer to the geometry. ``memory_slices``: number of the GPU's
    memory slices; 0 if the placements reach the end of the GPU, and so tell it.
    """

    name: Word
    profiles: Annotated[list[ProfileField], Meta(max_length=64)]
    memory_slices: Slices = 0


class ClaimRef(_Value, frozen=True):
    """A ResourceClaim, identified by namespace, name and UID, as in kubelet's protocol."""

    namespace: Word
    name: Name
    uid: Uid

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name."""
        return self.namespace, self.name

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@decodable
class RoomRequest(_Value, frozen=True):
    """Request in an annotation of a MigNode to make room on its node for a pod.

    ``uid``: the pod's. ``id``: of the request. ``moves``: most pods that may be moved for it.
    ``beat``: number that the requester raises every few seconds; a request whose ``beat`` stays the
    same is over.
    """

    uid: Uid
    id: Uid
    moves: Count
    beat: Annotated[int, Meta(ge=0)] = 0

    @classmethod
    def read(cls, text: str) -> RoomRequest | None:
        """The request in an annotation's text; None if the text is no request."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError:
            return None

    def __str__(self) -> str:
        return msgspec.json.encode(self).decode()


class InstanceState(StrEnum):
    """State of a GPU instance that is there, is being made, is being removed, or is gone."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    RECLAIMING = "reclaiming"
    ORPHAN = "orphan"
    FOREIGN = "foreign"
    LOST = "lost"


class Instance(_Value, frozen=True):
    """A GPU instance on a GPU (nvmlGpuInstanceGetInfo), and the claim that holds it.

    An instance that several claims share is listed once for each of them.
    ``profile_id``: None only if the hardware reports a profile that the geometry lacks.
    ``uuid``: of the MIG device; empty while there is no compute instance.
    ``message``: text about the reason of its state, such as the processes that use an instance
    which is to be removed.
    ``unhealthy``: text about a problem of a slice that is there, such as an XID; else empty.
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
        """Memory slices and profile that the instance takes of its GPU."""
        return Occupant(self.placement, self.profile_id)


class IdleInstance(_Value, frozen=True):
    """A GPU instance that nobody holds, kept for the next claim of ``namespace``.

    Its memory slices count as free: the instance is destroyed if a claim needs them otherwise.
    """

    placement: Placement
    namespace: Word
    profile_id: ProfileId | None = None


class GpuLayout(_Value, frozen=True):
    """The layout of a GPU. ``name``: of the layout. ``ready``: made slices that nobody holds."""

    name: Name
    ready: Annotated[tuple[Placement, ...], Meta(max_length=64)] = ()


class SharingField(_Struct, frozen=True):
    """Offer of a whole GPU or slice to as many claims as ``shares`` says at the same time."""

    shares: Annotated[int, Meta(ge=2, le=1000)]


class GpuHealth(_Value, frozen=True):
    """The driver's word on a GPU, from NVML; a field is empty if the driver does not say.

    ``notes``: texts for people; no hindrance to placement. ``open_in``: programs that have the GPU
    open, each as ``name (pid)``; looked for only while the driver calls the GPU unusable.
    """

    recovery: Word = msgspec.field(default="", name="recoveryAction")
    fabric: Word = ""
    compute_mode: Word = ""
    notes: Annotated[tuple[Key, ...], Meta(max_length=8)] = ()
    open_in: Annotated[tuple[Word, ...], Meta(max_length=8)] = ()


class MigModeField(_Struct, frozen=True):
    """MIG mode (nvmlDeviceGetMigMode). ``enabled``: now. ``pending``: after the next reset."""

    enabled: bool
    pending: bool


class GpuField(_Struct, frozen=True):
    """One GPU; ``reason`` and ``message`` are empty while slices can be placed on it.

    ``claims``: those that have it whole, or a share of it.
    """

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
    claims: Annotated[tuple[ClaimRef, ...], Meta(max_length=MOST_GPU_CLAIMS)] = ()
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
    """Columns of ``kubectl get mignodes``; default values are written too, so that 0 is shown."""

    products: Text = ""
    gpus: Count = 0
    slices: Annotated[int, Meta(ge=0, le=100000)] = 0
    free_memory: Word = ""
    largest: Word = ""
    unavailable: Text = ""


class Drain(_Value, frozen=True):
    """GPUs that an administrator has taken out of service: no new claim is placed on them.

    ``gpus``: names of the GPUs; empty for all GPUs of the node. ``since``: time in RFC 3339.
    """

    gpus: Annotated[tuple[Word, ...], Meta(max_length=64)] = ()
    reason: Annotated[str, Meta(max_length=256)] = ""
    since: Time = ""

    def covers(self, gpu: str) -> bool:
        """True if ``gpu-<minor>`` is out of service."""
        return not self.gpus or gpu in self.gpus


class KeptLabel(_Value, frozen=True):
    """A label of the Node as it was before a takeover changed it."""

    key: Annotated[str, Meta(max_length=317)]
    value: Word


class KeptInstance(_Value, frozen=True):
    """A GPU instance as it was before a takeover. ``gpu``: UUID of its GPU."""

    gpu: Uuid
    placement: Placement
    profile_id: ProfileId


class Takeover(_Struct, frozen=True):
    """Wish of an administrator that this driver take the node's GPUs over, or hand them back.

    ``wish``: ``take`` or ``return``. ``since``: time (RFC 3339), which tells one wish from another.
    ``labels``, ``instances``: what was there before. ``restore``: make ``instances`` again.
    """

    wish: Word
    since: Time
    labels: Annotated[tuple[KeptLabel, ...], Meta(max_length=8)] = ()
    instances: Annotated[tuple[KeptInstance, ...], Meta(max_length=512)] = ()
    restore: bool = False

    @property
    def is_return(self) -> bool:
        """True if the node is to be handed back."""
        return self.wish == "return"


class TakeoverProgress(_Value, frozen=True):
    """Progress of a takeover or of its return. ``since``: of the wish that it is about.

    ``state``: ``pending`` or ``success``. ``message``: what is left, and why.
    """

    since: Time
    state: Word
    message: Text = ""


class MigNodeSpec(_Struct, frozen=True):
    """Driver and allocator of the node's devices, and requests to the plugin.

    ``allocator``: ``controller`` or ``scheduler``. ``drain`` and ``takeover`` are written by the
    administrator, every other field by the plugin.
    """

    driver: Word
    pool: Name
    allocator: Word
    drain: Drain | None = None
    takeover: Takeover | None = None


class FailedClaim(_Value, frozen=True):
    """A claim whose last Prepare failed.

    ``time``: of the failure, in RFC 3339 with microseconds. ``passing``: the same call would
    succeed now or a little later, although nobody does anything. ``gpu``: UUID of the GPU that
    refused; empty if the cause is not the GPU, such as a claim that no node could serve.
    """

    namespace: Word
    name: Name
    uid: Uid
    time: Time
    passing: bool = False
    gpu: Uuid = ""

    @property
    def claim(self) -> ClaimRef:
        """Reference to the claim."""
        return ClaimRef(self.namespace, self.name, self.uid)


class NodeMode(_Value, frozen=True):
    """Mode of a node's GPUs, and progress of the change to it.

    ``mode``: a word of ``api.nodeclass.Mode``. ``layout``: name of the layout; empty without one.
    ``state``: ``pending``, ``success`` or ``failed``, the words of mig-manager. ``message``: reason
    why the mode is not reached yet, or cannot be.
    """

    mode: Word
    state: Word
    layout: Name = ""
    message: Text = ""


class MigNodeStatus(_Struct, frozen=True):
    """State of the node as the plugin last saw it.

    ``cdi_hook``: path of NVIDIA's hook program on the node; empty if CDI specs do not use it.
    ``resumed``: time (RFC 3339) when kubelet could call the plugin again, after calls were cut
    short or found no plugin.
    ``last_heartbeat_time``: when the plugin last served kubelet and looked at its GPUs; written at
    least once a minute, empty with older plugins.
    ``capabilities``: features that not every plugin has, such as strategies of sharing; also its
    restrictions: ``HostUsersOnly``.
    """

    driver_version: Key = ""
    cuda_driver_version: Word = ""
    cdi_hook: Annotated[str, Meta(max_length=4096)] = ""
    resumed: Time = ""
    last_heartbeat_time: Time = ""
    mode: NodeMode | None = None
    takeover: TakeoverProgress | None = None
    failed_claims: Annotated[tuple[FailedClaim, ...], Meta(max_length=64)] = ()
    capabilities: Annotated[tuple[Word, ...], Meta(max_length=16)] = ()
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
    """The resource; of its metadata only the name."""

    name: str
    spec: MigNodeSpec
    status: MigNodeStatus = MigNodeStatus()


def clipped(text: str) -> str:
    """Text for people, cut to the length that a MigNode permits."""
    return text if len(text) <= TEXT_CHARACTERS else f"{text[: TEXT_CHARACTERS - 3]}..."


def decode(obj: dict[str, Any]) -> MigNode:
    """The MigNode in ``obj``, a Kubernetes object as JSON.

    Raises:
        InvalidObjectError: a field is missing, of a wrong type or out of bounds; names the field.
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
    """The MigNode as a Kubernetes object in JSON, with the name as its only metadata."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": node.name},
        "spec": as_json(node.spec),
        "status": as_json(node.status),
    }


def as_json(value: msgspec.Struct) -> dict[str, Any]:
    """A value as JSON object, which equals the object that is read back from the API server."""
    obj: dict[str, Any] = msgspec.to_builtins(value)
    _with_lists(obj)
    return obj


def _with_lists(obj: dict[str, Any]) -> None:
    """Replace tuples in ``obj`` by lists, at any depth: msgspec does not convert all of them."""
    for key, value in obj.items():
        if type(value) is tuple:
            value = obj[key] = [*value]  # noqa: PLW2901 - looked into below
        for each in value if type(value) is list else (value,):
            if type(each) is dict:
                _with_lists(each)
