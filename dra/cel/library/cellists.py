"""Functions of lists and maps that Kubernetes' CEL has and the CEL runtime of this process lacks.

Signatures follow k8s.io/apiserver/pkg/cel/library (lists) and cel-go's ext.Lists; the rest of the
latter is the runtime's own. Names that end in ``_`` are what ``celspelling`` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import pairwise, product
from typing import Any

from cel_expr_python import cel

from dra.cel.declaring import BOOL, DYN, INT, LIST, MAP, STRING, declare, function, method

_MOST = 100_000
"""Elements of a list that is made from nothing: no selector may fill the memory."""

_ELEMENTS = (
    INT,
    STRING,
    BOOL,
    LIST,
    MAP,
    cel.Type.DOUBLE,
    cel.Type.UINT,
    cel.Type.BYTES,
    cel.Type.DURATION,
    cel.Type.TIMESTAMP,
    cel.Type.NULL,
)
"""The runtime calls a function of ours by the kinds of its operands, and has no kind for any."""

_UNRETURNABLE = {datetime: "timestamps", timedelta: "durations", bytearray: "bytes"}

_ATTRIBUTES = (INT, STRING, BOOL, MAP)
"""Types that an attribute may have; a version is a map."""

_ANY_MAP = cel.Type.Map(DYN, DYN)


def functions() -> Iterable[Any]:
    """Declarations with their implementations."""
    yield declare("isSorted", method(_is_sorted, BOOL, LIST))
    yield declare("sum", method(_sum, DYN, LIST))
    yield declare("min", method(_of_some(min), DYN, LIST))
    yield declare("max", method(_of_some(max), DYN, LIST))
    yield declare("lists.range_", function(_range, LIST, INT))
    yield declare(
        "indexOf_",
        *(method(_first, INT, LIST, element) for element in _ELEMENTS),
        method(_first_in_text, INT, STRING, STRING),
        method(_first_in_text, INT, STRING, STRING, INT),
    )
    yield declare(
        "lastIndexOf_",
        *(method(_last, INT, LIST, element) for element in _ELEMENTS),
        method(_last_in_text, INT, STRING, STRING),
        method(_last_in_text, INT, STRING, STRING, INT),
    )
    yield declare(
        "includes",  # of attributes; with the gate DRAListTypeAttributes only
        *(method(_includes, BOOL, a, b) for a, b in product((*_ATTRIBUTES, LIST), _ATTRIBUTES)),
    )
    yield declare("toMap_", method(lambda pairs: _merged({k: v} for k, v in pairs), _ANY_MAP, LIST))
    yield declare("toMerged_", method(_merged, _ANY_MAP, LIST))


def same(one: Any, other: Any) -> bool:
    """True if CEL takes two values for equal: unlike Python, it tells true from 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _is_sorted(items: list[Any]) -> bool:
    return all(one <= other for one, other in pairwise(items))


def _sum(items: list[Any]) -> Any:
    return _returnable("sum", sum(items[1:], items[0]) if items else 0)


def _of_some(choose: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def act(items: list[Any]) -> Any:
        if not items:
            raise ValueError(f"{choose.__name__} called on empty list")
        return _returnable(choose.__name__, choose(items))

    return act


def _returnable(name: str, value: Any) -> Any:
    """``value``, unless the runtime takes none of its type from a function of ours."""
    if isinstance(value, datetime | timedelta | bytearray):
        kind = _UNRETURNABLE[type(value)]
        raise TypeError(
            f"{name}() of {kind} is not supported by this driver, though Kubernetes has it; "
            "compare them one by one"
        )
    return value


def _range(end: int) -> list[int]:
    if end > _MOST:
        raise ValueError(f"lists.range({end}) is too long")
    return list(range(end))


def _first(items: list[Any], wanted: Any) -> int:
    return next((n for n, item in enumerate(items) if same(item, wanted)), -1)


def _last(items: list[Any], wanted: Any) -> int:
    found = _first(items[::-1], wanted)
    return found if found < 0 else len(items) - 1 - found


def _first_in_text(text: str, part: str, offset: int = 0) -> int:
    return _found_in_text(text.find, text, part, offset) if part else offset


def _last_in_text(text: str, part: str, offset: int | None = None) -> int:
    if offset is None:
        return text.rfind(part)

    def find(wanted: str, start: int) -> int:
        return text.rfind(wanted, 0, start + len(wanted))

    return _found_in_text(find, text, part, offset) if part else offset


def _found_in_text(find: Callable[[str, int], int], text: str, part: str, offset: int) -> int:
    if offset < 0:
        raise ValueError(f"index out of range: {offset}")
    return find(part, offset) if offset < len(text) else -1


def _includes(whole: Any, part: Any) -> bool:
    return any(same(item, part) for item in (whole if isinstance(whole, list) else [whole]))


def _merged(maps: Iterable[dict[Any, Any]]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for entries in maps:
        for key, value in entries.items():
            if key in found:
                raise ValueError(f"insert failed: key {key!r} already exists")
            found[key] = value
    return found
