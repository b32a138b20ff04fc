"""Selectors and terms by which a pod chooses nodes and the company of other pods."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra.common.resources import at

_FIELDS = "metadata.name"
_FEW = 8
"""Number of values up to which a list is searched as fast as a set."""

_DIGITS = 63
"""Most digits of a number that is read: a label's value has no more, and a million takes long."""


def matches_terms(terms: Iterable[Mapping[str, Any]], labels: Mapping[str, str], name: str) -> bool:
    """True if one of ``nodeSelectorTerms`` selects the node; a term without parts selects none."""
    return any(_matches_term(term, labels, name) for term in terms)


def matches_selector(
    selector: Mapping[str, Any] | None, labels: Mapping[str, str], name: str
) -> bool:
    """True if a NodeSelector (a claim's ``allocation.nodeSelector``) selects the node.

    None selects every node.
    """
    return selector is None or matches_terms(at(selector, "nodeSelectorTerms"), labels, name)


def _matches_term(term: Mapping[str, Any], labels: Mapping[str, str], name: str) -> bool:
    expressions = term.get("matchExpressions") or ()
    for each in expressions:  # a loop: this is asked of each node
        if not holds(each, labels.get(each["key"])):
            return False
    fields = term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(f["key"] == _FIELDS and holds(f, name) for f in fields)


def holds(requirement: Mapping[str, Any], value: str | None) -> bool:
    """True if ``value`` meets a requirement with operator and values; None is a missing value."""
    check = _OPERATORS.get(requirement["operator"])
    return check is not None and check(value, requirement.get("values") or ())


def indexed(requirement: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same requirement, in which a value is found fast, however many there are."""
    values: Collection[str] = requirement.get("values") or ()
    return requirement if len(values) <= _FEW else {**requirement, "values": frozenset(values)}


def indexed_term(term: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same term of a node selector, in which values are found fast."""
    expressions = at(term, "matchExpressions")
    if all(len(at(each, "values")) <= _FEW for each in expressions):
        return term
    return {**term, "matchExpressions": [*map(indexed, expressions)]}


def _compares(value: str | None, bounds: Sequence[str], sign: int) -> bool:
    if value is None or len(bounds) != 1 or max(len(value), len(bounds[0])) > _DIGITS:
        return False
    try:
        return (int(value) - int(bounds[0])) * sign > 0
    except ValueError:
        return False


_OPERATORS: Mapping[str, Callable[[str | None, Sequence[str]], bool]] = {
    "In": lambda value, among: value is not None and value in among,
    "NotIn": lambda value, among: value is None or value not in among,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": lambda value, bounds: _compares(value, bounds, 1),
    "Lt": lambda value, bounds: _compares(value, bounds, -1),
}


Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """The requirements of a selector; None where there is no selector, which selects nothing."""

    requirements: tuple[Mapping[str, Any], ...] | None = None

    @property
    def everything(self) -> bool:
        """True if it selects everything."""
        return self.requirements == ()

    @property
    def parts(self) -> int:
        """Number of requirements that labels are compared with, at most."""
        return len(self.requirements or ())

    def matches(self, labels: Labels) -> bool:
        """True if it selects what carries ``labels``."""
        if self.requirements is None:
            return False
        for requirement in self.requirements:  # a loop: this is asked of each group of pods
            if not holds(requirement, labels.get(requirement["key"])):
                return False
        return True

    def narrowed(self, labels: Labels) -> LabelSelector:
        """This selector, which also requires ``labels``; one that selects nothing is unchanged."""
        if self.requirements is None or not labels:
            return self
        return LabelSelector((*self.requirements, *_equal(labels)))


def read_label_selector(obj: Mapping[str, Any] | None) -> LabelSelector:
    """The LabelSelector in ``obj``."""
    if obj is None:
        return LabelSelector()
    equal = _equal(at(obj, "matchLabels", default={}))
    return LabelSelector((*equal, *map(indexed, at(obj, "matchExpressions"))))


def _equal(labels: Labels) -> tuple[Mapping[str, Any], ...]:
    return tuple({"key": k, "operator": "In", "values": [v]} for k, v in labels.items())


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_HONOR, _IGNORE = "Honor", "Ignore"
_HARD = "DoNotSchedule"


@dataclass(frozen=True, slots=True, eq=False)
class PodTerm:
    """A PodAffinityTerm. With neither ``namespaces`` nor a selector of them, its own is meant."""

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
        """Upper bound on the comparisons that show whether the term means a pod."""
        others = self.namespace_selector
        return 1 + self.selector.parts + (others.parts if others is not None else 0)

    def reach(self, owner: str) -> frozenset[str] | None:
        """The namespaces that the term may mean, for a pod of namespace ``owner``.

        None where labels of namespaces decide.
        """
        if self.namespace_selector is not None:
            return None
        return self.namespaces or frozenset([owner])

    def covers(self, namespace: str, labels: Labels, *, owner: str) -> bool:
        """True if the term, for a pod of namespace ``owner``, may mean pods of ``namespace``.

        ``labels`` are those of ``namespace``.
        """
        if namespace in self.namespaces or (self.at_home and namespace == owner):
            return True
        return self.namespace_selector is not None and self.namespace_selector.matches(labels)


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """A TopologySpreadConstraint; ``hard`` where it is DoNotSchedule.

    ``affinity_counts`` and ``taints_count``: the policy for node affinity, or taints, is Honor.
    """

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
        """Upper bound on the comparisons that show whether the constraint counts a pod."""
        return 1 + self.selector.parts + len(self.match_label_keys)

    def selector_for(self, labels: Labels) -> LabelSelector:
        """The selector for a pod with ``labels``, which adds those in ``match_label_keys``."""
        kept = {key: labels[key] for key in self.match_label_keys if key in labels}
        return self.selector.narrowed(kept)


@dataclass(frozen=True, slots=True, eq=False)
class NodeTerm:
    """A preferred node affinity: a NodeSelectorTerm and the weight of matching it."""

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
        """True if other pods decide on its nodes, apart from those that shun it."""
        return bool(self.affinity or self.anti_affinity or self.hard_spread)

    @property
    def prefers(self) -> bool:
        """True if it likes some nodes better than others."""
        return bool(self.liked or self.disliked or self.nodes or self.soft_spread)


ALONE = Company()
"""The company of a pod without any term."""


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
