"""Pods by the node where they are or are about to be, and by their labels, which terms look at.

Pods with equal labels are counted together, so that a term looks at few groups, not at many pods.
Most clusters have few terms: the groups of a namespace are kept only once a term looks at it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from math import inf
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from dra.common.resources import ObjectKey
from dra.pods.nodefit import NodeFacts
from dra.pods.pods import Amounts, Pod, PodNeeds
from dra.pods.selectors import Labels, LabelSelector, PodTerm
from dra.pods.volumes import Volumes

K = TypeVar("K")


class Alike(NamedTuple):
    """Traits of pods of a namespace that are counted together."""

    labels: frozenset[tuple[str, str]]
    bound: bool
    ending: bool


def alike(pod: Pod) -> Alike:
    """The traits of ``pod``."""
    return Alike(frozenset(pod.labels.items()), bool(pod.node), pod.deleting)


class Group(NamedTuple):
    """Pods of a namespace that are alike: how many of them are on which nodes.

    ``bound``: kube-scheduler has put them there; of others only we know where they go. ``ending``:
    they are being deleted.
    """

    namespace: str
    labels: Labels
    bound: bool
    ending: bool
    nodes: Mapping[str, int]


class Groups:
    """The pods of one namespace; those that are alike are counted together.

    ``places``: number of nodes with pods of a group, summed over all groups.
    """

    def __init__(self) -> None:
        self.places = 0
        # The labels stand beside their set: to make them of it anew takes long where they are many.
        self._known: dict[Alike, tuple[Labels, dict[str, int]]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[tuple[Alike, Labels, Mapping[str, int]]]:
        for traits, (labels, nodes) in self._known.items():
            yield traits, labels, nodes

    def book(self, pod: Pod, node: str, change: int) -> None:
        """Add ``change`` to the number of pods like ``pod`` on ``node``."""
        traits = alike(pod)
        _, nodes = self._known.setdefault(traits, (pod.labels, {}))
        before = len(nodes)
        book(nodes, node, change)
        self.places += len(nodes) - before
        if not nodes:
            del self._known[traits]


def book(counts: dict[K, int], key: K, change: int) -> None:
    """Add ``change`` to the count of ``key``; a count of 0 is not kept."""
    left = counts.get(key, 0) + change
    if left:
        counts[key] = left
    else:
        counts.pop(key, None)


MOST_SHUNNING = 10_000
"""Most comparisons of one pod with the anti-affinity terms of one namespace's pods.

