"""Node selectors as kube-scheduler reads them: terms are alternatives, a term's parts all hold."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from dra.common.resources import at

_FIELDS = "metadata.name"
_FEW = 8
"""Values that are looked through as fast as in any other way."""

_DIGITS = 63
"""Digits of a number that is read: the value of a label has no more, and a million takes long."""


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


class _Sorted(tuple[str, ...]):
    """Values in order, so that one is found among thousands in a few steps."""

    __slots__ = ()

    def __contains__(self, value: object) -> bool:
        place = bisect_left(self, value)  # type: ignore[call-overload]
        return place < len(self) and bool(self[place] == value)


def indexed(requirement: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same requirement, in which a value is found fast, however many there are."""
    values: Collection[str] = requirement.get("values") or ()
    return (
        requirement if len(values) <= _FEW else {**requirement, "values": _Sorted(sorted(values))}
    )


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
