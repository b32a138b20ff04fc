"""What an explanation says, for people and for programs alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cli.site.occupancy import Slot
from dra.gpu.inventory import ClaimRef


class State(StrEnum):
    """Of a pod, or of a claim, as far as its slices go."""

    RUNNING = "Running"
    ALLOCATED = "Allocated"
    STARTING = "Starting"
    WAITING = "Waiting"
    ENDED = "Ended"


class Why(StrEnum):
    """Reasons of findings, nodes and GPUs beside those of controller, node fit and MigNode."""

    FITS = "Fits"
    NO_ROOM = "NoRoom"
    NO_ROOM_TOGETHER = "NoRoomTogether"
    FOREIGN = "ForeignInstance"
    RECLAIMING = "Reclaiming"
    HELD_WHOLE = "HeldWhole"
    NO_SUCH_DEVICE = "NoSuchDevice"
    MIG_OFF = "MIGDisabled"
    MODE_PENDING = "MIGModePending"
    DRAINED = "Drained"
    NOT_READY = "DriverNotReady"
    WITHHELD = "Withheld"
    ELSEWHERE = "AllocatedElsewhere"
    BOUND = "BoundElsewhere"
    NO_NODE = "NoSuchNode"
    BY_SCHEDULER = "AllocatedByScheduler"
    NO_MIGNODE = "NoMigNode"
    NOT_LEADING = "ControllerNotRunning"
    PLUGIN_GONE = "PluginNotRunning"
    GATED = "SchedulingGated"
    CLAIM_MISSING = "ClaimMissing"
    TEMPLATE_MISSING = "TemplateMissing"
    CLAIM_NOT_MADE = "ClaimNotCreated"
    CLAIM_GOING = "ClaimTerminating"
    OTHER_OWNER = "ClaimOfAnotherPod"
    NOT_OURS = "NotThisDriver"
    NO_CLAIMS = "NoClaims"
    BY_LIMITS = "AskedByLimits"
    NO_CONSUMER = "NoPod"
    SOON = "AboutToBeAllocated"
    NOT_SCHEDULED = "NotScheduled"
    PREPARING = "Preparing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that stands in the way, and what can be done about it."""

    reason: str
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """Whether a GPU could serve a request now, and if not why and because of whom.

    ``cost`` grows with what would have to go for the request to fit.
    """

    name: str
    reason: str
    message: str
    blockers: tuple[Slot, ...] = ()
    cost: int = 0


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """Whether a node could serve all requests now. A misfit of the node itself goes first."""

    name: str
    reason: str
    message: str
    gpus: tuple[GpuAnswer, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether nothing of this node stands in the way."""
        return self.reason == Why.FITS


@dataclass(frozen=True, slots=True)
class Seat:
    """A device that a claim has: where it is and what became of it there."""

    claim: ClaimRef
    node: str
    device: str
    slot: Slot | None
    ready: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """The latest event of this driver, kubelet or the scheduler about the object."""

    source: str
    reason: str
    message: str
    at: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer. ``findings`` are in the order of their weight: the first is the blocker."""

    kind: str
    namespace: str
    name: str
    state: State
    findings: tuple[Finding, ...] = ()
    seats: tuple[Seat, ...] = ()
    nodes: tuple[NodeAnswer, ...] = ()
    told: tuple[Told, ...] = ()
    wanted: tuple[str, ...] = ()
