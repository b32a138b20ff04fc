"""Quantities in canonical form, because the API server answers `1024Mi` with `1Gi`.

The rules are those of k8s.io/apimachinery `resource.Quantity`: the family of suffixes (binary,
decimal, exponent) stays, the mantissa becomes an integer with the largest suffix that allows it.
"""

from __future__ import annotations

import re

from dra.common.quantity import parse_quantity

_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_SUFFIX = re.compile(r"[KMGTPE]i$|[numkMGTPE]$|[eE][+-]?\d+$")
_BINARY_FLOOR = 1024


def canonical(text: str) -> str:
    """A quantity as the API server writes it back.

    Raises:
        ValueError: the text is no quantity.
    """
    value = parse_quantity(text)
    found = _SUFFIX.search(text)
    suffix = found[0] if found else ""
    if value == 0:
        return "0"
    if suffix in _BINARY and abs(value) >= _BINARY_FLOOR and value.denominator == 1:
        return _scaled_binary(value.numerator)
    exponent = -9
    number = int(value * 10**9)
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
