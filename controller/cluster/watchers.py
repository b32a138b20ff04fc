"""Watchers: waiting pods to which it matters where other pods are, or what their volumes do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dra.common.cache import Index
from dra.common.resources import ObjectKey
from dra.pods.pods import Pod, PodNeeds
from dra.pods.residents import Residents
from dra.pods.selectors import Company

MOST_WATCHED = 2_000
"""Comparisons of a pod that came, went or changed with the terms of a namespace's waiting pods.

Terms of equal pods count once. Whose terms are beyond are not told: they are looked at like all
that wait, when room is made, and after a while.
"""


@dataclass(slots=True)
class _Watch:
    """Pods of a namespace with equal needs, and the parts of the terms of these."""

    parts: int
    pods: set[ObjectKey] = field(default_factory=set)


_Watches = dict[str, dict[PodNeeds, _Watch]]
"""By namespace of those who watch."""


class Watchers:
    """Pods with claims that are not bound yet, by what else than nodes they need."""

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self._near: _Watches = {}
        self._far: _Watches = {}
        self._of_volumes: Index[ObjectKey, ObjectKey] = Index()

    def change(self, before: Pod | None, pod: Pod | None) -> None:
        """Take note of a pod that came (no ``before``), changed, or went (no ``pod``)."""
        if before is not None:
            self._note(before, waits=False)
        if pod is not None and pod.pending and not pod.node and pod.claims:
            self._note(pod, waits=True)

    def of_company(self, pod: Pod, was: Pod | None = None) -> Iterator[ObjectKey]:
        """Watchers of a pod that came, went or changed, in one of its states."""
        states = [pod] if was is None or was.labels == pod.labels else [was, pod]
        home = pod.key[0]
        yield from self._watching(states, home, self._near.get(home, {}))
        for owner, watches in self._far.items():
            yield from self._watching(states, owner, watches)

    def _watching(
        self, states: list[Pod], owner: str, watches: dict[PodNeeds, _Watch]
    ) -> Iterator[ObjectKey]:
        left = MOST_WATCHED
        for needs, watch in watches.items():
            left -= watch.parts * len(states)
            if left < 0:
                return
            if any(self._residents.matters(pod, needs, owner=owner) for pod in states):
                yield from watch.pods

    def of_volume_claim(self, claim: ObjectKey) -> Iterable[ObjectKey]:
        """Users of a PersistentVolumeClaim."""
        return self._of_volumes.of(claim)

    def of_volumes(self) -> Iterator[ObjectKey]:
        """Users of any."""
        return (pod for _, pods in self._of_volumes.items() for pod in pods)

    def _note(self, pod: Pod, *, waits: bool) -> None:
        namespace = pod.key[0]
        company, volumes = pod.needs.company, self._of_volumes
        if company.requires:
            terms = (*company.affinity, *company.anti_affinity)
            watches = self._near if all(term.at_home for term in terms) else self._far
            if waits:
                _add(watches, pod)
            else:
                _discard(watches, pod)
        for name, _ in pod.volume_claims:
            (volumes.add if waits else volumes.discard)((namespace, name), pod.key)


def _add(watches: _Watches, pod: Pod) -> None:
    known = watches.setdefault(pod.key[0], {})
    if pod.needs not in known:
        known[pod.needs] = _Watch(_parts(pod.needs.company))
    known[pod.needs].pods.add(pod.key)


def _discard(watches: _Watches, pod: Pod) -> None:
    known = watches.get(pod.key[0], {})
    watch = known.get(pod.needs)
    if watch is None:
        return
    watch.pods.discard(pod.key)
    if not watch.pods:
        del known[pod.needs]
    if not known:
        del watches[pod.key[0]]


def _parts(company: Company) -> int:
    terms = (*company.affinity, *company.anti_affinity)
    return sum(term.parts for term in terms) + sum(s.parts for s in company.hard_spread)
