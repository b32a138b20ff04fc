"""Kubernetes' functions for the CEL runtime of this process: quantities, versions and so on.

Values for which the runtime has no type travel as maps (``Opaque`` of ``dra.cel.data``). Signatures
follow k8s.io/apiserver/pkg/cel/library (quantity, semver).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import islice, permutations
from typing import Any

import re2
from cel_expr_python import cel

from dra.cel.data import (
    QUANTITY,
    SEMVER,
    Opaque,
    Semver,
    parse_semver,
    quantity,
    quantity_of,
    semver,
)
from dra.common.quantity import parse_quantity

BOOL, INT, STRING = cel.Type.BOOL, cel.Type.INT, cel.Type.STRING
MAP = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
"""Type of a map, as which values travel for which the runtime has no type."""

Overload = Callable[[str], Any]


def method(impl: Callable[..., Any], returns: Any, *parameters: Any) -> Overload:
    """An overload that is called on its first parameter."""
    return lambda overload_id: cel.Overload(
        overload_id, return_type=returns, parameters=[*parameters], is_member=True, impl=impl
    )


def function(impl: Callable[..., Any], returns: Any, *parameters: Any) -> Overload:
    """An overload that is called by its name alone."""
    return lambda overload_id: cel.Overload(
        overload_id, return_type=returns, parameters=[*parameters], impl=impl
    )


def declare(name: str, *overloads: Overload) -> Any:
    """The function ``name``, for ``cel.NewEnv``."""
    made = [overload(f"own:{name}_{n}") for n, overload in enumerate(overloads)]
    return cel.FunctionDecl(name, made)


def accepts(parse: Callable[[str], object]) -> Callable[[str], bool]:
    """A function that is True for texts that ``parse`` reads, False where it raises ValueError."""

    def told(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return told


_ORDER = {"_<_": "less", "_<=_": "less_equals", "_>_": "greater", "_>=_": "greater_equals"}
REPLACED = tuple(_ORDER)
"""Functions of the standard library to leave out, since they are declared here."""

_NUMBERS = {"int64": cel.Type.INT, "uint64": cel.Type.UINT, "double": cel.Type.DOUBLE}
_KINDS = {
    **_NUMBERS,
    "bool": cel.Type.BOOL,
    "string": cel.Type.STRING,
    "bytes": cel.Type.BYTES,
    "timestamp": cel.Type.TIMESTAMP,
    "duration": cel.Type.DURATION,
}


def _operators() -> Iterable[Any]:
    """Declarations; an overload without implementation has the runtime's own."""
    for name, prefix in _ORDER.items():
        alike = [_overload(f"{prefix}_{kind}", BOOL, t, t) for kind, t in _KINDS.items()]
        mixed = [
            _overload(f"{prefix}_{one}_{other}", BOOL, _NUMBERS[one], _NUMBERS[other])
            for one, other in permutations(_NUMBERS, 2)
        ]
        yield cel.FunctionDecl(name, [*alike, *mixed])


def _overload(overload_id: str, returns: Any, *parameters: Any) -> Any:
    return cel.Overload(overload_id, return_type=returns, parameters=[*parameters])


_STRINGS = cel.Type.List(cel.Type.STRING)


def _texts() -> Iterable[Any]:
    """Declarations with their implementations."""
    yield declare("find", method(_find, STRING, STRING, STRING))
    yield declare(
        "findAll",
        method(_find_all, _STRINGS, STRING, STRING),
        method(_find_all, _STRINGS, STRING, STRING, INT),
    )


def _find(text: str, pattern: str) -> str:
    found = re2.search(pattern, text)
    return str(found.group()) if found else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    found = (str(match.group()) for match in re2.finditer(pattern, text))
    return list(found) if limit < 0 else list(islice(found, limit))


def functions() -> list[Any]:
    """Declarations with their implementations, for ``cel.NewEnv``."""
    return [
        *_comparisons(),
        *_quantities(),
        *_versions(),
        *_operators(),
        *_texts(),
    ]


def _number(value: Opaque) -> Fraction:
    if QUANTITY not in value:
        raise TypeError("this operand is no quantity")
    return Fraction(value[QUANTITY])


def _version(value: Opaque) -> Semver:
    if SEMVER not in value:
        raise TypeError("this operand is no semver")
    return parse_semver(value[SEMVER])


def _integer(value: Opaque) -> int:
    number = _number(value)
    if number.denominator != 1:
        raise ValueError(f"quantity {float(number)} is no integer")
    return int(number)


def _compare(left: Opaque, right: Opaque) -> int:
    if QUANTITY in left and QUANTITY in right:
        one, other = _number(left), _number(right)
        return (one > other) - (one < other)
    first, second = _version(left).order(), _version(right).order()
    return (first > second) - (first < second)


def _comparisons() -> Iterable[Any]:
    yield declare("compareTo", method(_compare, INT, MAP, MAP))
    yield declare("isLessThan", method(lambda a, b: _compare(a, b) < 0, BOOL, MAP, MAP))
    yield declare("isGreaterThan", method(lambda a, b: _compare(a, b) > 0, BOOL, MAP, MAP))


def _quantities() -> Iterable[Any]:
    yield declare("quantity", function(quantity, MAP, STRING))
    yield declare("isQuantity", function(accepts(parse_quantity), BOOL, STRING))
    yield declare("sign", function(lambda q: (_number(q) > 0) - (_number(q) < 0), INT, MAP))
    yield declare("isInteger", method(lambda q: _number(q).denominator == 1, BOOL, MAP))
    yield declare("asInteger", method(_integer, INT, MAP))
    yield declare("asApproximateFloat", method(lambda q: float(_number(q)), cel.Type.DOUBLE, MAP))
    for name, sign in (("add", 1), ("sub", -1)):
        yield declare(
            name,
            method(lambda a, b, s=sign: quantity_of(_number(a) + s * _number(b)), MAP, MAP, MAP),
            method(lambda a, n, s=sign: quantity_of(_number(a) + s * n), MAP, MAP, INT),
        )


def _versions() -> Iterable[Any]:
    def normalized(text: str, normalize: object) -> Opaque:
        return {SEMVER: str(parse_semver(text, normalize=bool(normalize)))}

    def is_version(text: str, normalize: object) -> bool:
        return accepts(lambda t: parse_semver(t, normalize=bool(normalize)))(text)

    yield declare(
        "semver",
        function(semver, MAP, STRING),
        function(normalized, MAP, STRING, BOOL),
    )
    yield declare(
        "isSemver",
        function(accepts(parse_semver), BOOL, STRING),
        function(is_version, BOOL, STRING, BOOL),
    )
    yield declare("major", method(lambda v: _version(v).major, INT, MAP))
    yield declare("minor", method(lambda v: _version(v).minor, INT, MAP))
    yield declare("patch", method(lambda v: _version(v).patch, INT, MAP))
