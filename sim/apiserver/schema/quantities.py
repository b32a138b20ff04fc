"""Quantities in canonical form, because the API server answers `1024Mi` with `1Gi`.

The rules are those of k8s.io/apimachinery `resource.Quantity`: the family of suffixes (binary,
decimal, exponent) stays, the mantissa becomes an integer with the largest suffix that allows it.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_FORM = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?\d+)?$")
_BINARY_FLOOR = 1024


def parse(text: str) -> Decimal:
    """Give the value of a quantity.

    Raises:
        ValueError: the text is no quantity.
    """
    match = _FORM.match(text)
    if match is None:
        raise ValueError(text)
    number, suffix = Decimal(match[1]), match[2] or ""
    if suffix in _BINARY:
        return number * Decimal(1024) ** _BINARY[suffix]
    if suffix in _DECIMAL:
        return number * Decimal(10) ** _DECIMAL[suffix]
    return number * Decimal(10) ** int(suffix[1:])


def canonical(text: str) -> str:
    """Give a quantity as the API server writes it back.

    Raises:
        ValueError: the text is no quantity.
    """
    value = parse(text)
    match = _FORM.match(text)
    suffix = (match[2] or "") if match else ""
    nano = (value * Decimal(10) ** 9).to_integral_value(rounding=ROUND_CEILING)
    if nano == 0:
        return "0"
    if suffix in _BINARY and abs(value) >= _BINARY_FLOOR and value == value.to_integral_value():
        return _scaled_binary(int(value))
    exponent = -9
    number = int(nano)
    while number % 1000 == 0 and exponent < _DECIMAL["E"]:
        number //= 1000
        exponent += 3
    if suffix[:1] in ("e", "E") and suffix not in ("E", "Ei"):
        return f"{number}e{exponent}" if exponent else str(number)
    return str(number) + next(name for name, power in _DECIMAL.items() if power == exponent)


def _scaled_binary(number: int) -> str:
    power = 0
    while number % 1024 == 0 and power < _BINARY["Ei"]:
        number //= 1024
        power += 1
    return str(number) + next((name for name, at in _BINARY.items() if at == power), "")
