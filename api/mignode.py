"""``MigNode``: what a node's GPUs are, what has been cut from them, and for whom.

Cluster-scoped, named as the node, kept by the node's plugin, read by the controller, by
``kubectl get mignodes`` and by ``kubectl mig``. The CRD is ``api/crds/mignodes.yaml``. Decoding
tolerates unknown fields, so that a newer plugin can talk to an older controller.
"""

from __future__ import annotations

from typing import Any

import msgspec

from api.errors import InvalidObjectError

GROUP = "mig.dra.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "MigNode"


class _Struct(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """JSON in camel case; what equals its default is left out."""


class PlacementField(_Struct, frozen=True):
    """A run of memory slices. ``start`` and ``size`` are always written."""

    start: int
    size: int


class ProfileField(_Struct, frozen=True):
    """A GPU-instance profile; ``starts`` are its placements' first memory slices."""

    name: str
    id: int
    compute_slices: int
    memory_slices: int
    memory_mib: int = msgspec.field(name="memoryMiB")
    multiprocessors: int
    starts: list[int]
    copy_engines: int = 0
    decoders: int = 0
    encoders: int = 0
    jpeg_engines: int = 0
    ofa_engines: int = 0


class GeometryField(_Struct, frozen=True):
    """The profiles that GPUs of this node share; ``name`` is what GPUs refer to.

    ``memory_slices`` is 0 where the placements reach the end of the GPU.
    """

    name: str
    profiles: list[ProfileField]
    memory_slices: int = 0


class ClaimField(_Struct, frozen=True):
    """The claim that holds an instance."""

    namespace: str
    name: str
    uid: str


class InstanceField(_Struct, frozen=True):
    """A GPU instance; ``state`` is a ``dra.gpu.inventory.InstanceState``.

    One that several claims share stands there once for each of them.
    """

    placement: PlacementField
    state: str
    profile: str = ""
    profile_id: int | None = None
    gpu_instance_id: int | None = msgspec.field(default=None, name="gpuInstanceID")
    compute_instance_id: int | None = msgspec.field(default=None, name="computeInstanceID")
    uuid: str = ""
    claim: ClaimField | None = None
    message: str = ""
    unhealthy: str = ""


class IdleField(_Struct, frozen=True):
    """A GPU instance that nobody holds, kept for claims of a namespace; it takes no room."""

    placement: PlacementField
    namespace: str
    profile_id: int | None = None


class LayoutField(_Struct, frozen=True):
    """The declared geometry of a GPU, or of a node; ``ready`` are slices that no claim holds."""

    name: str
    ready: list[PlacementField] = msgspec.field(default_factory=list)


class SharingField(_Struct, frozen=True):
    """A whole GPU or slice that so many claims may have; ``enforcer`` holds them to limits."""

    shares: int
    enforcer: str = ""


class MigModeField(_Struct, frozen=True):
    """MIG mode now and after the next reset (nvmlDeviceGetMigMode). Both are always written."""

    enabled: bool
    pending: bool


class GpuField(_Struct, frozen=True):
    """One GPU; ``reason`` and ``message`` are empty while slices can be placed on it."""

    name: str
    uuid: str
    mig_mode: MigModeField
    product_name: str = ""
    brand: str = ""
    architecture: str = ""
    cuda_compute_capability: str = ""
    pci_bus_id: str = msgspec.field(default="", name="pciBusID")
    pcie_root: str = ""
    memory_mib: int = msgspec.field(default=0, name="memoryMiB")
    multiprocessors: int = 0
    geometry: str = ""
    instances: list[InstanceField] = msgspec.field(default_factory=list)
    idle: list[IdleField] = msgspec.field(default_factory=list)
    layout: LayoutField | None = None
    sharing: SharingField | None = None
    slice_sharing: SharingField | None = None
    reason: str = ""
    message: str = ""


class ConditionField(_Struct, frozen=True):
    """A condition as in metav1.Condition."""

    type: str
    status: str
    reason: str
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int | None = None


class SummaryField(_Struct, frozen=True, omit_defaults=False):
    """Columns of ``kubectl get mignodes``; written whole, so that 0 is shown too."""

    products: str = ""
    gpus: int = 0
    slices: int = 0
    free_memory: str = ""
    largest: str = ""


class DrainField(_Struct, frozen=True):
    """GPUs that an administrator takes out of service: those named, or all when none is."""

    gpus: list[str] = msgspec.field(default_factory=list)
    reason: str = ""
    since: str = ""


class ReservedDeviceField(_Struct, frozen=True):
    """A slice that is reserved, by its name: GPU, profile and placement.

    ``gpu`` is the GPU's UUID, ``request`` the request of the claim that it is for.
    """

    device: str
    gpu: str
    request: str


class ReservationField(_Struct, frozen=True):
    """Slices to make for a claim that is not allocated yet.

    ``id`` is used once. ``seconds`` is how long they wait for the allocation, from the moment at
    which the plugin first sees the reservation, by its own clock.
    """

    id: str
    claim: ClaimField
    devices: list[ReservedDeviceField]
    seconds: int


class MigNodeSpec(_Struct, frozen=True):
    """Owner of the node's devices. ``allocator`` is ``controller`` or ``scheduler``.

    ``drain`` is the administrator's, ``reservations`` the controller's, everything else the
    plugin's.
    """

    driver: str
    pool: str
    allocator: str
    drain: DrainField | None = None
    reservations: list[ReservationField] = msgspec.field(default_factory=list)


class FailedClaimField(_Struct, frozen=True):
    """A claim whose last Prepare failed, at ``time`` (RFC 3339).

    ``passing``: the same call would succeed now, or a little later with nothing done by anybody.
    """

    namespace: str
    name: str
    uid: str
    time: str
    passing: bool = False


class ModeField(_Struct, frozen=True):
    """Mode of a node's GPUs, and how far it is reached.

    ``mode`` is a word of ``api.nodeclass.Mode``, ``layout`` the declared geometry of a node that
    has one. ``state`` is ``pending``, ``success`` or ``failed``, as mig-manager has them;
    ``message`` says what it waits for or why it cannot be.
    """

    mode: str
    state: str
    layout: str = ""
    message: str = ""


class AnswerField(_Struct, frozen=True):
    """Outcome of a reservation; ``state`` is a ``dra.gpu.inventory.AnswerState``."""

    id: str
    state: str
    message: str = ""


class MigNodeStatus(_Struct, frozen=True):
    """State of the node as the plugin last saw it.

    ``capabilities`` names what the plugin does that older ones do not: ``Reservations``.

    ``cdi_hook`` is the path of NVIDIA's hook program on the node, where specs use it.
    ``resumed`` is when kubelet could call the plugin again after calls were cut short (RFC 3339).
    """

    driver_version: str = ""
    cuda_driver_version: str = ""
    cdi_hook: str = ""
    resumed: str = ""
    mode: ModeField | None = None
    failed_claims: list[FailedClaimField] = msgspec.field(default_factory=list)
    capabilities: list[str] = msgspec.field(default_factory=list)
    reservations: list[AnswerField] = msgspec.field(default_factory=list)
    geometries: list[GeometryField] = msgspec.field(default_factory=list)
    gpus: list[GpuField] = msgspec.field(default_factory=list)
    summary: SummaryField | None = None
    conditions: list[ConditionField] = msgspec.field(default_factory=list)


class MigNode(_Struct, frozen=True):
    """The resource without its metadata but for the name."""

    name: str
    spec: MigNodeSpec
    status: MigNodeStatus = MigNodeStatus()


def decode(obj: dict[str, Any]) -> MigNode:
    """The MigNode in ``obj``, a Kubernetes object as JSON.

    Raises:
        InvalidObjectError: a field is missing or of a wrong type; names it.
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
