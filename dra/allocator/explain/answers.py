"""Answers of nodes and GPUs to a problem, as values that programs render for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from dra.claims.reasons import NodeReason, Obstacle
from dra.gpu.geometry import Placement
from dra.gpu.reasons import GpuReason


class Detail(Enum):
    """Amount of detail that an explanation tells.

    ``EVENT`` is for problems that were not solved, and has what a message of 1,000 characters has
    room for; ``BRIEF`` is that of a node without the names of GPUs and claims. ``FULL`` names every
    blocker on every node, and which nodes would do.
    """

    BRIEF = "brief"
    EVENT = "event"
    FULL = "full"


class AnswerReason(StrEnum):
    """Reasons of nodes and GPUs beside those of node fit and of a GPU's plugin."""

    FITS = "Fits"
    NO_ROOM = "NoRoom"
    NO_ROOM_TOGETHER = "NoRoomTogether"
    FOREIGN = NodeReason.FOREIGN
    RECLAIMING = "Reclaiming"
    HELD_WHOLE = "HeldWhole"
    NO_SUCH_DEVICE = "NoSuchDevice"
    MIG_OFF = GpuReason.MIG_OFF
    MODE_PENDING = GpuReason.MIG_PENDING
    DRAINED = GpuReason.DRAINED
    NOT_READY = GpuReason.NOT_READY
    UNAVAILABLE = GpuReason.UNAVAILABLE


@dataclass(frozen=True, slots=True)
class Blocker:
    """A claim or instance in the way; no placement for one that holds the whole GPU.

    ``holder`` is its name with what is the matter. ``claim_uid`` and ``namespace`` are empty for an
    instance that no claim has.
    """

    holder: str
    claim_uid: str
    namespace: str
    placement: Placement | None


@dataclass(frozen=True, slots=True)
class GpuAnswer:
    """Answer of a GPU: it could serve what is asked for now, or why not and because of whom.

    ``name`` is empty where the answer is that of several GPUs. In full detail the ``least`` first
    of the ``blockers`` are those that would have to go at the least, and ``cost`` grows with what
    they are.
    """

    name: str
    reason: str
    message: str
    blockers: tuple[Blocker, ...] = ()
    least: int = 0
    cost: int = 0


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """Answer of a node: it could serve everything now, or why not.

    A misfit of the node goes first. ``message`` is empty where the answers of its GPUs say all.
    """

    reason: str
    message: str = ""
    gpus: tuple[GpuAnswer, ...] = ()

    @property
    def fits(self) -> bool:
        """True if nothing of this node stands in the way."""
        return self.reason == AnswerReason.FITS


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation why a problem is not solved; the answers of nodes by name.

    ``namespace`` is the pod's. ``obstacle`` stands in the way on all nodes, whatever is free there.
    ``given_up`` says that the search was too hard, ``others`` what is true of other alternatives,
    ``schedulers`` whose GPUs are not the controller's to allocate: all are empty otherwise.
    """

    namespace: str
    obstacle: Obstacle | None = None
    nodes: Mapping[str, NodeAnswer] = field(default_factory=dict)
    given_up: str = ""
    others: str = ""
    schedulers: str = ""

    @property
    def fits(self) -> bool:
        """True if a node would do."""
        return any(answer.fits for answer in self.nodes.values())
