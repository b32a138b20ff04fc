"""Quantities and versions are read exactly as Kubernetes reads them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dra.cel.data import SemverError, parse_semver
from dra.common.quantity import QuantityError, parse_quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("500m", Fraction(1, 2)),
        ("1.5Gi", 3 << 29),
        ("12Gi", 12 << 30),
        ("4864Mi", 4864 << 20),
        ("1E", 10**18),
        ("1E3", 1000),
        ("2e3", 2000),
        ("1e-3", Fraction(1, 1000)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("+3k", 3000),
        ("-3M", -3_000_000),
        ("1n", Fraction(1, 10**9)),
        ("0.1n", Fraction(1, 10**9)),
        ("-0.1n", Fraction(-1, 10**9)),
        ("7u", Fraction(7, 10**6)),
        ("1Ei", 1 << 60),
        (8, 8),
        (0.5, Fraction(1, 2)),
    ],
)
def test_a_quantity_is_its_number(text: str | float, number: Fraction | int) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize(
    "text", ["", "Gi", "1gi", "1 Gi", "1.2.3", "0x10", "1ki", "e3", "--1", "1e", "\u0661", "1Gi\n"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(QuantityError, match="no quantity"):
        parse_quantity(text)


def test_versions_are_ordered_by_the_rules_of_semver() -> None:
    rising = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta.2", "1.0.0-beta.11"]
    rising += ["1.0.0-rc.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "10.0.0"]
    orders = [parse_semver(text).order() for text in rising]
    assert orders == sorted(orders)
    assert len(set(orders)) == len(orders)


@pytest.mark.parametrize("text", ["1", "1.2", "v1.2.3", "01.2.3", "1.2.3-01", "1.2.3.4", ""])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(SemverError):
        parse_semver(text)


@pytest.mark.parametrize(
    ("text", "version"), [("v1.2", "1.2.0"), ("1", "1.0.0"), ("01.02.3", "1.2.3")]
)
def test_a_lenient_reading_completes_a_version(text: str, version: str) -> None:
    assert parse_semver(text, normalize=True) == parse_semver(version)
