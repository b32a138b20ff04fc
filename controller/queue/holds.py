"""Line of waiting pods and gangs, and what is held back for those who were overtaken too often.

A hold is for a pod, or for a gang: then it has a part for each of its pods, and no part is without
the others. It ends when all are served or wait no longer, and when nothing of what it waits for has
become free for as long as it may last. The claims that did not move are then not waited for again
for a multiple of that time, whoever asks: meanwhile others use what is free beside them. Pods and
claims can be made anew, so nothing is held back on its nodes for a while either, whatever ended it
before its waiter was served. The waiter's next hold may last twice as long, so that even a pod that
waits for others to end after days is served; but not once all that is left to wait for are claims
that did not move before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from controller import times
from controller.cluster.cluster import Cluster
from dra.allocator.contention import blockers, memory_in_use
from dra.allocator.fleet import Fleet
from dra.allocator.problem import Decision, Problem
from dra.claims.allocation import Allocation
from dra.common.resources import ObjectKey
from dra.gangs.membership import GangKey
from dra.gpu.inventory import ClaimRef
from dra.pods.pods import Pod

OVERTAKEN = 20
"""Pods that may be served before one that has waited longer or is more urgent, or a gang."""

_REMEMBERED = 4096
"""Served pods that are remembered; whoever was not looked at for longer was overtaken by them."""

Urgency = tuple[int, str, str, str]


def urgency(pod: Pod) -> Urgency:
    """Place of a pod in the line: higher priority first, then older, then by name."""
    return (-pod.priority, pod.created, *pod.key)


def priority(place: Urgency) -> int:
    return -place[0]


@dataclass(frozen=True, slots=True)
class Waiter:
    """Somebody who waits for room: a pod by itself, or a gang, which is served as one.

    ``name`` is in words, ``place`` in the line.
    """

    uid: str
    name: str
    place: Urgency


def pod_waiter(pod: Pod) -> Waiter:
    return Waiter(pod.uid, f"pod {pod}", urgency(pod))


def gang_uid(gang: GangKey) -> str:
    return f"gang:{gang}"


def gang_waiter(gang: GangKey, lacking: Sequence[Problem], need: int) -> Waiter:
    """A gang that waits for ``need`` of its pods, of which ``lacking`` are in their order.

    Its place is that of the last of those: it is as urgent as all of them are, and no older.
    """
    return Waiter(gang_uid(gang), str(gang), urgency(lacking[need - 1].pod))


@dataclass(slots=True)
class _Waiting:
    """``read`` is the number of served pods that are in ``overtaken`` already, if they are."""

    urgency: Urgency
    since: float
    read: int
    overtaken: int = 0


class Line:
    """Waiting pods and gangs by UID. ``now`` gives monotonic seconds. Not thread-safe.

    Who was served is written down once, and counted when somebody asks: thousands may wait.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._waiting: dict[str, _Waiting] = {}
        self._served: list[Urgency] = []
        self._forgotten = 0

    def wait(self, uid: str, place: Urgency) -> None:
        """Somebody with that place waits until something becomes free."""
        known = self._waiting.get(uid)
        if known is None or known.urgency != place:
            read = self._forgotten + len(self._served)
            self._waiting[uid] = _Waiting(place, self._now(), read)

    def leave(self, uid: str) -> None:
        self._waiting.pop(uid, None)

    def served(self, pod: Pod) -> None:
        if not self._waiting:
            return
        self._served.append(urgency(pod))
        if len(self._served) >= 2 * _REMEMBERED:
            del self._served[:_REMEMBERED]
            self._forgotten += _REMEMBERED

    def is_due(self, uid: str) -> bool:
        """True if it was overtaken too often, or once after a long wait."""
        known = self._waiting.get(uid)
        if known is None:
            return False
        # Beyond the bound nobody needs to know how often it was overtaken.
        known.overtaken += max(0, self._forgotten - known.read)
        start = max(0, known.read - self._forgotten)
        if known.overtaken < OVERTAKEN:
            known.overtaken += sum(other > known.urgency for other in self._served[start:])
        known.read = self._forgotten + len(self._served)
        is_patient = self._now() - known.since < times.OVERTAKEN_ONCE
        return known.overtaken >= (OVERTAKEN if is_patient else 1)


