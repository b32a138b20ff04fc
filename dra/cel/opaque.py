"""Quantities and versions as CEL data.

The CEL runtime carries no types of ours, so a quantity travels as the map
``{"quantity": "<number>"}`` and a version as ``{"semver": "<version>"}``, both in a canonical form:
equal values are equal maps.
"""

from __future__ import annotations

from fractions import Fraction

from dra.cel.library.semver import parse_semver
from dra.common.quantity import parse_quantity

QUANTITY = "quantity"
SEMVER = "semver"

Opaque = dict[str, str]


def quantity(text: str) -> Opaque:
    """A quantity as CEL data. Raises QuantityError."""
    return quantity_of(parse_quantity(text))


def quantity_of(number: Fraction) -> Opaque:
    """A number as a quantity."""
    return {QUANTITY: str(number)}


def semver(text: str) -> Opaque:
    """A version as CEL data. Raises SemverError."""
    return {SEMVER: str(parse_semver(text))}
