"""Records of pods, claims and gangs, and the effects of changes.

A record has what is known and tried of a thing besides what its object says. It is made when
something is first to be noted, and goes with the thing.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields
from math import inf
from operator import attrgetter
from typing import NamedTuple

from api.mignode import RoomRequest
from controller import times
from dra.allocator.problem import Decision, Examined, Problem
from dra.claims.allocation import Allocation
from dra.claims.claims import Claim
from dra.claims.reasons import Obstacle, Reason
from dra.claims.wants import ClaimWants
from dra.common.resources import ObjectKey
from dra.gangs.membership import GangKey
from dra.gpu.inventory import ClaimRef, Reservation
from dra.kube.timing import Backoff
from dra.pods.pods import Pod

Said = dict[str, tuple[Obstacle, float]]
"""Texts last said of a thing, by subject, and the monotonic time of each."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """Reservations for a pod, by claim UID; the node answers before ``until``."""

    decision: Decision
    reservations: Mapping[str, Reservation]
    until: float

    @property
    def claims(self) -> tuple[ClaimRef, ...]:
        return tuple(r.claim for r in self.reservations.values())


@dataclass(slots=True)
class Idle:
    """An allocation that nobody uses, ``since``; and a reason why, since when."""

    since: float
    reason: str
    reason_since: float


@dataclass(slots=True)
class Nomination:
    """A pod that waits for ``node``: kube-scheduler is told of it ``at`` that time.

    ``has_room``: nobody has to end there. ``is_left``: what we said may still stand, as a write had
    no answer.
    """

    node: str
    at: float
    has_room: bool
    is_left: bool = False
    pause: Backoff = field(default_factory=lambda: times.growing(times.NOMINATION_AGAIN))


@dataclass(slots=True)
class Marks:
    """Occasions for which kubelet was told to ask again.

    ``read`` is the mark that the pod had when it was seen first: what is not later counts as told.
    Otherwise times are only told apart, as a node's clock may be set back.
    """

    read: str
    occasions: tuple[str, ...] = ()
    pause: Backoff = field(default_factory=lambda: times.growing(times.PREPARE_AGAIN))


@dataclass(slots=True)
class ConditionState:
    """Content of a pod's condition, and since when it stands there at the earliest."""

    allocated: bool
    reason: str
    message: str
    since: float = -inf


@dataclass(slots=True)
class Rest:
    """Slices were given back for ``why``; they are tried again when ``pause`` is over."""

    why: Obstacle
    pause: Backoff = field(default_factory=lambda: times.growing(times.POD_HINDERED_AGAIN))


@dataclass(slots=True)
class RoomMaking:
    """Room that others make for a pod, which is wanted ``since``; times are monotonic.

    ``left`` pods have still to leave by the last plan; ``began``: the first was told to. ``ended``
    are the UIDs of those that were told to end. ``moved`` is the one of which another is to be
    served elsewhere, none of the ``peers``, UIDs of its template's pods, until ``replaced_by``.
    ``request`` of an administrator was seen at ``request_at``; that with the id ``over`` is no more
    to be followed.
    """

    since: float
    left: int | None = None
    began: float | None = None
    ended: set[str] = field(default_factory=set)
    moved: Pod | None = None
    peers: frozenset[str] = frozenset()
    replaced_by: float = 0.0
    is_under_way: bool = False
    request: RoomRequest | None = None
    request_at: float = 0.0
    over: str = ""
    pause: Backoff = field(default_factory=lambda: times.growing(times.ROOM_AGAIN))


@dataclass(slots=True, eq=False)
class PodRecord:
    """A pod, and all that is known of it besides; times are monotonic.

    ``examined`` is what it lacks, as of the look that is under way. ``gate_lifted``: by us.
    ``charge_ended``: nobody has bound it on that node, which it is charged to no more.
    ``waiting_claims`` wait with it for the reason ``waits_for``: UID and time of creation of each.
    ``lost_since``: it cannot go where its allocation is. ``in_vain``: so often kube-scheduler took
    its allocation back while another driver was awaited for it, as for the template ``alike``.
    ``naming``: the pause before its status is told which claims it has. ``budget_until``: its
    budget forbade then that it ends.
    """

    pod: Pod
    examined: Examined | None = None
    gate_lifted: bool = False
    charge_ended: str = ""
    idle: Idle | None = None
    lost_since: float | None = None
    rest: Rest | None = None
    nomination: Nomination | None = None
    marks: Marks | None = None
    eviction: Backoff | None = None
    reserved: Reserved | None = None
    naming: Backoff | None = None
    room: RoomMaking | None = None
    budget_until: float = -inf
    in_vain: int = 0
    alike: str = ""
    waits_for: Reason | None = None
    waiting_claims: tuple[tuple[str, str], ...] = ()
    said: Said = field(default_factory=dict)
    condition: ConditionState | None = None


