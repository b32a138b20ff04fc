"""Records of pods, claims and gangs, and the effects of changes.

A record keeps what the controller knows of a pod, claim or gang besides its object. It is made when
there is first something to note, and is dropped when the pod, claim or gang is gone.
"""

from __future__ import annotations

from collections.abc import Hashable
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
from dra.gpu.inventory import ClaimRef
from dra.kube.timing import Backoff
from dra.pods.pods import Pod

Said = dict[str, tuple[Obstacle, float]]
"""By subject, the obstacle that was last told of an object, and the monotonic time of that."""


@dataclass(slots=True)
class Nomination:
    """A pod that waits for ``node``, and of which kube-scheduler is told at the time ``at``.

    ``has_room``: no other pod has to end there.
    ``is_left``: our nomination may still be in its status, as a write failed.
    """

    node: str
    at: float
    has_room: bool
    is_left: bool = False
    pause: Backoff = field(default_factory=lambda: times.growing(times.NOMINATION_AGAIN))


@dataclass(slots=True)
class Marks:
    """Occasions, as times of their nodes, for which kubelet was told to ask again.

    ``read``: the mark that the pod had when it was first seen, at the monotonic time ``since``.
    Occasions that are not later count as told. ``occasions`` are compared for equality only, as a
    node's clock may be set back.
    """

    read: str
    since: float
    occasions: tuple[str, ...] = ()
    pause: Backoff = field(default_factory=lambda: times.growing(times.PREPARE_AGAIN))


@dataclass(slots=True)
class ConditionState:
    """Content of a pod's condition; ``since``: when we wrote it (monotonic), -inf if unknown."""

    allocated: bool
    reason: str
    message: str
    since: float = -inf


@dataclass(slots=True)
class Refusal:
    """A refusal at the monotonic time ``at``: nothing is tried again before ``until``.

    ``why``: what is told meanwhile. ``room``: it stands until room is made after this
    version of ``queue.refused.Room``; None: room is no matter. ``changed``: room was made since,
    which did not help. ``pause``: grows with each refusal, where it is to.
    """

    why: Obstacle
    at: float
    until: float = inf
    room: int | None = None
    changed: bool = False
    pause: Backoff | None = None

    def again(self, now: float) -> float:
        """Refuse it once more at the monotonic time ``now``; returns the seconds of its pause."""
        seconds = self.pause.next_delay() if self.pause is not None else inf
        self.at, self.until = now, now + seconds
        return seconds


@dataclass(slots=True)
class Steered:
    """A pod that was sent to kube-scheduler, for ``node``.

    ``claims``: those for which something foreseen counts; ``profiles``: what that is, "" for a
    whole GPU. ``is_sent``: it was, for certain. ``is_moved``: kube-scheduler chose another node,
    which is ``node`` now. ``is_refused``: it found none. ``is_repeated``: a conflict ended the last
    write, and what was foreseen still counts.
    """

    node: str
    claims: tuple[ClaimRef, ...] = ()
    profiles: tuple[str, ...] = ()
    is_sent: bool = False
    is_moved: bool = False
    is_refused: bool = False
    is_repeated: bool = False


