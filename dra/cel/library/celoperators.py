"""Operators and conversions of CEL that Kubernetes extends.

Numbers of any two kinds are compared (``cel.CrossTypeNumericComparisons``), and an address or a
network becomes a string. The runtime can do the former, its type checker does not know of it:
declarations of the standard library are replaced by these, under the same overload ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from typing import Any

from cel_expr_python import cel

from dra.cel.declaring import BOOL, MAP, STRING

_ORDER = {"_<_": "less", "_<=_": "less_equals", "_>_": "greater", "_>=_": "greater_equals"}
REPLACED = (*_ORDER, "string")
"""Functions of the standard library that are not to be declared besides."""

_NUMBERS = {"int64": cel.Type.INT, "uint64": cel.Type.UINT, "double": cel.Type.DOUBLE}
_KINDS = {
    **_NUMBERS,
    "bool": cel.Type.BOOL,
    "string": cel.Type.STRING,
    "bytes": cel.Type.BYTES,
    "timestamp": cel.Type.TIMESTAMP,
    "duration": cel.Type.DURATION,
}


def functions() -> Iterable[Any]:
    """Declarations; those without implementation have the runtime's."""
    for name, prefix in _ORDER.items():
        alike = [_overload(f"{prefix}_{kind}", BOOL, t, t) for kind, t in _KINDS.items()]
        mixed = [
            _overload(f"{prefix}_{one}_{other}", BOOL, _NUMBERS[one], _NUMBERS[other])
            for one, other in permutations(_NUMBERS, 2)
        ]
        yield cel.FunctionDecl(name, [*alike, *mixed])
    standard = [_overload(f"{kind}_to_string", STRING, t) for kind, t in _KINDS.items()]
    own = cel.Overload("map_to_string", return_type=STRING, parameters=[MAP], impl=_string)
    yield cel.FunctionDecl("string", [*standard, own])


def _overload(overload_id: str, returns: Any, *parameters: Any) -> Any:
    return cel.Overload(overload_id, return_type=returns, parameters=[*parameters])


def _string(value: dict[str, str]) -> str:
    for kind in ("ip", "cidr"):
        if kind in value:
            return value[kind]
    raise TypeError("string() takes no such operand")
