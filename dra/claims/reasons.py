"""Reasons of all events, of the controller and of the node. Programs read them: keep them.

docs/troubleshooting.md has each of them, with its remedy.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dra.claims.conditions import PREPARE_FAILED
from dra.gpu.inventory import GpuReason


class Reason(StrEnum):
    """Reasons of the controller's events."""

    ALLOCATED = "Allocated"
    WAITING = "WaitingForSlice"
    NO_SUCH_PROFILE = "NoSuchProfile"
    MIG_OFF = GpuReason.MIG_OFF
    NO_SUCH_CLASS = "NoSuchDeviceClass"
    BAD_SELECTOR = "InvalidSelector"
    COSTLY_SELECTOR = "SelectorTooCostly"
    EVALUATING = "EvaluatingSelectors"
    BAD_CONFIG = "InvalidConfig"
    UNSUPPORTED = "UnsupportedRequest"
    TOO_MANY_TEMPLATES = "TooManyTemplates"
    MIXED = "MixedDrivers"
    VOLUME_CLAIM = "WaitingForVolumeClaim"
    OTHER_CLAIM = "WaitingForOtherClaim"
    SCHEDULER = "WaitingForScheduler"
    WAITING_FOR_GANG = "WaitingForPodGroup"
    QUOTA = "WaitingForQuota"
    SEARCH_GIVEN_UP = "SearchGivenUp"
    NOTHING_TO_SEE = "NothingToLookAt"
    NEXT_IN_LINE = "NextInLine"
    TAKEN_BACK = "AllocationTakenBack"
    REFUSED = "AllocationRefused"
    PREPARE_FAILED = PREPARE_FAILED
    UNSEEN = "DeviceNotUsed"
    NEAR_MISS = "ProfileMissed"
    EVICTED = "PodEvicted"
    NOT_EVICTED = "PodNotEvicted"
    MAKING_ROOM = "MakingRoom"
    MOVED = "PodMoved"
    PREEMPTED = "PodPreempted"
    ROOM_NOT_MADE = "RoomNotMade"
    CLASS_CONFLICT = "DeviceClassConflict"
    EXTENDED_RESOURCE_TAKEN = "ExtendedResourceTaken"
    NODE_CLASS = "NodeClassInvalid"
    MIGNODE_UNREADABLE = "MigNodeUnreadable"


SPACED = (
    "the API server takes every change of this claim for one of what may not change: opaque "
    "parameters of it or its class were stored with white space between their fields, which it "
    "leaves out when it compares; create the claim anew (or its template, and the pod; or the "
    "class) with parameters as compact JSON, which kubectl sends"
)
"""Message for a claim that cannot be written to, as a field is called immutable that is as it was
(runtime.RawExtension keeps the bytes that a client sent, and each patch encodes them anew)."""


class NodeReason(StrEnum):
    """Reasons of the events of a node's plugin, about its Node and about claims."""

    IN_USE = "SliceInUse"
    NOT_REMOVED = "SliceNotRemoved"
    LOST = GpuReason.SLICE_LOST
    RESTORED = "SliceRestored"
    PREPARE_FAILED = PREPARE_FAILED
    STATUS_REFUSED = "ClaimStatusRefused"
    XID_ERROR = GpuReason.XID_ERROR
    RECOVERY_REQUIRED = GpuReason.RECOVERY_REQUIRED
    RECOVERY_ADVISED = GpuReason.RECOVERY_ADVISED
    FABRIC_NOT_READY = GpuReason.FABRIC_NOT_READY
    COMPUTE_MODE = GpuReason.COMPUTE_MODE
    VIRTUALIZED = GpuReason.VIRTUALIZED
    CONFIDENTIAL = GpuReason.CONFIDENTIAL
    GPU_LOST = GpuReason.GPU_LOST
    MPS_DOWN = GpuReason.MPS_DOWN
    RECOVERED = "GpuRecovered"
    NVML_ERROR = GpuReason.NVML_ERROR
    NVML_HANG = GpuReason.NVML_HANG
    NO_PERMISSION = GpuReason.NO_PERMISSION
    XIDS_UNSUPPORTED = "XidEventsUnsupported"
    FOREIGN = "ForeignInstance"
    UNWRITABLE = "JournalUnwritable"
    WRITABLE = "JournalWritable"
    CORRUPTED = "CheckpointCorrupted"
    REBUILT = "JournalRebuilt"
    MIG_ENABLED = "MIGModeEnabled"
    MIG_PENDING = GpuReason.MIG_PENDING
    MIG_LEFT_OFF = "MIGModeLeftOff"
    MIG_DISABLED = "MIGModeDisabled"
    LAYOUT_APPLIED = "LayoutApplied"
    LAYOUT_PENDING = GpuReason.LAYOUT_PENDING
    LAYOUT_FAILED = GpuReason.LAYOUT_FAILED
    MIG_MANAGER = GpuReason.MIG_MANAGER
    DEVICE_PLUGIN = GpuReason.DEVICE_PLUGIN
    DRIVER_INCOMPLETE = "DriverIncomplete"
    NVIDIA_DRA = GpuReason.NVIDIA_DRA
    TAKEOVER = GpuReason.TAKEOVER
    TAKEN_OVER = "NodeTakenOver"
    HANDED_BACK = GpuReason.HANDED_BACK
    INSTANCE_REMOVED = "ForeignInstanceRemoved"
    PAUSED = GpuReason.PAUSED
    RELEASED = GpuReason.RELEASED
    BACK_IN_SERVICE = "GpuBackInService"
    LIBRARY_REPLACED = "DriverLibraryReplaced"
    NO_SLICES = "SlicesNotPublished"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Obstacle to an allocation: ``reason`` for programs, ``message`` for people."""

    reason: Reason
    message: str