@dataclass(slots=True)
class RoomMaking:
    """Room that others make for a pod. Times are monotonic.

    ``since``: the time from which room is wanted.
    ``left``: how many pods have still to leave by the last plan.
    ``began``: the time when the plan was first carried out.
    ``ended``: UIDs of the pods that were told to end.
    ``moved``: the pod that was evicted last. A new pod of its template is to be served elsewhere
    before ``replaced_by``; ``peers``: UIDs of that template's pods that are not new.
    ``is_under_way``: a write that evicts or ends pods has no answer yet.
    ``request``: the administrator's request; ``request_at``: when it or its last renewal was seen.
    ``over``: the id of a request that is not followed any more.
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
    """A pod, and all that is known of it besides its object. Times are monotonic.

    ``examined``: what it lacks, found in the look that is under way.
    ``gate_lifted``: we have lifted our scheduling gate.
    ``charge_ended``: the node to which it is charged no more, as no scheduler bound it there.
    ``unused_since``: the time from which its allocation is unused. ``hindered``: the reason of what
    keeps it from running then, and the time since which that is the same.
    ``lost_since``: the time from which it cannot go to the node of its allocation.
    ``rest``: its slices were given back, as it could not run. ``costly``: its selectors cost too
    much.
    ``eviction``: the pause before its eviction is asked for again.
    ``naming``: the pause before its claims are written into its status.
    ``budget_until``: the time until which its PodDisruptionBudget is taken to forbid its end.
    ``in_vain``: how often kube-scheduler took its allocation back while another driver was to
    serve it too. ``alike``: the template under which it waits for that driver.
    ``waits_for``: the reason why ``waiting_claims``, UID and creation time of each, wait.
    """

    pod: Pod
    examined: Examined | None = None
    gate_lifted: bool = False
    charge_ended: str = ""
    unused_since: float | None = None
    hindered: tuple[Reason | None, float] = (None, 0.0)
    lost_since: float | None = None
    rest: Refusal | None = None
    costly: Refusal | None = None
    nomination: Nomination | None = None
    marks: Marks | None = None
    eviction: Backoff | None = None
    naming: Backoff | None = None
    room: RoomMaking | None = None
    steered: Steered | None = None
    budget_until: float = -inf
    in_vain: int = 0
    alike: str = ""
    waits_for: Reason | None = None
    waiting_claims: tuple[tuple[str, str], ...] = ()
    said: Said = field(default_factory=dict)
    condition: ConditionState | None = None


@dataclass(frozen=True, slots=True, eq=False)
class AllocationWrite:
    """One claim's part of a decision; ``uncertain``: an earlier write of it may have succeeded.

    ``awaits_slices``: its pod is to be bound once its slices are made.
    """

    wants: ClaimWants
    decision: Decision
    uncertain: bool = False
    awaits_slices: bool = False


@dataclass(slots=True)
class Writing:
    """A write of ours that is under way: it stores ``allocation``, or removes something if None."""

    allocation: Allocation | None


@dataclass(slots=True, eq=False)
class ClaimRecord:
    """All that is known of a claim besides its object. Times are monotonic.

    ``uncertain``: a write without an answer, which may have succeeded.
    ``label_at``: the time when the label with its node is to be written.
    ``unused_since``: the time from which no pod uses it.
    ``blocked_at``: the time, by its node's clock, of a Prepare that failed as another slice was in
    the way.
    ``refused_by``: UUIDs of the GPUs on which its slice could not be made.
    ``awaited``: the time stamp of an allocation for whose slices kube-scheduler may wait, and the
    time when that was first seen.
    """

    ref: ClaimRef
    writing: Writing | None = None
    uncertain: AllocationWrite | None = None
    label_at: float | None = None
    unused_since: float | None = None
    blocked_at: str = ""
    refused_by: frozenset[str] = frozenset()
    awaited: tuple[str, float] | None = None
    said: Said = field(default_factory=dict)


@dataclass(slots=True)
class GangRefusal(Refusal):
    """The obstacle for which a gang was refused, and what that depends on.

    ``failed``: the problem of the pod that found no room.
    ``group``: equal for gangs that wait for the like; one look tells of all of them.
    ``lacking``: the problems of the gang's pods, most urgent first; ``need`` of them need room.
    ``hindered``: pods that could not be served whatever is free, without those looked at since;
    None if the gang was refused for another cause.
    ``version``: the gang's version that was refused.
    ``rests_until``: the monotonic time until which the gang rests, whatever becomes free.
    ``is_called``: one of its pods is to be looked at when that rest is over.
    """

    failed: Problem | None = None
    group: Hashable | None = None
    lacking: tuple[Problem, ...] = ()
    need: int = 0
    hindered: set[ObjectKey] | None = None
    version: int = 0
    rests_until: float = 0.0
    is_called: bool = False


class Sent(NamedTuple):
    """A pod that was allocated on ``node``, where other drivers are to serve ``claims``.

    ``until``: the monotonic time from which it is not counted any more.
    """

    until: float
    node: str = ""
    claims: tuple[Claim, ...] = ()


@dataclass(slots=True)
class TemplateRecord:
    """Pods that are alike: nodes that refused or took one, and what another driver made of them.

    ``refused``: by node, its last refusal; it is ``changed`` if another driver has offered
    something else there since. ``taken``: nodes that took a pod. ``spared``: nodes whose first
    refusal was let pass, with the time of that.

    If the pods wait for another driver too (``serve.placing``):
    ``earned``: how many more than one may be unproven at a time, by what was proven so far.
    ``in_vain``: how many more pods were refuted than proven, at least 0.
    ``unproven``: by UID, pods that are allocated and that the other driver has not served.
    ``held``: by UID, pods that wait for the unproven ones: the monotonic time from which each
    waits, and how often it was refuted.
    """

    refused: dict[str, Refusal] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    spared: dict[str, float] = field(default_factory=dict)
    earned: float = 0.0
    in_vain: int = 0
    unproven: dict[str, Sent] = field(default_factory=dict)
    held: dict[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Number of nodes that are remembered, and one."""
        return 1 + len(self.refused) + len(self.taken) + len(self.spared)

    def forget_nodes(self, since: float) -> None:
        """Forget refusals that were over at the monotonic time ``since``, and all without one."""
        left = {node: r for node, r in self.refused.items() if r.until > since}
        if self.refused and not left:
            self.taken.clear()
            self.spared.clear()
        self.refused = left
        if all(at <= since for at in self.spared.values()):
            self.spared.clear()


