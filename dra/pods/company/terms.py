"""Terms by which a pod asks for, or shuns, the company of others: affinity and spread.

``matchLabelKeys`` of affinity is not read: the API server makes it part of the label selector when
the pod is created. That of spread is, as older servers leave it to kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dra.common.resources import at
from dra.pods.labelselector import Labels, LabelSelector, read_label_selector
from dra.pods.nodeselector import indexed_term

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_HONOR, _IGNORE = "Honor", "Ignore"
_HARD = "DoNotSchedule"


@dataclass(frozen=True, slots=True, eq=False)
class PodTerm:
    """A PodAffinityTerm. Without ``namespaces`` and their selector, pods of its own are meant."""

    topology: str
    selector: LabelSelector
    namespaces: frozenset[str] = frozenset()
    namespace_selector: LabelSelector | None = None
    weight: int = 0

    @property
    def at_home(self) -> bool:
        """True if it is about pods of the owner's namespace only."""
        return not self.namespaces and self.namespace_selector is None

    @property
    def parts(self) -> int:
        """The number of comparisons that show whether it means a pod, at the most."""
        others = self.namespace_selector
        return 1 + self.selector.parts + (others.parts if others is not None else 0)

    def reach(self, owner: str) -> frozenset[str] | None:
        """The namespaces that one of ``owner`` may mean; None where their labels decide."""
        if self.namespace_selector is not None:
            return None
        return self.namespaces or frozenset([owner])

    def covers(self, namespace: str, labels: Labels, *, owner: str) -> bool:
        """True if pods of ``namespace``, which has ``labels``, may be meant by one of ``owner``."""
        if namespace in self.namespaces or (self.at_home and namespace == owner):
            return True
        return self.namespace_selector is not None and self.namespace_selector.matches(labels)


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """A TopologySpreadConstraint; ``hard`` where it is DoNotSchedule."""

    topology: str
    selector: LabelSelector
    max_skew: int = 1
    min_domains: int = 1
    hard: bool = True
    match_label_keys: tuple[str, ...] = ()
    affinity_counts: bool = True
    taints_count: bool = False

    @property
    def parts(self) -> int:
        """The number of comparisons that show whether it counts a pod, at the most."""
        return 1 + self.selector.parts + len(self.match_label_keys)

    def selector_for(self, labels: Labels) -> LabelSelector:
        """The selector of a pod with ``labels``."""
        kept = {key: labels[key] for key in self.match_label_keys if key in labels}
        return self.selector.narrowed(kept)


@dataclass(frozen=True, slots=True, eq=False)
class NodeTerm:
    """A preferred node affinity: a NodeSelectorTerm and what matching it is worth."""

    term: Mapping[str, Any]
    weight: int


@dataclass(frozen=True, slots=True, eq=False)
class Company:
    """All terms of a pod. ``liked`` and ``disliked`` are its preferred pod (anti-)affinity."""

    affinity: tuple[PodTerm, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    liked: tuple[PodTerm, ...] = ()
    disliked: tuple[PodTerm, ...] = ()
    nodes: tuple[NodeTerm, ...] = ()
    spread: tuple[Spread, ...] = ()

    @property
    def hard_spread(self) -> tuple[Spread, ...]:
        """The constraints that a node has to meet."""
        return tuple(s for s in self.spread if s.hard)

    @property
    def soft_spread(self) -> tuple[Spread, ...]:
        """The constraints that only decide between nodes."""
        return tuple(s for s in self.spread if not s.hard)

    @property
    def requires(self) -> bool:
        """True if other pods decide where it may go, beside those that shun it."""
        return bool(self.affinity or self.anti_affinity or self.hard_spread)

    @property
    def prefers(self) -> bool:
        """True if it likes some nodes better than others."""
        return bool(self.liked or self.disliked or self.nodes or self.soft_spread)


ALONE = Company()
"""That of a pod without any term."""


def read_company(spec: Mapping[str, Any]) -> Company:
    """The terms in a pod's ``spec``."""
    affinity = at(spec, "affinity", default={})
    spread = at(spec, "topologySpreadConstraints")
    if not affinity and not spread:
        return ALONE
    to_pods = at(affinity, "podAffinity", default={})
    from_pods = at(affinity, "podAntiAffinity", default={})
    nodes = at(affinity, "nodeAffinity", _PREFERRED)
    company = Company(
        affinity=_required(to_pods),
        anti_affinity=_required(from_pods),
        liked=_preferred(to_pods),
        disliked=_preferred(from_pods),
        nodes=tuple(NodeTerm(indexed_term(n["preference"]), n["weight"]) for n in nodes),
        spread=tuple(_spread(each) for each in spread),
    )
    return company if company.requires or company.prefers else ALONE


def _required(affinity: Mapping[str, Any]) -> tuple[PodTerm, ...]:
    return tuple(_term(each) for each in at(affinity, _REQUIRED))


def _preferred(affinity: Mapping[str, Any]) -> tuple[PodTerm, ...]:
    preferred = at(affinity, _PREFERRED)
    return tuple(_term(each["podAffinityTerm"], weight=each["weight"]) for each in preferred)


def _term(term: Mapping[str, Any], *, weight: int = 0) -> PodTerm:
    selector = term.get("namespaceSelector")
    return PodTerm(
        topology=term["topologyKey"],
        selector=read_label_selector(term.get("labelSelector")),
        namespaces=frozenset(at(term, "namespaces")),
        namespace_selector=None if selector is None else read_label_selector(selector),
        weight=weight,
    )


def _spread(constraint: Mapping[str, Any]) -> Spread:
    return Spread(
        topology=constraint["topologyKey"],
        selector=read_label_selector(constraint.get("labelSelector")),
        max_skew=constraint["maxSkew"],
        min_domains=constraint.get("minDomains") or 1,
        hard=constraint["whenUnsatisfiable"] == _HARD,
        match_label_keys=tuple(at(constraint, "matchLabelKeys")),
        affinity_counts=(constraint.get("nodeAffinityPolicy") or _HONOR) == _HONOR,
        taints_count=(constraint.get("nodeTaintsPolicy") or _IGNORE) == _HONOR,
    )
