"""``MigNode``: what a node's GPUs are, what has been cut from them, and for whom.

Cluster-scoped, named as the node, kept by the node's plugin, read by the controller, by
``kubectl get mignodes`` and by ``kubectl mig``. The CRD is ``api/crds/mignodes.yaml``. Decoding
tolerates unknown fields, so that a newer plugin can talk to an older controller.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from api.errors import InvalidObjectError

GROUP = "mig.dra.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "MigNode"

MEMORY_SLICES = 64
"""Most memory slices of a GPU: where ``start + size`` ends."""
MOST_GEOMETRIES = 8
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


class _Struct(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """JSON in camel case; what equals its default is left out."""


class PlacementField(_Struct, frozen=True):
    """A run of memory slices. ``start`` and ``size`` are always written."""

    start: Start
    size: Annotated[int, Meta(ge=1, le=MEMORY_SLICES)]


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


class ClaimField(_Struct, frozen=True):
    """The claim that holds an instance."""

    namespace: Word
    name: Name
    uid: Uid


class InstanceField(_Struct, frozen=True):
    """A GPU instance; ``state`` is a ``dra.gpu.inventory.InstanceState``.

    One that several claims share stands there once for each of them.
    """

    placement: PlacementField
    state: Word
    profile: Word = ""
    profile_id: ProfileId | None = None
    gpu_instance_id: InstanceId | None = msgspec.field(default=None, name="gpuInstanceID")
    compute_instance_id: InstanceId | None = msgspec.field(default=None, name="computeInstanceID")
    uuid: Uuid = ""
    claim: ClaimField | None = None
    message: Text = ""
    unhealthy: Text = ""


class IdleField(_Struct, frozen=True):
    """A GPU instance that nobody holds, kept for claims of a namespace; it takes no room."""

    placement: PlacementField
    namespace: Word
    profile_id: ProfileId | None = None


class LayoutField(_Struct, frozen=True):
    """The declared geometry of a GPU, or of a node; ``ready`` are slices that no claim holds."""

    name: Name
    ready: Annotated[list[PlacementField], Meta(max_length=64)] = msgspec.field(
        default_factory=list
    )


class SharingField(_Struct, frozen=True):
    """A whole GPU or slice that so many claims may have; ``enforcer`` holds them to limits."""

    shares: Annotated[int, Meta(ge=2, le=1000)]
    enforcer: Word = ""


class MigModeField(_Struct, frozen=True):
    """MIG mode now and after the next reset (nvmlDeviceGetMigMode). Both are always written."""

    enabled: bool
    pending: bool


class HealthField(_Struct, frozen=True):
    """The driver's word on a GPU; ``open_in`` are programs that have it open, name and pid."""

    recovery_action: Word = ""
    fabric: Word = ""
    compute_mode: Word = ""
    notes: Annotated[list[Key], Meta(max_length=8)] = msgspec.field(default_factory=list)
    open_in: Annotated[list[Word], Meta(max_length=8)] = msgspec.field(default_factory=list)


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
    instances: Annotated[list[InstanceField], Meta(max_length=512)] = msgspec.field(
        default_factory=list
    )
    idle: Annotated[list[IdleField], Meta(max_length=64)] = msgspec.field(default_factory=list)
    layout: LayoutField | None = None
    sharing: SharingField | None = None
    slice_sharing: SharingField | None = None
    health: HealthField | None = None
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


class DrainField(_Struct, frozen=True):
    """GPUs that an administrator takes out of service: those named, or all when none is."""

    gpus: Annotated[list[Word], Meta(max_length=64)] = msgspec.field(default_factory=list)
    reason: Annotated[str, Meta(max_length=256)] = ""
    since: Time = ""


class ReservedDeviceField(_Struct, frozen=True):
    """A slice that is reserved, by its name: GPU, profile and placement.

    ``gpu`` is the GPU's UUID, ``request`` the request of the claim that it is for.
    """

    device: Key
    gpu: Uuid
    request: Key


class ReservationField(_Struct, frozen=True):
    """Slices to make for a claim that is not allocated yet.

    ``id`` is used once. ``seconds`` is how long they wait for the allocation, from the moment at
    which the plugin first sees the reservation, by its own clock.
    """

    id: Annotated[str, Meta(min_length=1, max_length=64)]
    claim: ClaimField
    devices: Annotated[list[ReservedDeviceField], Meta(min_length=1, max_length=32)]
    seconds: Annotated[int, Meta(ge=1, le=3600)]


class MigNodeSpec(_Struct, frozen=True):
    """Owner of the node's devices. ``allocator`` is ``controller`` or ``scheduler``.

    ``drain`` is the administrator's, ``reservations`` the controller's, everything else the
    plugin's.
    """

    driver: Word
    pool: Name
    allocator: Word
    drain: DrainField | None = None
    reservations: Annotated[list[ReservationField], Meta(max_length=64)] = msgspec.field(
        default_factory=list
    )


class FailedClaimField(_Struct, frozen=True):
    """A claim whose last Prepare failed, at ``time`` (RFC 3339).

    ``passing``: the same call would succeed now, or a little later with nothing done by anybody.
    ``gpu`` is the UUID of the GPU that refused, empty where it was not a GPU that did.
    """

    namespace: Word
    name: Name
    uid: Uid
    time: Time
    passing: bool = False
    gpu: Uuid = ""


class ModeField(_Struct, frozen=True):
    """Mode of a node's GPUs, and how far it is reached.

    ``mode`` is a word of ``api.nodeclass.Mode``, ``layout`` the declared geometry of a node that
    has one. ``state`` is ``pending``, ``success`` or ``failed``, as mig-manager has them;
    ``message`` says what it waits for or why it cannot be.
    """

    mode: Word
    state: Word
    layout: Name = ""
    message: Text = ""


class AnswerField(_Struct, frozen=True):
    """Outcome of a reservation; ``state`` is a ``dra.gpu.inventory.AnswerState``."""

    id: Uid
    state: Annotated[str, Meta(max_length=32)]
    message: Annotated[str, Meta(max_length=512)] = ""


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
    mode: ModeField | None = None
    failed_claims: Annotated[list[FailedClaimField], Meta(max_length=64)] = msgspec.field(
        default_factory=list
    )
    capabilities: Annotated[list[Word], Meta(max_length=16)] = msgspec.field(default_factory=list)
    reservations: Annotated[list[AnswerField], Meta(max_length=64)] = msgspec.field(
        default_factory=list
    )
    geometries: Annotated[list[GeometryField], Meta(max_length=MOST_GEOMETRIES)] = msgspec.field(
        default_factory=list
    )
    gpus: Annotated[list[GpuField], Meta(max_length=64)] = msgspec.field(default_factory=list)
    summary: SummaryField | None = None
    conditions: Annotated[list[ConditionField], Meta(max_length=16)] = msgspec.field(
        default_factory=list
    )


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
        "spec": msgspec.to_builtins(node.spec),
        "status": msgspec.to_builtins(node.status),
    }
