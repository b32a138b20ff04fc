"""Slices held back for pods that were overtaken too often: what, for whom, and until when.

A hold ends when its pod is served or waits no longer, and when nothing of what it waits for has
become free for as long as it may last. The claims that did not move are then not waited for again
for a multiple of that time, whoever asks: meanwhile others use what is free beside them. The next
hold may last twice as long, so that even a pod that waits for others to end after days is served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from dra.allocator.contention.hold_back import Plan, blockers, memory_in_use
from dra.allocator.fleet.fleet import Fleet
from dra.claims.allocation import Allocation
from dra.gpu.inventory import ClaimRef
from dra.pods.pods import Pod

FIRST_SECONDS = 300.0
"""Time for which slices are held back at first although nothing else becomes free."""

LONGEST_SECONDS = 86400.0

REST_FACTOR = 8
"""Rest of claims that did not move, as a multiple of the time that they were waited for."""


@dataclass(slots=True)
class Hold:
    """Slices held back for ``pod``. ``blocked`` memory slices of it were in use at ``since``."""

    pod: Pod
    plan: Plan
    since: float
    blocked: int
    lasts: float
    ref: ClaimRef = field(init=False)

    def __post_init__(self) -> None:
        namespace, name = self.pod.key
        self.ref = ClaimRef(namespace, f"of pod {name}, next in line", f"next:{self.pod.uid}")

    @property
    def node(self) -> str:
        """The node on which slices are held back."""
        return self.plan.decision.node


@dataclass(frozen=True, slots=True)
class _Unmoved:
    """A claim that is not waited for before ``until``, and then for as long as ``lasts``."""

    until: float
    lasts: float


class HeldBack:
    """One hold a pod, counted in ``fleet``. ``now`` gives monotonic seconds. Not thread-safe."""

    def __init__(self, fleet: Fleet, now: Callable[[], float]) -> None:
        self._fleet = fleet
        self._now = now
        self._holds: dict[str, Hold] = {}
        self._unmoved: dict[str, _Unmoved] = {}

    def of(self, pod_uid: str) -> Hold | None:
        """Slices held back for a pod."""
        return self._holds.get(pod_uid)

    def yielding_to(self, pod: Pod) -> frozenset[str]:
        """UIDs of the holds that do not bind ``pod``: its own, and those of lower priority."""
        return frozenset(
            hold.ref.uid
            for hold in self._holds.values()
            if hold.pod.uid == pod.uid or hold.pod.priority < pod.priority
        )

    def unmoving(self, pod: Pod) -> frozenset[str]:
        """UIDs of what ``pod`` is not to wait for: claims that rest, and holds that bind it."""
        now, yielding = self._now(), self.yielding_to(pod)
        resting = {uid for uid, unmoved in self._unmoved.items() if unmoved.until > now}
        return frozenset(resting | (self._refs() - yielding))

    def hold(self, pod: Pod, plan: Plan) -> list[str]:
        """Hold back what ``plan`` says; returns the nodes where something is free for that."""
        before = self._holds.get(pod.uid)
        if before is not None and before.plan.decision == plan.decision:
            return []
        freed = [self._drop(before)] if before is not None else []
        node = plan.decision.node
        # Those are to look for another place.
        others = [h for h in self._holds.values() if h.node == node]
        freed += [self._drop(h) for h in others if h.pod.priority < pod.priority]
        waited_for = (self._unmoved.get(u) for u in blockers(plan.decision, self._fleet))
        lasts = max((u.lasts for u in waited_for if u is not None), default=FIRST_SECONDS)
        hold = Hold(pod, plan, self._now(), plan.blocked, lasts)
        if before is not None and before.blocked <= plan.blocked:  # no nearer to its end for that
            hold.since, hold.blocked = before.since, before.blocked
        self._holds[pod.uid] = hold
        devices = tuple(
            p.allocated(self._fleet.driver, plan.decision.pool) for p in plan.decision.picks
        )
        self._fleet.hold(hold.ref, Allocation(devices, node))
        return freed

    def leave(self, pod_uid: str) -> str:
        """The pod waits no longer; returns the node where that makes room, or ""."""
        hold = self._holds.get(pod_uid)
        return self._drop(hold) if hold is not None else ""

    @property
    def due(self) -> float | None:
        """The monotonic time at which the next hold may have lasted long enough."""
        return min((h.since + h.lasts for h in self._holds.values()), default=None)

    def note_room(self, nodes: AbstractSet[str]) -> None:
        """Something became free on ``nodes``: what is waited for there has moved, perhaps."""
        for hold in self._holds.values():
            if hold.node in nodes:
                fleet = self._fleet.without([hold.ref.uid])
                blocked = memory_in_use(hold.plan.decision, fleet)
                if blocked < hold.blocked:
                    hold.since, hold.blocked = self._now(), blocked

    def expire(self) -> Iterator[Hold]:
        """End the holds for which nothing has become free for too long; yields them."""
        now = self._now()
        for hold in [h for h in self._holds.values() if h.since + h.lasts <= now]:
            fleet = self._fleet.without([hold.ref.uid])
            lasts = min(LONGEST_SECONDS, 2 * hold.lasts)
            for uid in blockers(hold.plan.decision, fleet) - self._refs():
                self._unmoved[uid] = _Unmoved(now + REST_FACTOR * hold.lasts, lasts)
            self._drop(hold)
            yield hold

    def forget_claim(self, uid: str) -> None:
        """The claim is gone: it has moved."""
        self._unmoved.pop(uid, None)

    def _refs(self) -> frozenset[str]:
        return frozenset(hold.ref.uid for hold in self._holds.values())

    def _drop(self, hold: Hold) -> str:
        self._holds.pop(hold.pod.uid, None)
        self._fleet.release(hold.ref.uid)
        return hold.node