@dataclass(frozen=True, slots=True, eq=False)
class AllocationWrite:
    """One claim's part of a decision; ``uncertain``: it may have been written already."""

    wants: ClaimWants
    decision: Decision
    uncertain: bool = False


@dataclass(slots=True)
class Writing:
    """A write of ours under way: of ``allocation``, or one that takes away what there is."""

    allocation: Allocation | None


@dataclass(slots=True, eq=False)
class ClaimRecord:
    """All that is known of a claim besides its object; times are monotonic.

    ``uncertain`` may have been written. ``label_at``: its node's label is written then.
    ``blocked_at``: the time, as its node tells it, of a Prepare that something was in the way of.
    ``refused_by`` are UUIDs of GPUs.
    """

    ref: ClaimRef
    writing: Writing | None = None
    uncertain: AllocationWrite | None = None
    label_at: float | None = None
    unused_since: float | None = None
    blocked_at: str = ""
    refused_by: frozenset[str] = frozenset()
    said: Said = field(default_factory=dict)


@dataclass(slots=True)
class GangRefusal:
    """An obstacle of a gang, and what it depends on.

    ``failed`` is the pod that found no room, up to the version ``room``; one look tells of all
    gangs of a ``group``. ``lacking`` are the pods of which ``need`` are to have room, in their
    order. ``hindered`` are pods that could not be served whatever is free and have not been looked
    at since; None where that was not why. It was found ``at`` a ``version`` of the gang, which
    rests ``until`` then; one pod ``is_called`` to be looked at after that.
    """

    obstacle: Obstacle
    failed: Problem | None = None
    room: int = 0
    group: Hashable | None = None
    lacking: tuple[Problem, ...] = ()
    need: int = 0
    hindered: set[ObjectKey] | None = None
    version: int = 0
    at: float = 0.0
    until: float = 0.0
    is_called: bool = False


class Sent(NamedTuple):
    """A pod that was allocated on ``node``, where others are to serve ``claims``.

    It counts no longer from ``until``.
    """

    until: float
    node: str = ""
    claims: tuple[Claim, ...] = ()


@dataclass(slots=True)
class AlikePods:
    """Pods of one template: what was ``earned``, those ``unproven`` by UID, and those ``held``.

    These wait for others since a monotonic time; with it comes how often each was tried in vain.
    ``in_vain`` is by how many more were refuted than proven.
    """

    earned: float = 0.0
    in_vain: int = 0
    unproven: dict[str, Sent] = field(default_factory=dict)
    held: dict[str, tuple[float, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TakenBack:
    """An allocation of ours that somebody else removed."""

    claim: ObjectKey
    node: str


@dataclass(slots=True)
class Effects:
    """Consequences of the changes since the last ``take``.

    ``room``: the nodes where something that did not fit may fit now, and ``room_anywhere`` where
    that may be any node. ``quota``: a namespace may hold less than before. ``classes``: the
    generated DeviceClasses may be out of date, and ``labels``: those of these nodes may be.
    ``templates``: those of limits that are gone, or that no living pod names any more,
    ``opted_in``: namespaces that have opted in to them.
    ``reserved``: nodes whose MigNodes reserve something else than before. ``nodes`` are those that
    kube-scheduler may judge differently now, ``others`` those where another driver may offer
    something else than before, empty for any, ``failures`` those that tell anew which Prepares
    failed; of pods and claims that are gone there are the records. ``bound`` are those of ``pods``
    that had no node before.
    """

    pods: set[ObjectKey] = field(default_factory=set)
    claims: set[ObjectKey] = field(default_factory=set)
    bound: set[ObjectKey] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    failures: set[str] = field(default_factory=set)
    gone_pods: list[PodRecord] = field(default_factory=list)
    gone_claims: list[ClaimRecord] = field(default_factory=list)
    gone_gangs: set[GangKey] = field(default_factory=set)
    taken_back: list[TakenBack] = field(default_factory=list)
    room: set[str] = field(default_factory=set)
    room_anywhere: bool = False
    quota: bool = False
    classes: bool = False
    templates: set[ObjectKey] = field(default_factory=set)
    opted_in: set[str] = field(default_factory=set)
    labels: set[str] = field(default_factory=set)
    reserved: set[str] = field(default_factory=set)

    def take(self) -> Effects:
        taken = Effects(*_ALL(self))
        Effects.__init__(self)
        return taken

    def __bool__(self) -> bool:
        return any(_ALL(self))


_ALL = attrgetter(*(each.name for each in fields(Effects)))
