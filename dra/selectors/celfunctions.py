"""What Kubernetes adds to CEL, for the CEL runtime of this process: quantities, versions and so on.

The runtime carries no types of ours, so a quantity travels as the map ``{"quantity": "<number>"}``
and a version as ``{"semver": "<version>"}``, both in a canonical form: equal values are equal maps.
Signatures follow k8s.io/apiserver/pkg/cel/library (quantity, semver, sets).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from cel_expr_python import cel

from dra.quantity import QuantityError, parse_quantity
from dra.selectors.semver import Semver, SemverError, parse_semver

_QUANTITY = "quantity"
_SEMVER = "semver"

Opaque = dict[str, str]


def quantity(text: str) -> Opaque:
    """A quantity as CEL data. Raises QuantityError."""
    return _quantity_of(parse_quantity(text))


def semver(text: str) -> Opaque:
    """A version as CEL data. Raises SemverError."""
    return {_SEMVER: str(parse_semver(text))}


def functions() -> list[Any]:
    """Declarations with their implementations, for ``cel.NewEnv``."""
    return [*_comparisons(), *_quantities(), *_versions(), *_others()]


def _quantity_of(number: Fraction) -> Opaque:
    return {_QUANTITY: str(number)}


def _number(value: Opaque) -> Fraction:
    if _QUANTITY not in value:
        raise TypeError("this operand is no quantity")
    return Fraction(value[_QUANTITY])


def _version(value: Opaque) -> Semver:
    if _SEMVER not in value:
        raise TypeError("this operand is no semver")
    return parse_semver(value[_SEMVER])


def _integer(value: Opaque) -> int:
    number = _number(value)
    if number.denominator != 1:
        raise ValueError(f"quantity {float(number)} is no integer")
    return int(number)


def _compare(left: Opaque, right: Opaque) -> int:
    if _QUANTITY in left and _QUANTITY in right:
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
    yield _declare("compareTo", _method(_compare, _INT, _MAP, _MAP))
    yield _declare("isLessThan", _method(lambda a, b: _compare(a, b) < 0, _BOOL, _MAP, _MAP))
    yield _declare("isGreaterThan", _method(lambda a, b: _compare(a, b) > 0, _BOOL, _MAP, _MAP))


def _quantities() -> Iterable[Any]:
    yield _declare("quantity", _function(quantity, _MAP, _STRING))
    yield _declare("isQuantity", _function(_accepts(parse_quantity), _BOOL, _STRING))
    yield _declare("sign", _method(lambda q: (_number(q) > 0) - (_number(q) < 0), _INT, _MAP))
    yield _declare("isInteger", _method(lambda q: _number(q).denominator == 1, _BOOL, _MAP))
    yield _declare("asInteger", _method(_integer, _INT, _MAP))
    yield _declare(
        "asApproximateFloat", _method(lambda q: float(_number(q)), cel.Type.DOUBLE, _MAP)
    )
    for name, sign in (("add", 1), ("sub", -1)):
        yield _declare(
            name,
            _method(
                lambda a, b, s=sign: _quantity_of(_number(a) + s * _number(b)), _MAP, _MAP, _MAP
            ),
            _method(lambda a, n, s=sign: _quantity_of(_number(a) + s * n), _MAP, _MAP, _INT),
        )


def _versions() -> Iterable[Any]:
    def normalized(text: str, normalize: object) -> Opaque:
        return {_SEMVER: str(parse_semver(text, normalize=bool(normalize)))}

    def is_version(text: str, normalize: object) -> bool:
        return _accepts(lambda t: parse_semver(t, normalize=bool(normalize)))(text)

    yield _declare(
        "semver",
        _function(semver, _MAP, _STRING),
        _function(normalized, _MAP, _STRING, _BOOL),
    )
    yield _declare(
        "isSemver",
        _function(_accepts(parse_semver), _BOOL, _STRING),
        _function(is_version, _BOOL, _STRING, _BOOL),
    )
    yield _declare("major", _method(lambda v: _version(v).major, _INT, _MAP))
    yield _declare("minor", _method(lambda v: _version(v).minor, _INT, _MAP))
    yield _declare("patch", _method(lambda v: _version(v).patch, _INT, _MAP))


def _others() -> Iterable[Any]:
    def contains(whole: list[Any], part: list[Any]) -> bool:
        return all(item in whole for item in part)

    yield _declare("sets.contains", _function(contains, _BOOL, _LIST, _LIST))
    yield _declare(
        "sets.intersects",
        _function(lambda a, b: any(item in a for item in b), _BOOL, _LIST, _LIST),
    )
    yield _declare(
        "sets.equivalent",
        _function(lambda a, b: contains(a, b) and contains(b, a), _BOOL, _LIST, _LIST),
    )


_BOOL, _INT, _STRING = cel.Type.BOOL, cel.Type.INT, cel.Type.STRING
_MAP = cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
_LIST = cel.Type.List(cel.Type.DYN)

_Overload = Callable[[str], Any]


def _method(impl: Callable[..., Any], returns: Any, *parameters: Any) -> _Overload:
    return lambda overload_id: cel.Overload(
        overload_id, return_type=returns, parameters=[*parameters], is_member=True, impl=impl
    )


def _function(impl: Callable[..., Any], returns: Any, *parameters: Any) -> _Overload:
    return lambda overload_id: cel.Overload(
        overload_id, return_type=returns, parameters=[*parameters], impl=impl
    )


def _declare(name: str, *overloads: _Overload) -> Any:
    return cel.FunctionDecl(name, [overload(f"{name}_{n}") for n, overload in enumerate(overloads)])
