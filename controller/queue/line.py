"""Line of waiting pods and gangs: bounded overtaking, and slices held back for the overtaken.

Pods that ask for little take slices as soon as they are free. A pod that asks for much, or a gang,
may therefore never find enough slices at one time. A waiter (pod or gang) that was overtaken too
often is next in line: the slices that it needs are held back as they become free, unless claims
that block them have not moved before. Places are looked for in parts, for one waiter at a time.

A hold has a part for each pod of its waiter. It ends when all are served or wait no longer, and in
vain when none of its slices has become free for as long as it may last. Then the claims that still
block it are not waited for again, for any waiter, for a multiple of that time, so that others can
use free slices next to them. If a hold ends before its waiter was served, nothing is held back on
its nodes for a while either, since pods and claims can be made anew. The waiter's next hold may
last twice as long, so that even a pod that waits for others to end after days is served. It may not
if only claims that did not move before are left to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import inf

from controller import times
from controller.cluster.cluster import Cluster
from controller.queue.refused import About, Refused
from controller.queue.searches import Decisions, alike
from controller.report.report import Reporter
from dra.allocator.allocate import Allocator
from dra.allocator.fleet import Fleet
from dra.allocator.gpustate import HELD_BACK
from dra.allocator.problem import Decision, Problem
from dra.claims.allocation import Allocation
from dra.claims.reasons import Obstacle, Reason
from dra.common.resources import ObjectKey
from dra.gangs.decision import Placed, Questions, Trial
from dra.gangs.membership import GangKey
from dra.gangs.planning import Planning, blockers, memory_in_use
from dra.gpu.inventory import ClaimRef
from dra.pods.pods import Pod, Urgency, priority, urgency

OVERTAKEN = 20
"""Pods that may be served before a waiter that is older or more urgent than they are."""

NODE_REST_FACTOR = 4
"""Rest of nodes on which a hold was in vain, as a multiple of the time that the hold lasted."""

REST_FACTOR = 40
"""Rest of claims that did not move, as a multiple of the time that a hold waited for them."""

_REMEMBERED = 4096
"""Served pods that are remembered; earlier ones count as overtaking waiters not seen since."""

_SHARE = 10
"""Pause before the next plan, as a multiple of the time that the last one took."""

_PLAN = "plan"
"""Key of the decision that is the plan; one plan is made at a time."""

_NAMED_NODES = 3

_Places = dict[str, tuple[Pod, Decision]]
"""Devices to hold back for pods, by their UIDs."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A pod that is served by itself, or a gang, that waits for room.

    ``name``: its name in messages. ``place``: its place in the line.
    """

    uid: str
    name: str
    place: Urgency


def pod_waiter(pod: Pod) -> Waiter:
    return Waiter(pod.uid, f"pod {pod}", urgency(pod))


def gang_uid(gang: GangKey) -> str:
    return f"gang:{gang}"


def gang_waiter(gang: GangKey, lacking: Sequence[Problem], need: int) -> Waiter:
    """The waiter of a gang that needs slices for ``need`` of its ``lacking`` pods.

    These are sorted by urgency; its place is that of the least urgent pod that it needs.
    """
    return Waiter(gang_uid(gang), str(gang), urgency(lacking[need - 1].pod))


@dataclass(frozen=True, slots=True)
class Need:
    """Room for ``need`` of ``problems``; ``kind`` is equal for waiters that need the like."""

    problems: Sequence[Problem]
    need: int
    kind: Hashable


@dataclass(slots=True)
class _Waiting:
    """``overtaken``: how many of the first ``read`` served pods have overtaken the waiter.

    ``planned``: when places were last looked for. ``patience``: seconds its next hold may last.
    """

    place: Urgency
    since: float
    read: int
    overtaken: int = 0
    planned: float = -inf
    patience: float = times.HOLD[0]


@dataclass(slots=True)
class _Hold:
    """Slices held back for ``waiter`` from ``began`` on, by the UIDs of its pods.

    ``blocked``: how many of their memory slices were in use at ``since``; it ends ``lasts`` seconds
    later. ``is_made``: others leave the slices by plan, so that no other place is looked for.
    """

    waiter: Waiter
    places: _Places
    began: float
    since: float
    blocked: int = 0
    lasts: float = times.HOLD[0]
    is_made: bool = False

    @property
    def uids(self) -> frozenset[str]:
        return frozenset(map(_uid_of, self.places))

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(decision.node for _, decision in self.places.values())

    def blockers(self, fleet: Fleet) -> frozenset[str]:
        """UIDs of the claims that have slices of the hold now."""
        found = (blockers(decision, fleet) for _, decision in self.places.values())
        return frozenset().union(*found)

    def memory_in_use(self, fleet: Fleet) -> int:
        """Number of memory slices of the hold that are in use now."""
        return sum(memory_in_use(decision, fleet) for _, decision in self.places.values())


class WaitingLine:
    """The waiters, their holds and the pods served before. ``now`` gives monotonic seconds.

    A served pod is noted once and compared with a waiter at that waiter's next look, as thousands
    may wait. Each waiter has at most one hold, counted in ``cluster.fleet``. Not thread-safe.
    """

    def __init__(  # noqa: PLR0913 - what it looks at
        self,
        cluster: Cluster,
        allocator: Allocator,
        reporter: Reporter,
        decisions: Decisions,
        refused: Refused,
        *,
        now: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._fleet = cluster.fleet
        self._allocator = allocator
        self._reporter = reporter
        self._decisions = decisions
        self._refused = refused
        self._now = now
        self._waiting: dict[str, _Waiting] = {}
        self._served: list[Urgency] = []
        self._forgotten = 0
        self._holds: dict[str, _Hold] = {}
        self._questions = Questions(self.allocator_for, kind=alike)
        self._planning_for = ""
        self._no_plan_before = -inf

    # -- what is held back, and for whom

    def yielding_to(self, pod: Pod) -> frozenset[str]:
        """UIDs of the held-back devices that ``pod`` may take: its own and of lower priorities."""
        if not self._holds:
            return frozenset()
        return self._yielding(self._uid(pod), pod.priority)

    def allocator_for(self, pod: Pod) -> Allocator:
        """Allocator for ``pod``, to which devices that are held back for others count as used."""
        return self._without(self.yielding_to(pod))

    def own_allocator_for(self, pod: Pod) -> Allocator:
        """As ``allocator_for``, but devices held back for others of its gang count as used too."""
        hold = self._holds.get(self._uid(pod))
        others = hold.uids - {_uid_of(pod.uid)} if hold is not None else frozenset[str]()
        return self._without(self.yielding_to(pod) - others)

    def is_held_for(self, uid: str) -> bool:
        return uid in self._holds

    def hold_made(self, pod: Pod, decision: Decision, *, seconds: float) -> None:
        """Hold back for ``pod`` the devices that others are to leave within ``seconds``."""
        self._hold(pod_waiter(pod), {pod.uid: (pod, decision)}, made_in=seconds)

    def keep(self, waiter: Waiter, places: _Places) -> None:
        """Hold what was decided for ``waiter`` and not written, instead of what was held for it."""
        rested = {*map(str, self._refused.standing(About.HELD_NODE))}
        is_held, nodes = waiter.uid in self._holds, {d.node for _, d in places.values()}
        if places and (is_held or rested.isdisjoint(nodes)):
            self._hold(waiter, places)

    def end_made(self, pod: Pod) -> None:
        """End the hold of devices that others were to leave for ``pod``, which waits on."""
        held = self._holds.get(pod.uid)
        if held is not None and held.is_made:
            self._drop_in_vain(held)
            if (known := self._waiting.get(pod.uid)) is not None:
                known.patience = times.HOLD[0]

    # -- who waits, and who does no longer

    def waits(self, pod: Pod, problem: Problem) -> None:
        """Note that ``pod`` found no room; slices are held back if it was overtaken too often."""
        key = alike(problem)
        self.wait(pod_waiter(pod), Need([problem], 1, pod.uid if key is None else key))

    def wait(self, waiter: Waiter, need: Need) -> None:
        """Note that ``waiter`` found no room for ``need``; that may be held back from now on."""
        now = self._now()
        if self._refused.find(About.HOLD, need.kind) is not None:
            self.leaves(waiter.uid)  # no place was found lately for this kind
            return
        known = self._waiting.get(waiter.uid)
        if known is None or known.place != waiter.place:
            new = _Waiting(waiter.place, now, self._forgotten + len(self._served))
            if known is not None:
                new.planned, new.patience = known.planned, known.patience
            known = self._waiting[waiter.uid] = new
        if now < known.planned + times.PLAN_AGAIN:
            return
        held = self._holds.get(waiter.uid)
        if held is not None and held.is_made:
            return
        if held is not None or self._is_due(known):
            self._hold_back(waiter, need, held)

    def served(self, pod: Pod) -> None:
        if self._waiting:
            self._served.append(urgency(pod))
        if len(self._served) >= 2 * _REMEMBERED:
            del self._served[:_REMEMBERED]
            self._forgotten += _REMEMBERED
        if (hold := self._holding(pod.uid)) is not None:
            self._serve(hold, pod.uid)
        self.leaves(pod.uid)

    def leaves(self, uid: str) -> None:
        """Note that a pod or gang, by its UID, waits no longer.

        The hold of such a pod's gang is released; the gang waits on.
        """
        self._waiting.pop(uid, None)
        if self._planning_for == uid:
            self._decisions.forget(_PLAN)
        if (hold := self._holding(uid)) is not None:
            self._drop_in_vain(hold)

    def waits_with_gang(self, pod: Pod) -> None:
        """Note that ``pod`` waits with its gang: nothing is held back for it alone."""
        if pod.uid in self._holds:
            self.leaves(pod.uid)
        self._waiting.pop(pod.uid, None)

    def _is_due(self, known: _Waiting) -> bool:
        """True if a waiter was overtaken too often, or once after a long wait."""
        # Beyond the bound the exact number does not matter.
        known.overtaken += max(0, self._forgotten - known.read)
        start = max(0, known.read - self._forgotten)
        if known.overtaken < OVERTAKEN:
            known.overtaken += sum(other > known.place for other in self._served[start:])
        known.read = self._forgotten + len(self._served)
        is_patient = self._now() - known.since < times.OVERTAKEN_ONCE
        return known.overtaken >= (OVERTAKEN if is_patient else 1)

    # -- time passes

    @property
    def due(self) -> float:
        return min((h.since + h.lasts for h in self._holds.values()), default=inf)

    def note_room(self, nodes: AbstractSet[str]) -> None:
        """Note that something became free on ``nodes``.

        The time of a hold begins anew if fewer of its memory slices are in use than before.
        """
        for hold in self._holds.values():
            if hold.nodes & nodes:
                fleet = self._fleet.without(hold.uids)
                blocked = hold.memory_in_use(fleet)
                if blocked < hold.blocked:
                    hold.since, hold.blocked = self._now(), blocked
                    if not hold.is_made:
                        hold.lasts = self._lasts(hold, hold.blockers(fleet))

    def look_again(self) -> list[ObjectKey]:
        """Release the holds that have lasted in vain; returns a pod of each, to be looked at."""
        if not self._holds:
            return []
        now, found = self._now(), []
        for hold in [h for h in self._holds.values() if h.since + h.lasts <= now]:
            blocking = hold.blockers(self._fleet.without(hold.uids)) - self._uids()
            for uid in blocking:
                self._refused.note(About.UNMOVED, uid, seconds=REST_FACTOR * hold.lasts)
            self._drop_in_vain(hold)
            if (known := self._waiting.get(hold.waiter.uid)) is not None:
                known.patience = min(times.HOLD[1], 2 * hold.lasts)
            pod, _ = next(iter(hold.places.values()))
            found.append(pod.key)
        return found

    # -- what to hold back

    def _hold_back(self, waiter: Waiter, need: Need, held: _Hold | None) -> None:
        """Look for the slices to hold back, and hold them."""
        stays = self._unmoving(waiter)
        found = self._find_places(waiter, need, stays)
        if found is None:
            return
        self._waiting[waiter.uid].planned = self._now()
        # A pod without a decision gets all its claims with other pods.
        places = {p.rest.pod.uid: (p.rest.pod, p.decision) for p in found if p.decision is not None}
        if not found:
            if held is None and not stays:
                self._stand_aside(waiter, need)
        elif places and (held is None or held.places != places):
            self._hold(waiter, places)
            if held is None or need.need == 1:
                self._tell(waiter, places)

    def _find_places(
        self, waiter: Waiter, need: Need, stays: AbstractSet[str]
    ) -> tuple[Placed, ...] | None:
        """Places for ``need``; None while they are not known, and it is to be asked again.

        Empty if there are none even if all but ``stays`` becomes free.
        """
        problems = need.problems
        claims = tuple(wants.claim.ref.uid for p in problems for wants in p.claims)
        if any(map(self._fleet.counts, claims)):
            if self._planning_for == waiter.uid:
                self._decisions.forget(_PLAN)
            return None  # a claim has an allocation that counts already
        if self._decisions.is_begun(_PLAN):
            if self._planning_for != waiter.uid:
                return None
        elif self._now() < self._no_plan_before:
            return None
        self._planning_for = waiter.uid
        trial = Trial(self._fleet, self._cluster.hosts, pods=len(problems))
        made = self._decisions.decide(
            _PLAN,
            problems[0].pod.key,
            asked=(waiter.uid, need.need, claims),
            begin=lambda: Planning(problems, need.need, trial, self._questions, stays=stays),
        )
        if made is None:
            return None
        self._no_plan_before = self._now() + _SHARE * made.seconds
        return made.outcome

    def _unmoving(self, waiter: Waiter) -> frozenset[str]:
        """UIDs that ``waiter`` is not to wait for: resting claims, and holds that bind it."""
        refused, yielding = self._refused, self._yielding(waiter.uid, priority(waiter.place))
        # What is gone has moved.
        refused.keep(About.UNMOVED, self._cluster.claim_index.key_of_uid.keys())
        resting = {*map(str, refused.standing(About.UNMOVED))}
        own = self._holds.get(waiter.uid)
        rested = {*map(str, refused.standing(About.HELD_NODE))}
        for node in rested - (own.nodes if own is not None else frozenset()):
            resting |= self._fleet.claims_on(node)
        return frozenset(resting | (self._uids() - yielding))

    def _stand_aside(self, waiter: Waiter, need: Need) -> None:
        self._refused.note(About.HOLD, need.kind, seconds=times.PLAN_IN_VAIN)
        self.leaves(waiter.uid)

    def _tell(self, waiter: Waiter, places: _Places) -> None:
        for _, decision in places.values():
            gpus = ", ".join(dict.fromkeys(p.gpu for p in decision.picks))
            message = (
                f"others were served before {waiter.name} too often: what becomes free on {gpus} "
                f"of node {decision.node} is held back for it"
            )
            others = {d.node for _, d in places.values()} - {decision.node}
            if others:
                named = ", ".join(sorted(others)[:_NAMED_NODES])
                more = len(others) - _NAMED_NODES
                named += f" and {more} more" if more > 0 else ""
                message += f", beside that of its other pods on {named}"
            obstacle = Obstacle(Reason.NEXT_IN_LINE, message)
            for ref in dict.fromkeys(pick.claim for pick in decision.picks):
                known = self._cluster.claims.get(ref.key)
                if known is not None:
                    self._reporter.on_claim(known, obstacle, warning=False)

    # -- holds

    def _hold(self, waiter: Waiter, places: _Places, *, made_in: float | None = None) -> None:
        """Hold back ``places``; ``made_in``: seconds within which others are to leave them."""
        before, now = self._holds.get(waiter.uid), self._now()
        if before is not None and before.places == places:
            return
        if before is not None:
            self._drop(before)
        hold = _Hold(waiter, dict(places), now, now, is_made=made_in is not None)
        has = hold.blockers(self._fleet)
        for other in [*self._holds.values()]:
            yields = priority(other.waiter.place) < priority(waiter.place) and other.uids & has
            if yields or other.places.keys() & places.keys():
                self._drop(other)  # it is to look for another place
        hold.lasts = self._lasts(hold, has) if made_in is None else made_in
        hold.blocked = hold.memory_in_use(self._fleet)
        if before is not None and before.is_made == hold.is_made:
            hold.began = before.began
            if before.blocked <= hold.blocked:  # a new place alone does not prolong the hold
                hold.since, hold.blocked = before.since, before.blocked
        self._holds[waiter.uid] = hold
        for uid, (pod, decision) in places.items():
            namespace, name = pod.key
            ref = ClaimRef(namespace, f"{name} (a pod next in line)", _uid_of(uid))
            driver = self._fleet.driver
            devices = (p.allocated(driver, decision.pool) for p in decision.picks)
            self._fleet.hold(ref, Allocation(tuple(devices), decision.node))

    def _serve(self, hold: _Hold, pod_uid: str) -> None:
        """Release the part of ``hold`` of a pod that was served."""
        if len(hold.places) == 1:
            self._drop(hold)
            return
        _, decision = hold.places.pop(pod_uid)
        self._fleet.release(_uid_of(pod_uid))
        hold.since = self._now()
        hold.blocked = hold.memory_in_use(self._fleet.without(hold.uids))
        self._cluster.make_room(decision.node)

    def _lasts(self, hold: _Hold, has: AbstractSet[str]) -> float:
        """Seconds for which the claims ``has`` may block a hold."""
        known = self._waiting.get(hold.waiter.uid)
        if known is None or all(self._refused.knows(About.UNMOVED, uid) for uid in has):
            return times.HOLD[0]
        return known.patience

    def _uid(self, pod: Pod) -> str:
        """UID of a pod as a waiter: that of its gang if there is a hold for the gang."""
        gang = self._cluster.gangs.find(pod.key)
        uid = gang_uid(gang.key) if gang is not None else pod.uid
        return uid if uid in self._holds else pod.uid

    def _holding(self, uid: str) -> _Hold | None:
        """Hold of the waiter or pod with this UID, which may be its gang's; None without one."""
        holds = self._holds
        return holds.get(uid) or next((h for h in holds.values() if uid in h.places), None)

    def _yielding(self, uid: str, rank: int) -> frozenset[str]:
        """UIDs of holds that do not bind a waiter: its own, and those of lower priorities."""
        found = (
            hold.uids
            for hold in self._holds.values()
            if hold.waiter.uid == uid or priority(hold.waiter.place) < rank
        )
        return frozenset().union(*found)

    def _uids(self) -> frozenset[str]:
        return frozenset().union(*(hold.uids for hold in self._holds.values()))

    def _drop_in_vain(self, hold: _Hold) -> None:
        rest = NODE_REST_FACTOR * (self._now() - hold.began)
        for node in hold.nodes:
            self._refused.note(About.HELD_NODE, node, seconds=rest)
        self._drop(hold)

    def _drop(self, hold: _Hold) -> None:
        self._holds.pop(hold.waiter.uid, None)
        for uid in hold.uids:
            self._fleet.release(uid)
        self._cluster.make_room(*hold.nodes)

    def _without(self, uids: AbstractSet[str]) -> Allocator:
        return self._allocator.on(self._fleet.without(uids)) if uids else self._allocator


def _uid_of(pod_uid: str) -> str:
    """UID under which the fleet counts the devices that are held back for a pod."""
    return f"{HELD_BACK}{pod_uid}"