Terms of equal pods count once. The nodes of pods that shun it count, too. Pods that are decided
together share this number, but each has ``LEAST_SHUNNING`` at least.
"""

LEAST_SHUNNING = 1_000

_NO_LABELS: Labels = {}


class Shunning(NamedTuple):
    """Required anti-affinity of pods of ``namespace``, with the nodes on which those pods are."""

    namespace: str
    term: PodTerm
    nodes: Mapping[str, int]


class Residents:
    """The pods on nodes; each is on one node at a time. ``version`` grows with each change."""

    def __init__(self) -> None:
        self.version = 0
        self._place: dict[ObjectKey, tuple[str, Pod]] = {}
        self._present: dict[str, int] = {}
        self._priorities: dict[int, int] = {}
        self._on: dict[str, dict[ObjectKey, Pod]] | None = None
        self._groups: dict[str, Groups] = {}
        self._shunning: dict[str, dict[PodNeeds, dict[str, int]]] = {}
        self._far: dict[str, dict[PodNeeds, dict[str, int]]] = {}
        self._users: dict[ObjectKey, dict[ObjectKey, Pod]] = {}
        self._namespaces: dict[str, Labels] = {}

    def place(self, pod: Pod, node: str) -> None:
        """Put a pod on a node ("" for none); ``version`` stays if no other pod looks at that."""
        before = self._place.get(pod.key)
        if before is None and not node:
            return
        if before is not None:
            del self._place[pod.key]
            self._settle(before[1], before[0], comes=False)
        if node:
            self._place[pod.key] = node, pod
            self._settle(pod, node, comes=True)
        if (
            before is not None
            and before[0] == node
            and before[1].needs is pod.needs
            and alike(before[1]) == alike(pod)
        ):
            return
        if before is not None:
            self._count(before[1], before[0], -1)
        if node:
            self._count(pod, node, 1)
        self.version += 1

    def set_namespace(self, name: str, labels: Labels | None) -> bool:
        """Take a namespace's labels, or None if it is gone; False if that is known already."""
        if self._namespaces.get(name) == labels:
            return False
        if labels is None:
            del self._namespaces[name]
        else:
            self._namespaces[name] = labels
        self.version += 1
        return True

    def labels_of(self, namespace: str) -> Labels:
        """The labels of a namespace; none if it is not known."""
        return self._namespaces.get(namespace, _NO_LABELS)

    def on(self, node: str) -> Collection[Pod]:
        """The pods on a node."""
        if self._on is None:
            self._on = {}
            for key, (where, pod) in self._place.items():
                self._on.setdefault(where, {})[key] = pod
        return self._on.get(node, {}).values()

    @property
    def lowest_priority(self) -> float:
        """The lowest priority of all pods on nodes; infinity without any."""
        return min(self._priorities, default=inf)

    def users(self, volume_claim: ObjectKey) -> Collection[Pod]:
        """The pods on nodes that use a PersistentVolumeClaim."""
        return self._users.get(volume_claim, {}).values()

    def find(self, pod: ObjectKey) -> tuple[str, Pod] | None:
        """The node on which a pod is, and the pod as it was put there; None if it is on none."""
        return self._place.get(pod)

    def selected(
        self, namespace: str, selector: LabelSelector, *, without: ObjectKey
    ) -> Iterator[Group]:
        """The groups of a namespace that ``selector`` selects; pod ``without`` does not count."""
        own = self._place.get(without)
        own_traits = None if own is None or without[0] != namespace else alike(own[1])
        self._group([namespace])
        for traits, labels, nodes in self._groups[namespace]:
            if selector.matches(labels):
                others = _less(nodes, own[0]) if own is not None and traits == own_traits else nodes
                yield Group(namespace, labels, traits.bound, traits.ending, others)

    def meant(self, term: PodTerm, *, owner: ObjectKey) -> Iterator[Group]:
        """The groups that a term of the pod ``owner`` means; ``owner`` itself does not count."""
        namespaces = self._there(term.reach(owner[0]))
        self._group(namespaces)
        for namespace in namespaces:
            if self.covers(term, namespace, owner=owner[0]):
                yield from self.selected(namespace, term.selector, without=owner)

    def breadth(self, pod: Pod) -> int:
        """Upper bound on the comparisons for the terms of ``pod``.

        Each part of a term is compared with each group, and each term with the nodes of the groups
        that it means.
        """
        company, home = pod.needs.company, pod.key[0]
        parts: dict[AbstractSet[str] | None, list[int]] = {}
        # Groups that affinity seeks are compared with all terms together once more.
        for term in (
            *company.affinity * 2,
            *company.anti_affinity,
            *company.liked,
            *company.disliked,
        ):
            parts.setdefault(term.reach(home), []).append(term.parts)
        for spread in company.spread:
            parts.setdefault(frozenset([home]), []).append(spread.parts)
        compared = 0
        for reach, found in parts.items():
            namespaces = self._there(reach)
            self._group(namespaces)
            groups = [self._groups[name] for name in namespaces]
            compared += sum(found) * sum(map(len, groups))
            compared += len(found) * sum(known.places for known in groups)
        return compared

    def _there(self, reach: AbstractSet[str] | None) -> list[str]:
        """The namespaces of ``reach``, or all if it is None, that have pods on nodes."""
        return [*self._present] if reach is None else [n for n in reach if n in self._present]

    def covers(self, term: PodTerm, namespace: str, *, owner: str) -> bool:
        """True if a term of a pod of namespace ``owner`` may mean pods of ``namespace``."""
        return term.covers(namespace, self._namespaces.get(namespace, _NO_LABELS), owner=owner)

    def matters(self, pod: Pod, needs: PodNeeds, *, owner: str) -> bool:
        """True if a pod of namespace ``owner`` with these ``needs`` looks at ``pod``."""
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

    def shunning(self, pod: Pod, *, together: int = 1) -> Iterator[Shunning]:
        """The terms of other pods that shun ``pod``, up to ``MOST_SHUNNING`` for each namespace.

        The more pods are decided ``together``, the fewer terms are read.
        """
        namespace = pod.key[0]
        most = min(MOST_SHUNNING, max(LEAST_SHUNNING, MOST_SHUNNING // together))
        near, far = self._shunning.get(namespace, {}), self._far.get(namespace, {})
        yield from self._shunned_by(namespace, chain(near.items(), far.items()), pod, most)
        for owner, known in self._far.items():
            if owner != namespace:
                yield from self._shunned_by(owner, known.items(), pod, most)

    def _shunned_by(
        self, owner: str, known: Iterable[tuple[PodNeeds, Mapping[str, int]]], pod: Pod, most: int
    ) -> Iterator[Shunning]:
        own, namespace, left = self._place.get(pod.key), pod.key[0], most
        for needs, nodes in known:
            others = nodes
            if own is not None and own[1].needs is needs and owner == namespace:
                others = _less(nodes, own[0])
            for term in needs.company.anti_affinity:
                left -= term.parts
                if left < 0:
                    return
                if self.covers(term, namespace, owner=owner) and term.selector.matches(pod.labels):
                    left -= len(others)
                    yield Shunning(owner, term, others)

    def _group(self, namespaces: Iterable[str]) -> None:
        """Make the missing groups of ``namespaces``; they are kept up to date from then on."""
        lacking = {name: Groups() for name in namespaces if name not in self._groups}
        if lacking:
            for (namespace, _), (node, pod) in self._place.items():
                if namespace in lacking:
                    lacking[namespace].book(pod, node, 1)
            self._groups |= lacking

    def _settle(self, pod: Pod, node: str, *, comes: bool) -> None:
        """Note a pod that comes or goes where it is looked for by node, claim or namespace."""
        book(self._present, pod.key[0], 1 if comes else -1)
        book(self._priorities, pod.priority, 1 if comes else -1)
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
            groups.book(pod, node, change)
        if pod.needs.company.anti_affinity:
            self._count_shunning(pod, node, change)

    def _count_shunning(self, pod: Pod, node: str, change: int) -> None:
        namespace, needs = pod.key[0], pod.needs
        at_home = all(term.at_home for term in needs.company.anti_affinity)
        tables = self._shunning if at_home else self._far
        known = tables.setdefault(namespace, {})
        nodes = known.setdefault(needs, {})
        book(nodes, node, change)
        if not nodes:
            del known[needs]
        if not known:
            del tables[namespace]


def _less(nodes: Mapping[str, int], node: str) -> Mapping[str, int]:
    """``nodes`` with one pod less on ``node``."""
    left = {**nodes, node: nodes[node] - 1}
    return {name: count for name, count in left.items() if count}


_NOTHING: Amounts = MappingProxyType({})


class Hosts:
    """Facts of nodes, and the resources that pods take of them.

    ``residents``: these pods. ``volumes``: the volumes by which pods are bound to nodes.
    """

    def __init__(self) -> None:
        self.residents = Residents()
        self.volumes = Volumes()
        self._facts: dict[str, NodeFacts] = {}
        self.facts: Mapping[str, NodeFacts] = MappingProxyType(self._facts)
        """Every known node by name."""
        self._used: dict[str, dict[str, int]] = {}

    def set_node(self, facts: NodeFacts) -> bool:
        """Take a node's facts; True when they changed."""
        if self._facts.get(facts.name) == facts:
            return False
        self._facts[facts.name] = facts
        return True

    def drop_node(self, name: str) -> None:
        """Forget a node; its pods stay charged to it."""
        self._facts.pop(name, None)

    def used(self, node: str, *, without: ObjectKey | None = None) -> Amounts:
        """Resources that the pods on ``node`` take together, except the pod ``without``."""
        used = self._used.get(node, _NOTHING)
        there = self.residents.find(without) if without is not None else None
        if there is None or there[0] != node:
            return used
        own = there[1].needs.requests
        return {name: amount - own.get(name, 0) for name, amount in used.items()}

    def place(self, pod: Pod, node: str) -> str:
        """Put a pod on a node ("" for none); returns a node where that made room, or ""."""
        before, requests = self.residents.find(pod.key), pod.needs.requests
        if before is None and not node:
            return ""
        if before is not None and before[0] == node and before[1] is pod:
            return ""
        self.residents.place(pod, node)
        if before is not None and before[0] == node and before[1].needs.requests == requests:
            return ""
        if before is not None:
            self._book(before[0], before[1].needs.requests, sign=-1)
        if node:
            self._book(node, requests, sign=1)
        return before[0] if before is not None else ""

    def _book(self, node: str, requests: Amounts, *, sign: int) -> None:
        used = self._used.setdefault(node, {})
        for name, amount in requests.items():
            left = used.get(name, 0) + sign * amount
            if left:
                used[name] = left
            else:
                used.pop(name, None)
        if not used:
            del self._used[node]
