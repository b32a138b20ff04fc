"""Nodes that kube-scheduler has refused for pods of one template, left out for a while.

The scheduler takes an allocation back when the pod does not fit the node for a reason that only
the scheduler sees. Each time the node stays out longer, from 5 seconds to 5 minutes. A change of
the node ends the wait, but not sooner than a second after the first refusal, twice as long after
each further one, and does not forgive: nodes that change all the time must not become a hot loop.

What one pod was refused, its like are: a template is tried first where one of it was bound, or
neither the node nor one of its zone or kind was refused, then where of the zone and kind as many
nodes took one as were refused, and then on nodes that were not. A refusal says less once another
driver offers something else there: it may have been for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from dra.kube.timing import Backoff
from dra.pods.nodefit import NodeFacts

FIRST_SECONDS = 5.0
LONGEST_SECONDS = 300.0
SHORTEST_SECONDS = 1.0
_SAME_REFUSAL_SECONDS = 1.0

TOPOLOGIES = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
)
"""Labels of which a refusal says something about the nodes that share them."""

MOST = 50_000
"""Upper bound on the templates and nodes that are remembered: some 300 bytes each."""

REASON = "kube-scheduler took an allocation there back; left out for a while"


@dataclass(slots=True)
class _Refusal:
    """``is_old``: another driver offers something else there since."""

    at: float
    until: float
    backoff: Backoff
    is_old: bool = False

    def ease(self) -> None:
        """Let the node in again soon."""
        soon = SHORTEST_SECONDS * 2.0 ** min(self.backoff.failures - 1, 16)
        self.until = min(self.until, self.at + soon)


class Exclusions:
    """Refusals by template and node. ``now`` gives monotonic seconds. Not thread-safe.

    A template is what ``Cluster.template_of`` says: one of many pods, or the UID of one that is
    like no other. Of too many refusals those of the templates are forgotten that were refused
    least lately.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._refusals: dict[str, dict[str, _Refusal]] = {}
        self._taken: dict[str, set[str]] = {}
        self._spared: dict[str, dict[str, float]] = {}

    def spare(self, template: str, node: str) -> bool:
        """Let a refusal of ``node`` pass: once for a template, False for any further one."""
        self._forget_old()
        spared = self._spared.setdefault(template, {})
        if node in spared:
            return False
        spared[node] = self._now()
        return True

    def refuse(self, template: str, node: str) -> float:
        """Leave ``node`` out for a template; returns for how many seconds.

        What is taken back together counts as one refusal.
        """
        now = self._now()
        self._forget_old()
        nodes = self._refusals[template] = self._refusals.pop(template, {})
        known = nodes.get(node)
        if known is not None and now - known.at < _SAME_REFUSAL_SECONDS:
            return known.until - now
        backoff = (
            known.backoff
            if known
            else Backoff(first=FIRST_SECONDS, limit=LONGEST_SECONDS, jitter=0)
        )
        wait = backoff.next_delay()
        nodes[node] = _Refusal(at=now, until=now + wait, backoff=backoff)
        while self._size() > MOST and len(self._refusals) > 1:
            self.forget(next(iter(self._refusals)))
        return wait

    def excluded(self, template: str) -> dict[str, str]:
        """The nodes that are out for the pod now, with the reason."""
        now = self._now()
        return {n: REASON for n, r in self._refusals.get(template, {}).items() if r.until > now}

    def next_end(self, template: str) -> float | None:
        """The monotonic time at which the next node is let in again."""
        now = self._now()
        ends = [r.until for r in self._refusals.get(template, {}).values() if r.until > now]
        return min(ends, default=None)

    def ease(self, node: str) -> None:
        """The node has changed: let it in again soon."""
        for nodes in self._refusals.values():
            refusal = nodes.get(node)
            if refusal is not None:
                refusal.ease()

    def renew(self, node: str) -> None:
        """Another driver offers something else on ``node``, or on any without one.

        It is let in again soon, and not tried last any more.
        """
        for nodes in self._refusals.values():
            for name in (node,) if node else nodes:
                refusal = nodes.get(name)
                if refusal is not None:
                    refusal.ease()
                    refusal.is_old = True

    def bound(self, template: str, node: str) -> None:
        """A pod of a template was bound to ``node``: it suits, whatever was before."""
        refusals = self._refusals.get(template)
        if refusals is not None:
            refusals.pop(node, None)
            self._taken.setdefault(template, set()).add(node)

    def tried_last(
        self, template: str, nodes: Mapping[str, NodeFacts], unproven: AbstractSet[str]
    ) -> Iterator[AbstractSet[str]]:
        """The nodes to leave out at first, then fewer and fewer, for as long as nothing is found.

        ``nodes`` are all that there are; on ``unproven`` others of the template wait for an answer.
        Nothing is yielded where there was no refusal.
        """
        known = self._refusals.get(template, {})
        old = {name for name, refusal in known.items() if refusal.is_old} & nodes.keys()
        refused = known.keys() & nodes.keys() - old
        taken = self._taken.get(template, set()) & nodes.keys()
        if not refused:
            return
        refusals = Counter(place for name in refused for place in _places(nodes[name]))
        more = Counter(place for name in taken for place in _places(nodes[name]))
        left = nodes.keys() - refused
        untouched = {n for n in left if not any(refusals[p] for p in _places(nodes[n]))}
        mixed = {n for n in left if all(refusals[p] <= more[p] for p in _places(nodes[n]))}
        first = (left & taken) | untouched | old
        for suit in dict.fromkeys((frozenset(first), frozenset(first | mixed), frozenset(left))):
            for better in dict.fromkeys((suit - (unproven - taken), suit)):
                if better:
                    yield nodes.keys() - better

    def _forget_old(self) -> None:
        """Nodes that were not refused again for long are as good as others."""
        now = self._now()
        for template, nodes in [*self._refusals.items()]:
            left = {n: r for n, r in nodes.items() if r.until + LONGEST_SECONDS > now}
            if left:
                self._refusals[template] = left
            elif nodes:
                self.forget(template)
        for template, spared in [*self._spared.items()]:
            if all(at + LONGEST_SECONDS <= now for at in spared.values()):
                del self._spared[template]

    def _size(self) -> int:
        remembered = (*self._refusals.values(), *self._taken.values(), *self._spared.values())
        return len(self._refusals) + sum(map(len, remembered))

    def forget(self, template: str) -> None:
        """The pod that alone is the template is gone."""
        self._refusals.pop(template, None)
        self._taken.pop(template, None)
        self._spared.pop(template, None)


def _places(node: NodeFacts) -> Iterator[tuple[str, str]]:
    """Zone, region and kind of a node, as far as its labels say."""
    return ((key, node.labels[key]) for key in TOPOLOGIES if key in node.labels)
