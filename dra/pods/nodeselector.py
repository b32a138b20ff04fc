"""Node selectors as kube-scheduler reads them: terms are alternatives, a term's parts all hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dra.common.resources import at

_FIELDS = "metadata.name"


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
    """True if ``value`` (None: there is none) is as a requirement with operator and values says."""
    check = _OPERATORS.get(requirement["operator"])
    return check is not None and check(value, requirement.get("values") or ())


def _compares(value: str | None, bounds: Sequence[str], sign: int) -> bool:
    if value is None or len(bounds) != 1:
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
