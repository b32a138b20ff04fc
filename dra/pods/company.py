"""Company of a pod: the others that it seeks or shuns, or is spread with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log

from dra.common.resources import tolerates
from dra.pods.nodefit import Misfit, MisfitReason, NodeFacts, find_deselection
from dra.pods.pods import Pod
from dra.pods.residents import Residents
from dra.pods.selectors import PodTerm, Spread, matches_terms


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


class Domains:
    """Numbers of pods like one, by the value of the topology label of their nodes."""

    def __init__(
        self,
        pod: Pod,
        spread: Spread,
        residents: Residents,
        nodes: Iterable[NodeFacts],
    ) -> None:
        """``nodes`` are those that the constraint counts."""
        self.spread = spread
        selector = spread.selector_for(pod.labels)
        self._own = int(selector.matches(pod.labels))
        there: dict[str, int] = {}
        bound: dict[str, int] = {}
        if not selector.everything:  # kube-scheduler counts none then
            for group in residents.selected(pod.key[0], selector, without=pod.key):
                if not group.ending:
                    _add(there, group.nodes)
                    _add(bound, group.nodes if group.bound else {})
        self.counts: dict[str, int] = {}
        settled: dict[str, int] = {}
        for node in nodes:
            value = node.labels[spread.topology]
            self.counts[value] = self.counts.get(value, 0) + there.get(node.name, 0)
            settled[value] = settled.get(value, 0) + bound.get(node.name, 0)
        self._is_short = len(settled) < spread.min_domains
        self._least = sorted((count, value) for value, count in settled.items())[:2]

    def find_misfit(self, node: NodeFacts) -> Misfit | None:
        """Misfit of a pod that would make the domain of ``node`` too full; None if not."""
        spread = self.spread
        value = node.labels.get(spread.topology)
        if value is None:
            text = f"topology spread: the node has no label {spread.topology}"
            return Misfit(MisfitReason.SPREAD, text)
        skew = self.counts.get(value, 0) + self._own - self._least_beside(value)
        if skew > spread.max_skew:
            text = f"topology spread: its {spread.topology} has too many such pods"
            return Misfit(MisfitReason.SPREAD, f"{text}, maxSkew is {spread.max_skew}")
        return None

    def _least_beside(self, value: str) -> int:
        """The fewest pods of any domain, of other domains than ``value`` those that are bound."""
        if self._is_short:
            return 0
        others = [count for count, other in self._least if other != value][:1]
        own = [self.counts[value]] if value in self.counts else []
        return min([*others, *own], default=0)


def find_domains(
    pod: Pod, spreads: Iterable[Spread], residents: Residents, nodes: Mapping[str, NodeFacts]
) -> list[Domains]:
    """The domains of all constraints; nodes that lack one of their labels have no part in any."""
    constraints = [*spreads]
    keys = [spread.topology for spread in constraints]
    eligible = [n for n in nodes.values() if all(key in n.labels for key in keys)]
    counted: dict[tuple[bool, bool], list[NodeFacts]] = {}
    for each in constraints:
        policies = each.affinity_counts, each.taints_count
        if policies not in counted:  # constraints are many, and policies few
            counted[policies] = [n for n in eligible if _takes_part(pod, each, n)]
    return [
        Domains(pod, each, residents, counted[each.affinity_counts, each.taints_count])
        for each in constraints
    ]


def _takes_part(pod: Pod, spread: Spread, node: NodeFacts) -> bool:
    """True if the policies of a constraint count the node."""
    if spread.affinity_counts and find_deselection(pod.needs, node) is not None:
        return False
    return not spread.taints_count or all(tolerates(pod.needs.tolerations, t) for t in node.taints)


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        total[name] = total.get(name, 0) + count


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