@dataclass(frozen=True, slots=True)
class TakenBack:
    """An allocation of ours that somebody else removed."""

    claim: ObjectKey
    node: str


@dataclass(slots=True)
class Effects:
    """Consequences of the changes since the last ``take``.

    ``pods``, ``claims``: pods and claims to look at.
    ``bound``: those of ``pods`` that had no node before.
    ``nodes``: nodes that kube-scheduler may judge differently now.
    ``others``: nodes where another driver may offer something else than before; "" is any node.
    ``gone_pods``, ``gone_gangs``: pods, by their records, and gangs that are gone.
    ``taken_back``: allocations of ours that somebody else removed.
    ``room``: nodes where a pod that did not fit may fit now; "" is any node.
    ``quota``: some namespace may hold less than before.
    ``classes``: the generated DeviceClasses may be out of date.
    ``templates``: templates of limits that are gone, or that no living pod names any more.
    ``opted_in``: namespaces that have opted in to templates of limits.
    ``changed_nodes``: nodes of which the Node or MigNode has changed.
    """

    pods: set[ObjectKey] = field(default_factory=set)
    claims: set[ObjectKey] = field(default_factory=set)
    bound: set[ObjectKey] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    gone_pods: list[PodRecord] = field(default_factory=list)
    gone_gangs: set[GangKey] = field(default_factory=set)
    taken_back: list[TakenBack] = field(default_factory=list)
    room: set[str] = field(default_factory=set)
    quota: bool = False
    classes: bool = False
    templates: set[ObjectKey] = field(default_factory=set)
    opted_in: set[str] = field(default_factory=set)
    changed_nodes: set[str] = field(default_factory=set)

    def take(self) -> Effects:
        if not self:
            return _NONE  # as in most turns
        taken = Effects(*_ALL(self))
        Effects.__init__(self)
        return taken

    def __bool__(self) -> bool:
        return any(_ALL(self))


_ALL = attrgetter(*(each.name for each in fields(Effects)))
_NONE = Effects()
