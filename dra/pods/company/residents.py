"""Pods by the node where they are or are about to be, and by what others look at: their labels.

Pods with equal labels are counted together, so that a term looks at few groups, not at many pods.
Most clusters have few terms: what they look at is kept from the first time on that one does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, TypeVar

from dra.common.resources import ObjectKey
from dra.pods.company.terms import PodTerm
from dra.pods.labelselector import Labels, LabelSelector
from dra.pods.podneeds import PodNeeds
from dra.pods.pods import Pod

MOST_SHUNNING = 2000
"""Terms of the pods of one namespace, equal ones once, by which they shun others."""

_NO_LABELS: Labels = {}
_K = TypeVar("_K")


class _Alike(NamedTuple):
    """Traits of pods of a namespace that are counted together."""

    labels: frozenset[tuple[str, str]]
    bound: bool
    ending: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Pods of a namespace that are alike: how many of them are on which nodes.

    ``bound``: kube-scheduler has put them there; of others only we know where they go. ``ending``:
    they are being deleted.
    """

    namespace: str
    labels: Labels
    bound: bool
    ending: bool
    nodes: Mapping[str, int]


class Shunning(NamedTuple):
    """Required anti-affinity of pods of ``namespace``, which are on ``nodes``."""

    namespace: str
    term: PodTerm
    nodes: Mapping[str, int]