NODE_REST_FACTOR = 4
"""Rest of nodes on which a hold was in vain, as a multiple of the time that it lasted."""

REST_FACTOR = 40
"""Rest of claims that did not move, as a multiple of the time that they were waited for."""

Places = Mapping[str, tuple[Pod, Decision]]
"""Devices to hold back for pods, by their UIDs."""


@dataclass(slots=True)
class Hold:
    """Slices held back for ``waiter``, by the UIDs of its pods, from ``began`` on.

    ``blocked`` memory slices of it were in use at ``since``. ``is_made``: others leave it for the
    waiter, so that no other place is looked for.
    """

    waiter: Waiter
    places: dict[str, tuple[Pod, Decision]]
    began: float
    since: float
    blocked: int
    lasts: float
    is_made: bool = False

    @property
    def uids(self) -> frozenset[str]:
        return frozenset(map(uid_of, self.places))

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(decision.node for _, decision in self.places.values())

    @property
    def pod(self) -> ObjectKey:
        return next(iter(self.places.values()))[0].key

    def blockers(self, fleet: Fleet) -> frozenset[str]:
        """UIDs of the claims that have some of it now."""
        found = (blockers(decision, fleet) for _, decision in self.places.values())
        return frozenset().union(*found)

    def memory_in_use(self, fleet: Fleet) -> int:
        """Memory slices of it that somebody has now."""
        return sum(memory_in_use(decision, fleet) for _, decision in self.places.values())


