"""Preferences of a pod between nodes that are equal otherwise, weighed as kube-scheduler does.

Preferred affinity to nodes and between pods, and spread that is ``ScheduleAnyway``, count alike,
each from 0 to 100 over the nodes that are compared. What others prefer of this pod does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log

from dra.pods.company.residents import Residents
from dra.pods.company.spread import find_domains
from dra.pods.nodefit import NodeFacts
from dra.pods.nodeselector import matches_terms
from dra.pods.pods import Pod

_FULL = 100.0

_Score = Callable[[NodeFacts], float]


class Preferences:
    """Preferences of one pod among pods and nodes as they are now."""

    def __init__(self, pod: Pod, residents: Residents, nodes: Mapping[str, NodeFacts]) -> None:
        self._pod = pod
        self._nodes = nodes
        self._near = self._find_near(residents)
        self._domains = find_domains(pod, pod.needs.company.soft_spread, residents, nodes)

    def best(self, nodes: Sequence[NodeFacts]) -> NodeFacts:
        """The node that the pod likes best, the first of equals."""
        totals = [0.0] * len(nodes)
        for scores in (self._by_nodes(nodes), self._by_pods(nodes), self._by_spread(nodes)):
            totals = [total + score for total, score in zip(totals, scores, strict=True)]
        return nodes[max(range(len(nodes)), key=lambda n: (totals[n], -n))]

    def _by_nodes(self, nodes: Sequence[NodeFacts]) -> list[float]:
        terms = self._pod.needs.company.nodes
        found = [
            sum(t.weight for t in terms if matches_terms([t.term], node.labels, node.name))
            for node in nodes
        ]
        most = max(found)
        return [_FULL * score / most if most else 0.0 for score in found]

    def _by_pods(self, nodes: Sequence[NodeFacts]) -> list[float]:
        found = [
            sum(weights.get(n.labels.get(key), 0) for key, weights in self._near.items())
            for n in nodes
        ]
        least, most = min(found), max(found)
        return [_FULL * (f - least) / (most - least) if most > least else 0.0 for f in found]

    def _by_spread(self, nodes: Sequence[NodeFacts]) -> list[float]:
        if not self._domains:
            return [0.0] * len(nodes)
        found = [self._crowd(node) for node in nodes]
        known = [crowd for crowd in found if crowd is not None]
        least, most = min(known, default=0.0), max(known, default=0.0)
        return [
            0.0 if crowd is None else _FULL * (most + least - crowd) / most if most else _FULL
            for crowd in found
        ]

    def _crowd(self, node: NodeFacts) -> float | None:
        """Number of pods like the pod near ``node``; None where a topology label lacks."""
        total = 0.0
        for domains in self._domains:
            value = node.labels.get(domains.spread.topology)
            if value is None:
                return None
            weight = log(len(domains.counts) + 2)
            total += domains.counts.get(value, 0) * weight + domains.spread.max_skew - 1
        return float(round(total))

    def _find_near(self, residents: Residents) -> dict[str, dict[str | None, int]]:
        """By label and value the weight of the pods there that are liked, less the disliked."""
        near: dict[str, dict[str | None, int]] = {}
        company = self._pod.needs.company
        for terms, sign in ((company.liked, 1), (company.disliked, -1)):
            for term in terms:
                weights = near.setdefault(term.topology, {})
                for group in residents.meant(term, owner=self._pod.key):
                    for name, count in group.nodes.items():
                        facts = self._nodes.get(name)
                        value = None if facts is None else facts.labels.get(term.topology)
                        if value is not None:
                            weights[value] = weights.get(value, 0) + sign * term.weight * count
        return near
