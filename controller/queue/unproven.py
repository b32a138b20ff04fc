"""Allocations that are of use only once another driver has served the same pod, few at a time.

kube-scheduler allocates for the other driver once our devices are there, or takes ours back. Where
it is not known which nodes the other driver could serve (``dra.claims.otherdevices``), or what is
known proves wrong (of DeviceTaintRules and counters it knows nothing), pods that are alike are not
all sent to nodes that none of them was taken on: one is allocated, and the next when that is proven
(another driver has served the pod) or refuted (it was taken back). What is proven earns that more
may be unproven at a time, so that what is allocated in vain stays a fifth of that where it can.
Where most were in vain so far, a quarter as many may be at a time, on a node each, so that each of
many nodes is tried soon.

Whoever has no answer for ``PATIENCE_SECONDS`` does not keep others from being tried any longer.
Whoever was refused more often is tried after others: kube-scheduler may not look at it for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from controller.queue.pod_queue import PodQueue
from controller.reporting.report import Reporter
from dra.claims.claims import Claim
from dra.claims.reasons import Obstacle, Reason
from dra.common.cache import BoundedCache
from dra.pods.pods import Pod

PATIENCE_SECONDS = 10.0
"""Time without an answer; who waits for others as long is told."""

LOOK_AGAIN_SECONDS = 60.0
"""Pause after which a pod that waits for others is looked at although nothing happened."""

SHARE = 0.2
"""Allocations that may be in vain for each one that was not."""

IN_VAIN = 4
"""Allocations in vain, more than those that were not, for each further one at a time."""

MOST = 32
"""Allocations that may be in vain together, whatever was earned."""

_TEMPLATES = 4096

_OTHERS_FIRST = Obstacle(
    Reason.OTHER_CLAIM,
    "a claim of the pod is for another driver, and where that has devices only kube-scheduler "
    "knows: other pods of the same owner are tried first, or such as ask the same if it has none",
)


class Sent(NamedTuple):
    """A pod that was allocated on ``node``, where others are to serve ``claims``.

    It counts no longer from ``until``.
    """

    until: float
    node: str = ""
    claims: tuple[Claim, ...] = ()


@dataclass(slots=True)
class _Template:
    """``unproven`` are pods by UID. ``held`` are those that wait for others, and since when.

    ``in_vain`` is by how many more were refuted than proven.
    """

    earned: float = 0.0
    in_vain: int = 0
    unproven: dict[str, Sent] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)

    @property
    def at_once(self) -> int:
        """Number of pods that may be unproven."""
        return 1 + max(0, int(self.earned), min(MOST, self.in_vain // IN_VAIN))


class Unproven:
    """Pods by what ``template_of`` says. ``now`` gives monotonic seconds. Not thread-safe.

    Whoever waits for others is in ``queue``, and looked at when one of these is proven, refuted or
    out of time.
    """

    def __init__(
        self,
        queue: PodQueue,
        reporter: Reporter,
        template_of: Callable[[Pod], str],
        *,
        now: Callable[[], float],
    ) -> None:
        self._queue = queue
        self._reporter = reporter
        self._template = template_of
        self._now = now
        self._templates: BoundedCache[str, _Template] = BoundedCache(_TEMPLATES)
        self._template_of: dict[str, str] = {}
        self._refusals: Counter[str] = Counter()

    def hold(self, pod: Pod, *, is_known: bool) -> bool:
        """Have ``pod`` wait if enough of its template are unproven; True when it does.

        Not so where ``is_known`` which nodes the other driver could serve, unless more was refuted
        of that than proven.
        """
        template, now = self._template(pod), self._now()
        known = self._templates.find(template)
        if known is None or (is_known and known.earned >= 0):
            return False
        others = sum(sent.until > now for uid, sent in known.unproven.items() if uid != pod.uid)
        refusals, long_ago = self._refusals[pod.uid], now - PATIENCE_SECONDS
        is_next = all(
            self._refusals[uid] >= refusals or since <= long_ago
            for uid, since in known.held.items()
        )
        if others < known.at_once and is_next:
            known.held.pop(pod.uid, None)
            return False
        told_at = known.held.setdefault(pod.uid, now) + PATIENCE_SECONDS
        if now >= told_at:
            self._reporter.waiting(pod, _OTHERS_FIRST, [])
            told_at = now + LOOK_AGAIN_SECONDS
        self._template_of[pod.uid] = template
        # Of a group one is looked at: those that were refused as often are next together.
        self._queue.wait(pod, ("unproven", template, refusals), at=told_at)
        return True

    def sent(self) -> Iterator[Sent]:
        """All pods that are unproven and not out of time."""
        now = self._now()
        for known in self._templates.values():
            yield from (sent for sent in known.unproven.values() if sent.until > now)

    def nodes(self, template: str) -> set[str]:
        """Nodes on which pods of a template are unproven."""
        known, now = self._templates.find(template), self._now()
        return {s.node for s in known.unproven.values() if s.until > now} if known else set()

    def begin(self, pod: Pod, node: str = "", claims: tuple[Claim, ...] = ()) -> None:
        """``pod`` is being allocated on ``node``, where others are to serve ``claims``."""
        template = self._template_of[pod.uid] = self._template(pod)
        known = self._templates.get(template, _Template)
        known.held.pop(pod.uid, None)
        end = self._now() + PATIENCE_SECONDS
        known.unproven[pod.uid] = Sent(end, node, claims)
        self._queue.add(pod, at=end)

    def watch(self, pod: Pod) -> None:
        """``pod`` is allocated, maybe since an earlier leader, and not served by the other."""
        known = self._templates.find(self._template(pod))
        sent = known.unproven.get(pod.uid) if known else None
        if sent is None:
            self.begin(pod)
        elif sent.until > self._now():
            self._queue.add(pod, at=sent.until)
        else:
            self._queue.room_made()

    def prove(self, uid: str) -> None:
        """The pod has what it wants of other drivers, or is bound."""
        self._refusals.pop(uid, None)
        known = self._take(uid)
        if known is not None:
            known.earned = min(MOST, known.earned + SHARE)
            known.in_vain = max(0, known.in_vain - 1)
            self._queue.room_made()

    def refute(self, uid: str) -> None:
        """The allocation of the pod was taken back, and so there is room."""
        known = self._take(uid)
        if known is not None:
            known.earned = max(-1.0, known.earned - 1.0)
            known.in_vain += 1
            self._refusals[uid] += 1

    def forget(self, uid: str) -> None:
        """The pod is gone, or was not allocated after all."""
        self._refusals.pop(uid, None)
        if self._take(uid) is not None:
            self._queue.room_made()

    def _take(self, uid: str) -> _Template | None:
        """Template of which a pod was unproven; it is neither that nor held any longer."""
        known = self._templates.find(self._template_of.pop(uid, ""))
        if known is None:
            return None
        known.held.pop(uid, None)
        return None if known.unproven.pop(uid, None) is None else known
