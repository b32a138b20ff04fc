"""Watchers: waiting pods to which it matters where other pods are, or what their volumes do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dra.common.index import Index
from dra.common.resources import ObjectKey
from dra.pods.company.residents import Residents
from dra.pods.podneeds import PodNeeds
from dra.pods.pods import Pod


class Watchers:
    """Pods with claims that are not bound yet, by what else than nodes they need."""

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self._of_company: Index[tuple[str, PodNeeds], ObjectKey] = Index()
        self._of_volumes: Index[ObjectKey, ObjectKey] = Index()

    def change(self, before: Pod | None, pod: Pod | None) -> None:
        """A pod is there, was there before, or both."""
        if before is not None:
            self._note(before, waits=False)
        if pod is not None and pod.pending and not pod.node and pod.claims:
            self._note(pod, waits=True)

    def of_company(self, states: Iterable[Pod]) -> Iterator[ObjectKey]:
        """Watchers of a pod that came, went or changed, in one of its ``states``."""
        known = [*states]
        for (namespace, needs), pods in self._of_company.items():
            if any(self._residents.matters(pod, needs, owner=namespace) for pod in known):
                yield from pods

    def of_volume_claim(self, claim: ObjectKey) -> Iterable[ObjectKey]:
        """Users of a PersistentVolumeClaim."""
        return self._of_volumes.of(claim)

    def of_volumes(self) -> Iterator[ObjectKey]:
        """Users of any."""
        return (pod for _, pods in self._of_volumes.items() for pod in pods)

    def _note(self, pod: Pod, *, waits: bool) -> None:
        namespace = pod.key[0]
        company, volumes = self._of_company, self._of_volumes
        if pod.needs.company.requires:
            (company.add if waits else company.discard)((namespace, pod.needs), pod.key)
        for name, _ in pod.volume_claims:
            (volumes.add if waits else volumes.discard)((namespace, name), pod.key)
