"""Required affinity and anti-affinity between pods, both ways, as kube-scheduler reads them.

A pod that is allocated and not bound yet counts where it is shunned. It does not where it is
sought: kube-scheduler may come to the pod that seeks it first, and refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from dra.pods.company.residents import Residents
from dra.pods.company.terms import PodTerm
from dra.pods.nodefit import Misfit, MisfitReason, NodeFacts
from dra.pods.pods import Pod

_Domain = tuple[str, str]
"""A label of nodes and one of its values."""


class Affinity:
    """Meaning of others on ``nodes`` for one pod; good until any of it changes."""

    def __init__(self, pod: Pod, residents: Residents, nodes: Mapping[str, NodeFacts]) -> None:
        self._pod = pod
        self._residents = residents
        self._nodes = nodes
        self._terms = pod.needs.company.affinity
        self._sought: set[_Domain] = set()
        self._is_first = False
        if self._terms:
            self._seek()
        self._avoided = _by_key(
            domain
            for term in pod.needs.company.anti_affinity
            for group in residents.meant(term, owner=pod.key)
            for domain in self._domains(term, group.nodes)
        )
        self._closed = _by_key(
            domain
            for _, term, others in residents.shunning(pod)
            for domain in self._domains(term, others)
        )

    def find_misfit(self, node: NodeFacts) -> Misfit | None:
        """Misfit by other pods that keep the pod from ``node``; None when they do not."""
        return self._find_unsought(node) or self._find_unwanted(node)

    def _find_unsought(self, node: NodeFacts) -> Misfit | None:
        for term in self._terms:
            value = node.labels.get(term.topology)
            if value is None:
                text = f"pod affinity: the node has no label {term.topology}"
                return Misfit(MisfitReason.POD_AFFINITY, text)
            if not self._is_first and (term.topology, value) not in self._sought:
                text = f"pod affinity: no such pod runs in its {term.topology}"
                return Misfit(MisfitReason.POD_AFFINITY, text)
        return None

    def _find_unwanted(self, node: NodeFacts) -> Misfit | None:
        for key, values in self._avoided.items():
            if node.labels.get(key) in values:
                text = f"pod anti-affinity: such a pod is in its {key}"
                return Misfit(MisfitReason.POD_ANTI_AFFINITY, text)
        for key, values in self._closed.items():
            if node.labels.get(key) in values:
                text = f"anti-affinity of a pod in its {key}"
                return Misfit(MisfitReason.SHUNNED, text)
        return None

    def _seek(self) -> None:
        """Find where pods run that all terms mean.

        The first of several that seek each other goes wherever it likes.
        """
        first, *_ = self._terms
        meant = self._residents.meant(first, owner=self._pod.key)
        found = [group for group in meant if self._all_mean(group.namespace, group.labels)]
        for group in found:
            if group.bound:
                self._sought |= {d for t in self._terms for d in self._domains(t, group.nodes)}
        anywhere = any([*self._domains(t, g.nodes)] for g in found for t in self._terms)
        self._is_first = not anywhere and self._all_mean(self._pod.key[0], self._pod.labels)

    def _all_mean(self, namespace: str, labels: Mapping[str, str]) -> bool:
        return all(
            term.selector.matches(labels)
            and self._residents.covers(term, namespace, owner=self._pod.key[0])
            for term in self._terms
        )

    def _domains(self, term: PodTerm, nodes: Iterable[str]) -> Iterator[_Domain]:
        """The domains of a term that ``nodes`` are in."""
        for name in nodes:
            facts = self._nodes.get(name)
            value = None if facts is None else facts.labels.get(term.topology)
            if value is not None:
                yield term.topology, value


def _by_key(domains: Iterable[_Domain]) -> dict[str, set[str]]:
    """The values of each label: there may be as many domains as nodes, and labels are few."""
    found: dict[str, set[str]] = {}
    for key, value in domains:
        found.setdefault(key, set()).add(value)
    return found
