"""Company of a pod: other pods that it seeks or shuns, or among which it is spread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log

from dra.common.resources import tolerates
from dra.pods.nodefit import Misfit, MisfitReason, NodeFacts, find_deselection
from dra.pods.pods import Pod
from dra.pods.residents import Residents
from dra.pods.selectors import PodTerm, Spread, matches_terms

_FULL = 100.0

Check = Callable[[NodeFacts], Misfit | None]
"""Misfit of a pod and a node; None where they fit. Good until anything changes."""


def seeking_check(pod: Pod, residents: Residents, nodes: Mapping[str, NodeFacts]) -> Check:
    """Check of required affinity between pods, as kube-scheduler reads it.

    A pod that is allocated and not bound yet does not count: kube-scheduler may try the pod that
    seeks it first, and refuse.
    """
    terms = pod.needs.company.affinity
    meant = residents.meant(terms[0], owner=pod.key)
    groups = [g for g in meant if _all_mean(pod, residents, g.namespace, g.labels)]
    sought = _domains(nodes, ((t, g.nodes) for t in terms for g in groups if g.bound))
    # The first of several that seek each other goes wherever it likes.
    anywhere = any(_domains(nodes, [(t, g.nodes)]) for g in groups for t in terms)
    is_first = not anywhere and _all_mean(pod, residents, pod.key[0], pod.labels)

    def check(node: NodeFacts) -> Misfit | None:
        for key in (term.topology for term in terms):
            value = node.labels.get(key)
            if value is None:
                text = f"pod affinity: the node has no label {key}"
                return Misfit(MisfitReason.POD_AFFINITY, text)
            if not is_first and value not in sought.get(key, ()):
                text = f"pod affinity: no such pod runs in its {key}"
                return Misfit(MisfitReason.POD_AFFINITY, text)
        return None

    return check


def shunning_check(
    pod: Pod, residents: Residents, nodes: Mapping[str, NodeFacts], *, together: int
) -> Check:
    """Check of required anti-affinity between pods, both ways; pods not bound yet count too.

    ``together`` pods are decided at a time: each looks at fewer of those that shun it.
    """
    own = pod.needs.company.anti_affinity
    avoided = _domains(
        nodes, ((term, g.nodes) for term in own for g in residents.meant(term, owner=pod.key))
    )
    shunned = _domains(
        nodes, ((term, on) for _, term, on in residents.shunning(pod, together=together))
    )

    def check(node: NodeFacts) -> Misfit | None:
        for key, values in avoided.items():
            if node.labels.get(key) in values:
                text = f"pod anti-affinity: such a pod is in its {key}"
                return Misfit(MisfitReason.POD_ANTI_AFFINITY, text)
        for key, values in shunned.items():
            if node.labels.get(key) in values:
                return Misfit(MisfitReason.SHUNNED, f"anti-affinity of a pod in its {key}")
        return None

    return check


def _domains(
    nodes: Mapping[str, NodeFacts], found: Iterable[tuple[PodTerm, Iterable[str]]]
) -> dict[str, set[str]]:
    """By topology label, its values on the nodes that were ``found`` for terms."""
    domains: dict[str, set[str]] = {}
    for term, names in found:
        for name in names:
            facts = nodes.get(name)
            if facts is not None and term.topology in facts.labels:
                domains.setdefault(term.topology, set()).add(facts.labels[term.topology])
    return domains


def _all_mean(pod: Pod, residents: Residents, namespace: str, labels: Mapping[str, str]) -> bool:
    """True if all affinity terms of ``pod`` mean a pod in ``namespace`` with ``labels``."""
    return all(
        term.selector.matches(labels) and residents.covers(term, namespace, owner=pod.key[0])
        for term in pod.needs.company.affinity
    )


class Domains:
    """Numbers of pods that a constraint counts, by the value of their nodes' topology label.

    kube-scheduler takes pods in an order of its own. So a pod that is allocated and not bound yet
    counts in the domain to which the new pod may go, and not in the domains with which that one is
    compared: in whatever order the pods are bound, none is refused.
    """

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
        """The smallest count of any domain; in others than ``value`` only bound pods count."""
        if self._is_short:
            return 0
        others = [count for count, other in self._least if other != value][:1]
        own = [self.counts[value]] if value in self.counts else []
        return min([*others, *own], default=0)


def find_domains(
    pod: Pod, spreads: Iterable[Spread], residents: Residents, nodes: Mapping[str, NodeFacts]
) -> list[Domains]:
    """The domains of all constraints; nodes that lack one of the topology labels do not count."""
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


def preference(
    pod: Pod, residents: Residents, nodes: Mapping[str, NodeFacts]
) -> Callable[[Sequence[NodeFacts]], NodeFacts]:
    """Function that returns the node that ``pod`` likes best, the first of equals.

    It weighs as kube-scheduler does. Preferred affinity to nodes and between pods, and spread that
    is ``ScheduleAnyway``, count alike, each from 0 to 100 over the nodes that are compared.
    Preferences of other pods for this one do not count.
    """
    company = pod.needs.company
    near = _liked(pod, residents, nodes)
    spread = find_domains(pod, company.soft_spread, residents, nodes)

    def by_nodes(node: NodeFacts) -> float:
        terms = company.nodes
        return sum(t.weight for t in terms if matches_terms([t.term], node.labels, node.name))

    def by_pods(node: NodeFacts) -> float:
        return sum(weights.get(node.labels.get(key), 0) for key, weights in near.items())

    def best(compared: Sequence[NodeFacts]) -> NodeFacts:
        liked, close = [*map(by_nodes, compared)], [*map(by_pods, compared)]
        most, (low, high) = max(liked), (min(close), max(close))
        totals = [
            (_FULL * here / most if most else 0.0)
            + (_FULL * (beside - low) / (high - low) if high > low else 0.0)
            + free
            for here, beside, free in zip(liked, close, _by_spread(spread, compared), strict=True)
        ]
        return compared[max(range(len(compared)), key=lambda n: (totals[n], -n))]

    return best


def _by_spread(spread: Sequence[Domains], nodes: Sequence[NodeFacts]) -> list[float]:
    if not spread:
        return [0.0] * len(nodes)
    found = [_crowd(spread, node) for node in nodes]
    known = [crowd for crowd in found if crowd is not None]
    least, most = min(known, default=0.0), max(known, default=0.0)
    return [
        0.0 if crowd is None else _FULL * (most + least - crowd) / most if most else _FULL
        for crowd in found
    ]


def _crowd(spread: Sequence[Domains], node: NodeFacts) -> float | None:
    """Weighted number of pods like this one near ``node``; None if a topology label is missing."""
    total = 0.0
    for domains in spread:
        value = node.labels.get(domains.spread.topology)
        if value is None:
            return None
        weight = log(len(domains.counts) + 2)
        total += domains.counts.get(value, 0) * weight + domains.spread.max_skew - 1
    return float(round(total))


def _liked(
    pod: Pod, residents: Residents, nodes: Mapping[str, NodeFacts]
) -> dict[str, dict[str | None, int]]:
    """By label and value, the weight of liked pods there, less that of disliked pods."""
    near: dict[str, dict[str | None, int]] = {}
    company = pod.needs.company
    for terms, sign in ((company.liked, 1), (company.disliked, -1)):
        for term in terms:
            weights = near.setdefault(term.topology, {})
            for group in residents.meant(term, owner=pod.key):
                for name, count in group.nodes.items():
                    facts = nodes.get(name)
                    value = None if facts is None else facts.labels.get(term.topology)
                    if value is not None:
                        weights[value] = weights.get(value, 0) + sign * term.weight * count
    return near
