"""Kubernetes' functions for the CEL runtime of this process: quantities, versions and so on.

``opaque`` says how values travel for which the runtime has no type. Signatures follow
k8s.io/apiserver/pkg/cel/library (quantity, semver).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from cel_expr_python import cel

from dra.cel.declaring import BOOL, INT, MAP, STRING, declare, function, method
from dra.cel.library import celformats, cellists, celnetwork, celoperators, celtext
from dra.cel.library.semver import Semver, SemverError, parse_semver
from dra.cel.opaque import QUANTITY, SEMVER, Opaque, quantity, quantity_of, semver
from dra.common.quantity import QuantityError, parse_quantity


def functions() -> list[Any]:
    """Declarations with their implementations, for ``cel.NewEnv``."""
    own = [*_comparisons(), *_quantities(), *_versions()]
    modules = (celoperators, cellists, celnetwork, celtext, celformats)
    return [*own, *(each for module in modules for each in module.functions())]


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


def _accepts(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def accepts(text: str) -> bool:
        try:
            parse(text)
        except (QuantityError, SemverError):
            return False
        return True

    return accepts


def _comparisons() -> Iterable[Any]:
    yield declare("compareTo", method(_compare, INT, MAP, MAP))
    yield declare("isLessThan", method(lambda a, b: _compare(a, b) < 0, BOOL, MAP, MAP))
    yield declare("isGreaterThan", method(lambda a, b: _compare(a, b) > 0, BOOL, MAP, MAP))


def _quantities() -> Iterable[Any]:
    yield declare("quantity", function(quantity, MAP, STRING))
    yield declare("isQuantity", function(_accepts(parse_quantity), BOOL, STRING))
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
        return _accepts(lambda t: parse_semver(t, normalize=bool(normalize)))(text)

    yield declare(
        "semver",
        function(semver, MAP, STRING),
        function(normalized, MAP, STRING, BOOL),
    )
    yield declare(
        "isSemver",
        function(_accepts(parse_semver), BOOL, STRING),
        function(is_version, BOOL, STRING, BOOL),
    )
    yield declare("major", method(lambda v: _version(v).major, INT, MAP))
    yield declare("minor", method(lambda v: _version(v).minor, INT, MAP))
    yield declare("patch", method(lambda v: _version(v).patch, INT, MAP))
