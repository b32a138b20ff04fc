"""List functions of Kubernetes' CEL, which the CEL runtime of this process lacks.

Signatures follow k8s.io/apiserver/pkg/cel/library (lists) and cel-go's ext.Lists. ``indexOf``,
``lastIndexOf`` and ``reverse`` are missing: the runtime has them for strings, and takes no more
overloads. So are macros, which it does not let us add (``sortBy``, ``exists`` with two variables).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from cel_expr_python import cel

from dra.selectors.declaring import DYN, INT, LIST, declare, function, method

BOOL = cel.Type.BOOL
_MOST = 100_000
"""Elements of a list that is made from nothing: no selector may fill the memory."""


def functions() -> Iterable[Any]:
    """Declarations with their implementations."""
    yield declare("isSorted", method(_is_sorted, BOOL, LIST))
    yield declare("sum", method(_sum, DYN, LIST))
    yield declare("min", method(_of_some(min), DYN, LIST))
    yield declare("max", method(_of_some(max), DYN, LIST))
    yield declare("slice", method(_slice, LIST, LIST, INT, INT))
    yield declare(
        "flatten",
        method(lambda items: _flatten(items, 1), LIST, LIST),
        method(_flatten, LIST, LIST, INT),
    )
    yield declare("sort", method(sorted, LIST, LIST))
    yield declare("distinct", method(_distinct, LIST, LIST))
    yield declare("lists.range", function(_range, LIST, INT))


def _is_sorted(items: list[Any]) -> bool:
    return all(one <= other for one, other in pairwise(items))


def _sum(items: list[Any]) -> Any:
    return sum(items)


def _of_some(choose: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def act(items: list[Any]) -> Any:
        if not items:
            raise ValueError(f"{choose.__name__} called on empty list")
        return choose(items)

    return act


def _slice(items: list[Any], start: int, end: int) -> list[Any]:
    if not 0 <= start <= end <= len(items):
        raise ValueError(f"cannot slice({start}, {end}) a list of {len(items)}")
    return items[start:end]


def _flatten(items: list[Any], depth: int) -> list[Any]:
    if depth < 0:
        raise ValueError("level must be non-negative")
    found: list[Any] = []
    for item in items:
        found.extend(_flatten(item, depth - 1) if isinstance(item, list) and depth else [item])
    return found


def _distinct(items: list[Any]) -> list[Any]:
    found: list[Any] = []
    for item in items:
        if item not in found:
            found.append(item)
    return found


def _range(end: int) -> list[int]:
    if end > _MOST:
        raise ValueError(f"lists.range({end}) is too long")
    return list(range(end))
