"""Kubernetes quantities (``1500m``, ``12Gi``, ``2e3``) as exact numbers, and MiB as quantities.

The grammar is that of apimachinery's ``resource.Quantity``: a decimal number and a binary suffix, a
decimal suffix or an exponent. Fractions of a nano-unit are rounded away from zero, as there.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

_FORM = re.compile(
    r"(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?\d{1,3}))?",
    re.ASCII,
)
_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    **{
        letter: Fraction(10**power) for letter, power in zip("kMGTPE", range(3, 21, 3), strict=True)
    },
    **{f"{letter}i": Fraction(1 << (10 * n)) for n, letter in enumerate("KMGTPE", start=1)},
}
_NANO = 10**9
_MEBI_SUFFIXES = ("Mi", "Gi", "Ti", "Pi")
_MEBI_STEP = 1024


class QuantityError(ValueError):
    """A text that is no quantity."""


@lru_cache(maxsize=4096, typed=True)
def parse_quantity(text: str | float) -> Fraction:
    """The number that ``text`` stands for; JSON numbers are taken as they print.

    Raises:
        QuantityError: the text is no quantity.
    """
    match = _FORM.fullmatch(str(text))
    if match is None:
        raise QuantityError(f"{str(text)[:64]!r} is no quantity (such as 500m, 12Gi or 2e3)")
    number = Fraction(match["number"])
    if match["suffix"]:
        number *= _SUFFIXES[match["suffix"]]
    elif match["exponent"]:
        number *= Fraction(10) ** int(match["exponent"])
    return _rounded(number)


def _rounded(number: Fraction) -> Fraction:
    nanos = number * _NANO
    if nanos.denominator == 1:
        return number
    away = -(-abs(nanos).numerator // nanos.denominator)
    return Fraction(away if number > 0 else -away, _NANO)


def mebibytes(amount: int) -> str:
    """``amount`` MiB as the API server writes it: the largest suffix that leaves a whole number."""
    step = 0
    while amount and amount % _MEBI_STEP == 0 and step < len(_MEBI_SUFFIXES) - 1:
        amount //= _MEBI_STEP
        step += 1
    return f"{amount}{_MEBI_SUFFIXES[step]}" if amount else "0"
