"""Slices held back for those who were overtaken too often: what, for whom, and until when.

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

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from controller.queue.overtaking.line import priority
from controller.queue.overtaking.waiter import Waiter
from dra.allocator.contention import blockers, memory_in_use
from dra.allocator.fleet import Fleet
from dra.allocator.problem import Decision
from dra.claims.allocation import Allocation
from dra.common.resources import ObjectKey
from dra.gpu.inventory import ClaimRef
from dra.pods.pods import Pod

FIRST_SECONDS = 60.0
"""Time for which slices are held back at first although nothing else becomes free.

Always, where all that is waited for did not move before.
"""

NODE_REST_FACTOR = 4
"""Rest of nodes on which a hold was in vain, as a multiple of the time that it lasted."""

LONGEST_SECONDS = 86400.0

REST_FACTOR = 40
"""Rest of claims that did not move, as a multiple of the time that they were waited for."""

Places = Mapping[str, tuple[Pod, Decision]]
"""Devices to hold back for pods, by their UIDs."""


@dataclass(slots=True)
class Hold:
    """Slices held back for ``waiter``, by the UIDs of its pods, from ``began`` on.

    ``blocked`` memory slices of it were in use at ``since``.
    """

    waiter: Waiter
    places: dict[str, tuple[Pod, Decision]]
    began: float
    since: float
    blocked: int
    lasts: float

    @property
    def uids(self) -> frozenset[str]:
        """UIDs under which it is counted, one for each pod."""
        return frozenset(map(uid_of, self.places))

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes on which slices are held back."""
        return frozenset(decision.node for _, decision in self.places.values())

    @property
    def pod(self) -> ObjectKey:
        """The first of its pods."""
        return next(iter(self.places.values()))[0].key

    def blockers(self, fleet: Fleet) -> frozenset[str]:
        """UIDs of the claims that have some of it now."""
        found = (blockers(decision, fleet) for _, decision in self.places.values())
        return frozenset().union(*found)

    def memory_in_use(self, fleet: Fleet) -> int:
        """Memory slices of it that somebody has now."""
        return sum(memory_in_use(decision, fleet) for _, decision in self.places.values())


class HeldBack:
    """One hold a waiter, counted in ``fleet``. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(self, fleet: Fleet, now: Callable[[], float]) -> None:
        self._fleet = fleet
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
        resting = {uid for uid, until in self._unmoved.items() if until > now}
        self._resting = {node: until for node, until in self._resting.items() if until > now}
        own = self._holds.get(waiter.uid)
        for node in self._resting.keys() - (own.nodes if own is not None else frozenset()):
            resting |= self._fleet.claims_on(node)
        return frozenset(resting | (self._uids() - yielding))

    def hold(self, waiter: Waiter, places: Places) -> frozenset[str]:
        """Hold back ``places``; returns the nodes where something is free for that."""
        before = self._holds.get(waiter.uid)
        if before is not None and before.places == places:
            return frozenset()
        freed = self._drop(before) if before is not None else frozenset[str]()
        now = self._now()
        hold = Hold(waiter, dict(places), now, now, 0, FIRST_SECONDS)
        has = hold.blockers(self._fleet)
        for other in [*self._holds.values()]:
            yields = priority(other.waiter.place) < priority(waiter.place) and other.uids & has
            if yields or other.places.keys() & places.keys():
                freed |= self._drop(other)  # it is to look for another place
        hold.lasts = self._lasts(hold, has)
        hold.blocked = hold.memory_in_use(self._fleet)
        if before is not None:
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
        """A waiter, or a pod of one, waits no longer; returns the nodes where that makes room."""
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
        """The monotonic time at which the next hold may have lasted long enough."""
        return min((h.since + h.lasts for h in self._holds.values()), default=None)

    def note_room(self, nodes: AbstractSet[str]) -> None:
        """Something became free on ``nodes``: what is waited for there has moved, perhaps."""
        for hold in self._holds.values():
            if hold.nodes & nodes:
                fleet = self._fleet.without(hold.uids)
                blocked = hold.memory_in_use(fleet)
                if blocked < hold.blocked:
                    hold.since, hold.blocked = self._now(), blocked
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
            lasts = min(LONGEST_SECONDS, 2 * hold.lasts)
            for uid in hold.blockers(fleet) - self._uids():
                self._unmoved[uid] = now + REST_FACTOR * hold.lasts
            self._patience[hold.waiter.uid] = lasts
            yield hold, self._drop_in_vain(hold)

    def forget_claim(self, uid: str) -> None:
        """The claim is gone: it has moved."""
        self._unmoved.pop(uid, None)

    def _lasts(self, hold: Hold, has: AbstractSet[str]) -> float:
        """Time for which the claims ``has`` may block a hold."""
        if has <= self._unmoved.keys():
            return FIRST_SECONDS
        return self._patience.get(hold.waiter.uid, FIRST_SECONDS)

    def _uids(self) -> frozenset[str]:
        return frozenset().union(*(hold.uids for hold in self._holds.values()))

    def _with(self, pod_uid: str) -> Hold | None:
        """The hold that has a part for a pod."""
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