class HeldBack:
    """One hold a waiter, counted in the books. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(self, cluster: Cluster, now: Callable[[], float]) -> None:
        self._cluster = cluster
        self._fleet = cluster.fleet
        self._now = now
        self._holds: dict[str, Hold] = {}
        self._unmoved: dict[str, float] = {}
        """Claims that did not move, and until when they are not waited for."""
        self._resting: dict[str, float] = {}
        """Nodes on which nothing is held back, and until when."""
        self._patience: dict[str, float] = {}

    def of(self, uid: str) -> Hold | None:
        """Slices held back for a waiter."""
        return self._holds.get(uid)

    def yielding_to(self, uid: str, rank: int) -> frozenset[str]:
        """UIDs of what does not bind a waiter: its own, and what is held for lower priorities."""
        found = (
            hold.uids
            for hold in self._holds.values()
            if hold.waiter.uid == uid or priority(hold.waiter.place) < rank
        )
        return frozenset().union(*found)

    def unmoving(self, waiter: Waiter) -> frozenset[str]:
        """UIDs of what is not to be waited for: claims that rest, and holds that bind it."""
        now, yielding = self._now(), self.yielding_to(waiter.uid, priority(waiter.place))
        known = self._cluster.claim_index.key_of_uid  # what is gone has moved
        self._unmoved = {uid: until for uid, until in self._unmoved.items() if uid in known}
        resting = {uid for uid, until in self._unmoved.items() if until > now}
        self._resting = {node: until for node, until in self._resting.items() if until > now}
        own = self._holds.get(waiter.uid)
        for node in self._resting.keys() - (own.nodes if own is not None else frozenset()):
            resting |= self._fleet.claims_on(node)
        return frozenset(resting | (self._uids() - yielding))

    def hold(
        self, waiter: Waiter, places: Places, *, made_in: float | None = None
    ) -> frozenset[str]:
        """Hold back ``places``; returns the nodes where something is free for that.

        Others are to leave them within ``made_in`` seconds, if given.
        """
        before = self._holds.get(waiter.uid)
        if before is not None and before.places == places:
            return frozenset()
        freed = self._drop(before) if before is not None else frozenset[str]()
        now = self._now()
        hold = Hold(waiter, dict(places), now, now, 0, times.HOLD[0])
        has = hold.blockers(self._fleet)
        for other in [*self._holds.values()]:
            yields = priority(other.waiter.place) < priority(waiter.place) and other.uids & has
            if yields or other.places.keys() & places.keys():
                freed |= self._drop(other)  # it is to look for another place
        hold.is_made = made_in is not None
        hold.lasts = self._lasts(hold, has) if made_in is None else made_in
        hold.blocked = hold.memory_in_use(self._fleet)
        if before is not None and before.is_made == hold.is_made:
            hold.began = before.began
            if before.blocked <= hold.blocked:  # no nearer to its end for that
                hold.since, hold.blocked = before.since, before.blocked
        self._holds[waiter.uid] = hold
        for uid, (pod, decision) in hold.places.items():
            namespace, name = pod.key
            ref = ClaimRef(namespace, f"of pod {name}, next in line", uid_of(uid))
            self._fleet.hold(ref, _allocation(decision, self._fleet.driver))
        return freed

    def leave(self, uid: str) -> frozenset[str]:
        self._patience.pop(uid, None)
        hold = self._holds.get(uid) or self._with(uid)
        return self._drop_in_vain(hold) if hold is not None else frozenset()

    def serve(self, pod_uid: str) -> frozenset[str]:
        """A pod was served; returns the nodes where that makes room for others."""
        hold = self._with(pod_uid)
        if hold is None:
            return frozenset()
        if len(hold.places) == 1:
            return self._drop(hold)
        _, decision = hold.places.pop(pod_uid)
        self._fleet.release(uid_of(pod_uid))
        fleet = self._fleet.without(hold.uids)
        hold.since, hold.blocked = self._now(), hold.memory_in_use(fleet)
        return frozenset({decision.node})

    @property
    def due(self) -> float | None:
        return min((h.since + h.lasts for h in self._holds.values()), default=None)

    def note_room(self, nodes: AbstractSet[str]) -> None:
        """Something became free on ``nodes``: what is waited for there has moved, perhaps."""
        for hold in self._holds.values():
            if hold.nodes & nodes:
                fleet = self._fleet.without(hold.uids)
                blocked = hold.memory_in_use(fleet)
                if blocked < hold.blocked:
                    hold.since, hold.blocked = self._now(), blocked
                    if not hold.is_made:
                        hold.lasts = self._lasts(hold, hold.blockers(fleet))

    def expire(self) -> Iterator[tuple[Hold, frozenset[str]]]:
        """End the holds for which nothing has become free for too long; yields them.

        With each come the nodes where that makes room.
        """
        if not self._holds:
            return
        now = self._now()
        for hold in [h for h in self._holds.values() if h.since + h.lasts <= now]:
            fleet = self._fleet.without(hold.uids)
            lasts = min(times.HOLD[1], 2 * hold.lasts)
            for uid in hold.blockers(fleet) - self._uids():
                self._unmoved[uid] = now + REST_FACTOR * hold.lasts
            self._patience[hold.waiter.uid] = lasts
            yield hold, self._drop_in_vain(hold)

    def _lasts(self, hold: Hold, has: AbstractSet[str]) -> float:
        """Time for which the claims ``has`` may block a hold."""
        if has <= self._unmoved.keys():
            return times.HOLD[0]
        return self._patience.get(hold.waiter.uid, times.HOLD[0])

    def _uids(self) -> frozenset[str]:
        return frozenset().union(*(hold.uids for hold in self._holds.values()))

    def _with(self, pod_uid: str) -> Hold | None:
        return next((h for h in self._holds.values() if pod_uid in h.places), None)

    def _drop_in_vain(self, hold: Hold) -> frozenset[str]:
        now = self._now()
        for node in hold.nodes:
            self._resting[node] = now + NODE_REST_FACTOR * (now - hold.began)
        return self._drop(hold)

    def _drop(self, hold: Hold) -> frozenset[str]:
        self._holds.pop(hold.waiter.uid, None)
        for uid in hold.uids:
            self._fleet.release(uid)
        return hold.nodes


def uid_of(pod_uid: str) -> str:
    """UID under which is counted what is held back for a pod."""
    return f"next:{pod_uid}"


def _allocation(decision: Decision, driver: str) -> Allocation:
    devices = (p.allocated(driver, decision.pool) for p in decision.picks)
    return Allocation(tuple(devices), decision.node)
