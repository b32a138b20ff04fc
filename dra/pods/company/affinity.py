"""Required affinity and anti-affinity between pods, both ways, as kube-scheduler reads them.

A pod that is allocated and not bound yet counts where it is shunned. It does not where it is
sought: kube-scheduler may come to the pod that seeks it first, and refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dra.pods.company.residents import Residents
from dra.pods.company.terms import PodTerm
from dra.pods.nodefit import Misfit, MisfitReason, NodeFacts
from dra.pods.pods import Pod


class Affinity:
    """Meaning of others on ``nodes`` for one pod; good until any of it changes."""

    def __init__(
        self,
        pod: Pod,
        residents: Residents,
        nodes: Mapping[str, NodeFacts],
        *,
        together: int = 1,
    ) -> None:
        """``together`` pods are decided at a time: each looks at fewer of those that shun it."""
        self._pod = pod
        self._residents = residents
        self._nodes = nodes
        self._terms = pod.needs.company.affinity
        self._sought: dict[str, set[str]] = {}
        self._is_first = False
        if self._terms:
            self._seek()
        own = pod.needs.company.anti_affinity
        self._avoided = self._domains(
            (term, g.nodes) for term in own for g in residents.meant(term, owner=pod.key)
        )
        self._closed = self._domains(
            (term, on) for _, term, on in residents.shunning(pod, together=together)
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
            if not self._is_first and value not in self._sought.get(term.topology, ()):
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
        terms = self._terms
        self._sought = self._domains((t, g.nodes) for t in terms for g in found if g.bound)
        anywhere = any(self._domains([(t, g.nodes)]) for g in found for t in terms)
        self._is_first = not anywhere and self._all_mean(self._pod.key[0], self._pod.labels)

    def _all_mean(self, namespace: str, labels: Mapping[str, str]) -> bool:
        return all(
            term.selector.matches(labels)
            and self._residents.covers(term, namespace, owner=self._pod.key[0])
            for term in self._terms
        )

    def _domains(self, found: Iterable[tuple[PodTerm, Iterable[str]]]) -> dict[str, set[str]]:
        """By label the values of the domains that the nodes of terms are in."""
        domains: dict[str, set[str]] = {}
        for term, nodes in found:
            values = domains.setdefault(term.topology, set())
            for name in nodes:
                facts = self._nodes.get(name)
                if facts is not None and term.topology in facts.labels:
                    values.add(facts.labels[term.topology])
        return {key: values for key, values in domains.items() if values}
