"""Spread of a pod's like over domains of nodes, as kube-scheduler reads ``DoNotSchedule``.

kube-scheduler takes pods in an order of its own. So what is allocated and not bound yet counts
in the domain that a pod may go to, and not in those that it is compared with: whichever of several
pods is bound first, none is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dra.common.resources import tolerates
from dra.pods.company.residents import Residents
from dra.pods.company.terms import Spread
from dra.pods.nodefit import Misfit, MisfitReason, NodeFacts, find_deselection
from dra.pods.pods import Pod


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
