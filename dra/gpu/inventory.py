"""Inventory of a node: GPUs, their geometry, the instances on them and the holders of those."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from api.mignode import (
    ClaimRef,
    Drain,
    FailedClaim,
    GpuHealth,
    GpuLayout,
    IdleInstance,
    Instance,
    InstanceState,
    NodeMode,
    Takeover,
    TakeoverProgress,
)
from dra.gpu.geometry import Geometry, Usage
from dra.gpu.names import gpu_name

__all__ = [
    "HARMFUL",
    "HOST_USERS_ONLY",
    "SETS_CONDITIONS",
    "AllocatorKind",
    "ClaimRef",
    "Drain",
    "FailedClaim",
    "Gpu",
    "GpuFacts",
    "GpuHealth",
    "GpuLayout",
    "GpuReason",
    "IdleInstance",
    "Instance",
    "InstanceState",
    "Inventory",
    "NodeMode",
    "Publication",
    "Takeover",
    "TakeoverProgress",
]

HOST_USERS_ONLY = "HostUsersOnly"
"""Word in ``status.capabilities`` of a node whose plugin cannot make device nodes on the host.

No container with a user namespace of its own starts there. A plugin that does not say it can.
"""


SETS_CONDITIONS = "BindingConditions"
"""Word in ``status.capabilities`` of a node that tells kube-scheduler of slices it waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """Facts about a GPU that devices publish, and that do not depend on what is on it.

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
    words why nothing can be placed on it now, and is empty when something can. ``claims``: those
    that have it whole or a share of it, until its node is rid of them. ``layout`` is None where
    slices are made for claims: of a GPU with one, ``geometry`` has no other placements.
    ``shares``: number of claims that may have it whole at the same time; 0 if one has it alone, and
    in MIG mode. ``slice_shares``: number of claims of shares that may have one slice of it, beside
    slices that one claim has; 0 for none. Such a slice has an instance in ``instances`` for each of
    its claims. ``health`` is None where nothing was said.
    """

    minor: int
    uuid: str
    pcie_root: str = ""
    multiprocessors: int = 0
    mig_enabled: bool = False
    mig_pending: bool = False
    geometry: Geometry | None = None
    claims: tuple[ClaimRef, ...] = ()
    instances: tuple[Instance, ...] = ()
    unavailable: str = ""
    reason: str = ""
    idle: tuple[IdleInstance, ...] = ()
    layout: GpuLayout | None = None
    shares: int = 0
    slice_shares: int = 0
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


class GpuReason(StrEnum):
    """Reason why a GPU, or a device on it, is not given out or not usable. Programs read them.

    The same words stand in MigNodes, in the taints of ResourceSlices, in the conditions of claims,
    in events and in the answers of ``kubectl mig explain``.
    """

    NO_MIG = "NoMIG"
    MIG_OFF = "MIGDisabled"
    MIG_PENDING = "MIGModePending"
    DRAINED = "Drained"
    RELEASED = "GpuReleased"
    """The node's plugin has nothing of the GPU open, so that it may be reset."""
    PAUSED = "GpuClientsPaused"
    MIG_MANAGER = "MIGManagerActive"
    DEVICE_PLUGIN = "DevicePluginActive"
    TAKEOVER = "TakeoverPending"
    """Another manager still gives the node's GPUs out, or pods of it have the GPU."""
    HANDED_BACK = "NodeHandedBack"
    NVIDIA_DRA = "NvidiaDraDriverActive"
    LAYOUT_PENDING = "LayoutPending"
    """The GPU is not yet in the state that the node's mode wants."""
    LAYOUT_FAILED = "LayoutFailed"
    """The state that the node's mode wants of the GPU cannot be made."""
    UNAVAILABLE = "Unavailable"
    """The plugin gives nothing of the GPU out, without saying why in a word."""
    NOT_READY = "DriverNotReady"
    NO_PERMISSION = "NoPermission"
    NVML_ERROR = "NVMLError"
    NVML_HANG = "NVMLHang"
    XID_ERROR = "XidError"
    RECOVERY_REQUIRED = "GpuRecoveryRequired"
    """The driver asks for a reset or reboot; programs that run on the GPU are affected too."""
    RECOVERY_ADVISED = "GpuRecoveryAdvised"
    """The driver asks that nothing new begins on the GPU; running programs may go on."""
    FABRIC_NOT_READY = "FabricNotReady"
    COMPUTE_MODE = "ComputeModeRestricted"
    VIRTUALIZED = "GpuVirtualized"
    CONFIDENTIAL = "ConfidentialNotReady"
    GPU_LOST = "GpuLost"
    SLICE_LOST = "SliceLost"
    MPS_DOWN = "MpsDaemonDown"
    """The daemon that shares a claim's device among its clients does not serve."""
    CREATION_FAILED = "CreationFailed"
    """A slice could not be made on the GPU lately."""


HARMFUL = frozenset(
    {
        GpuReason.XID_ERROR,
        GpuReason.NVML_ERROR,
        GpuReason.NVML_HANG,
        GpuReason.GPU_LOST,
        GpuReason.RECOVERY_REQUIRED,
    }
)
"""Reasons of a GPU that also make the devices in use on it unhealthy."""


class AllocatorKind(StrEnum):
    """Program that allocates the GPUs of a node."""

    CONTROLLER = "controller"
    SCHEDULER = "scheduler"


@dataclass(frozen=True, slots=True)
class Publication:
    """State of a node's ResourceSlices. ``done``: they are published; None while that is not known.

    ``reason`` and ``message`` say why they are not.
    """

    done: bool | None
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """A node's GPUs and what allocates them. ``pool`` is the pool of the node's devices.

    ``publication`` is None where nobody asked for ResourceSlices, ``drain`` where nothing is
    drained, ``takeover`` where no administrator has asked for one; ``progress`` is that of the
    takeover. ``cdi_hook`` is the hook program on the node that containers' CDI specs use.
    ``resumed`` is when kubelet could call the plugin again (RFC 3339 with microseconds), empty if
    no call was missed. ``mode`` is None where no class of nodes is configured. ``capabilities`` are
    words for abilities that not every node has.
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
    takeover: Takeover | None = None
    progress: TakeoverProgress | None = None
    resumed: str = ""
    failed_claims: tuple[FailedClaim, ...] = ()
    mode: NodeMode | None = None
    capabilities: tuple[str, ...] = ()

    def gpu(self, name: str) -> Gpu | None:
        """The GPU called ``gpu-<minor>``."""
        return next((g for g in self.gpus if g.name == name), None)

    def is_drained(self, gpu: str) -> bool:
        """True if an administrator has taken ``gpu-<minor>`` out of service."""
        return self.drain is not None and self.drain.covers(gpu)