class Residents:
    """A pod is on one node at a time. ``version`` changes with whatever is known here."""

    def __init__(self) -> None:
        self.version = 0
        self._place: dict[ObjectKey, tuple[str, Pod]] = {}
        self._present: dict[str, int] = {}
        self._priorities: dict[int, int] = {}
        self._on: dict[str, dict[ObjectKey, Pod]] | None = None
        self._groups: dict[str, dict[_Alike, dict[str, int]]] = {}
        self._shunning: dict[str, dict[PodNeeds, dict[str, int]]] = {}
        self._far: dict[tuple[str, PodNeeds], dict[str, int]] = {}
        self._users: dict[ObjectKey, dict[ObjectKey, Pod]] = {}
        self._namespaces: dict[str, Labels] = {}

    def place(self, pod: Pod, node: str) -> bool:
        """Put a pod on a node ("" for none); False when nothing changes that others look at."""
        before = self._place.get(pod.key)
        if before is None and not node:
            return False
        same = (
            before is not None
            and before[0] == node
            and before[1].needs is pod.needs
            and _like(before[1]) == _like(pod)
        )
        if before is not None:
            del self._place[pod.key]
            self._settle(before[1], before[0], comes=False)
        if node:
            self._place[pod.key] = node, pod
            self._settle(pod, node, comes=True)
        if same:
            return False
        if before is not None:
            self._count(before[1], before[0], -1)
        if node:
            self._count(pod, node, 1)
        self.version += 1
        return True

    def set_namespace(self, name: str, labels: Labels | None) -> bool:
        """A namespace has these labels, or is gone; False when that is known."""
        if self._namespaces.get(name) == labels:
            return False
        if labels is None:
            del self._namespaces[name]
        else:
            self._namespaces[name] = labels
        self.version += 1
        return True

    def on(self, node: str) -> Collection[Pod]:
        """The pods on a node."""
        if self._on is None:
            self._on = {}
            for key, (where, pod) in self._place.items():
                self._on.setdefault(where, {})[key] = pod
        return self._on.get(node, {}).values()

    @property
    def lowest_priority(self) -> float:
        """The lowest of all pods on nodes; infinity without any."""
        return min(self._priorities, default=inf)

    def users(self, volume_claim: ObjectKey) -> Collection[Pod]:
        """The pods on nodes that use a PersistentVolumeClaim."""
        return self._users.get(volume_claim, {}).values()

    def find(self, pod: ObjectKey) -> tuple[str, Pod] | None:
        """The node that a pod is on, and the pod as it was put there."""
        return self._place.get(pod)

    def selected(
        self, namespace: str, selector: LabelSelector, *, without: ObjectKey
    ) -> Iterator[Group]:
        """The groups of a namespace that ``selector`` selects, as they are without one pod."""
        own = self._place.get(without)
        for alike, nodes in self._grouped(namespace).items():
            labels = dict(alike.labels)
            if not selector.matches(labels):
                continue
            others: Mapping[str, int] = nodes
            if own is not None and without[0] == namespace and _like(own[1]) == alike:
                others = _less(nodes, own[0])
            yield Group(namespace, labels, alike.bound, alike.ending, others)

    def meant(self, term: PodTerm, *, owner: ObjectKey) -> Iterator[Group]:
        """The groups that a term of the pod ``owner`` means, which itself does not count."""
        for namespace in [owner[0]] if term.at_home else [*self._present]:
            if self.covers(term, namespace, owner=owner[0]):
                yield from self.selected(namespace, term.selector, without=owner)

    def breadth(self, pod: Pod) -> int:
        """The number of groups that the terms of ``pod`` are compared with, at the most."""
        company, home = pod.needs.company, pod.key[0]
        terms = (*company.affinity, *company.anti_affinity, *company.liked, *company.disliked)
        near = sum(term.at_home for term in terms) + len(company.spread)
        far = len(terms) - near + len(company.spread)
        found = near * len(self._grouped(home)) if near else 0
        return found + far * sum(len(self._grouped(name)) for name in self._present if far)

    def covers(self, term: PodTerm, namespace: str, *, owner: str) -> bool:
        """True if a term of a pod of namespace ``owner`` may mean pods of ``namespace``."""
        return term.covers(namespace, self._namespaces.get(namespace, _NO_LABELS), owner=owner)

    def matters(self, pod: Pod, needs: PodNeeds, *, owner: str) -> bool:
        """True if ``pod`` is one that a pod of ``owner`` with these needs looks at."""
        namespace, company = pod.key[0], needs.company
        terms = (*company.affinity, *company.anti_affinity)
        return any(
            self.covers(term, namespace, owner=owner) and term.selector.matches(pod.labels)
            for term in terms
        ) or (
            namespace == owner
            and any(spread.selector.matches(pod.labels) for spread in company.hard_spread)
        )

    def may_shun(self, namespace: str) -> bool:
        """True if any pod may shun those of ``namespace``."""
        return bool(self._far) or namespace in self._shunning

    def shunning(self, pod: Pod) -> Iterator[Shunning]:
        """The terms of others that shun ``pod``, as far as they are read of each namespace."""
        own, namespace = self._place.get(pod.key), pod.key[0]
        near = ((namespace, n, on) for n, on in self._shunning.get(namespace, {}).items())
        far = ((owner, n, on) for (owner, n), on in self._far.items())
        left: dict[str, int] = {}
        for owner, needs, nodes in (*near, *far):
            left[owner] = left.get(owner, MOST_SHUNNING) - len(needs.company.anti_affinity)
            if left[owner] < 0:
                continue
            others: Mapping[str, int] = nodes
            if own is not None and own[1].needs is needs and owner == namespace:
                others = _less(nodes, own[0])
            for term in needs.company.anti_affinity:
                if self.covers(term, namespace, owner=owner) and term.selector.matches(pod.labels):
                    yield Shunning(owner, term, others)

    def _grouped(self, namespace: str) -> dict[_Alike, dict[str, int]]:
        """The groups of a namespace, kept up to date once somebody has asked for them."""
        groups = self._groups.get(namespace)
        if groups is None:
            groups = self._groups[namespace] = {}
            for key, (node, pod) in self._place.items():
                if key[0] == namespace:
                    _book(groups, _like(pod), node, 1)
        return groups

    def _settle(self, pod: Pod, node: str, *, comes: bool) -> None:
        """Note a pod that comes or goes where it is looked for by node, claim or namespace."""
        _book_one(self._present, pod.key[0], 1 if comes else -1)
        _book_one(self._priorities, pod.priority, 1 if comes else -1)
        self._use(pod, uses=comes)
        if self._on is None:
            return
        pods = self._on.setdefault(node, {})
        if comes:
            pods[pod.key] = pod
        else:
            del pods[pod.key]
            if not pods:
                del self._on[node]

    def _use(self, pod: Pod, *, uses: bool) -> None:
        for name, _ in pod.volume_claims:
            key = (pod.key[0], name)
            if uses:
                self._users.setdefault(key, {})[pod.key] = pod
            elif key in self._users:
                self._users[key].pop(pod.key, None)
                if not self._users[key]:
                    del self._users[key]

    def _count(self, pod: Pod, node: str, change: int) -> None:
        groups = self._groups.get(pod.key[0])
        if groups is not None:
            _book(groups, _like(pod), node, change)
        if pod.needs.company.anti_affinity:
            self._count_shunning(pod, node, change)

    def _count_shunning(self, pod: Pod, node: str, change: int) -> None:
        namespace, needs = pod.key[0], pod.needs
        if all(term.at_home for term in needs.company.anti_affinity):
            near = self._shunning.setdefault(namespace, {})
            _book(near, needs, node, change)
            if not near:
                del self._shunning[namespace]
        else:
            _book(self._far, (namespace, needs), node, change)


def _like(pod: Pod) -> _Alike:
    return _Alike(frozenset(pod.labels.items()), bool(pod.node), pod.deleting)


def _less(nodes: Mapping[str, int], node: str) -> Mapping[str, int]:
    """``nodes`` with one less on ``node``."""
    left = {**nodes, node: nodes[node] - 1}
    return {name: count for name, count in left.items() if count}


def _book(table: dict[_K, dict[str, int]], key: _K, node: str, change: int) -> None:
    nodes = table.setdefault(key, {})
    _book_one(nodes, node, change)
    if not nodes:
        del table[key]


def _book_one(counts: dict[_K, int], key: _K, change: int) -> None:
    left = counts.get(key, 0) + change
    if left:
        counts[key] = left
    else:
        counts.pop(key, None)
