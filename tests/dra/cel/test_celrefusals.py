"""Selectors that do not compile are refused with the place of the mistake."""

from __future__ import annotations

import pytest

from dra.cel.questions import SelectorError
from tests.dra.cel.slices import SELECTORS, small_slice

MALFORMED = [
    ("device.driver ==", "1:17"),
    ("device.driver = 'x'", "1:15"),
    ("nothing == 1", "undeclared reference to 'nothing'"),
    ("device.driver.unknown()", "unknown"),
    ("'a' + 1 == 2", "overload"),
    ("1 + 1", "boolean"),
    ("device.driver", None),
    ("", "1:1"),
    ("1 == 1.0", "overload"),
    ("[1, 2].existsOne(v, v > 1)", "undeclared reference to 'v'"),
    ("[1, 2].indexOf(2) == 1 && nothing", "undeclared reference to 'nothing'"),
    ("type(ip('::1')) == net.IP", "'net.IP'.*leave the test of type out"),
    ("'abc'.reverse() == 'cba'", "reverse"),
]


@pytest.mark.parametrize(
    ("expression", "place"),
    [
        ("format.uuid().validate('') == nothing", "1:31: undeclared reference to 'nothing'"),
        ("{1: 2}.transformMap(k, v, nothing) == {}", "1:27: undeclared reference to 'nothing'"),
        ("{1: 2}.transformMap(k, v, v) == nothing", "1:33: undeclared reference to 'nothing'"),
        ("[1].indexOf(1)\n  == nothing", "2:6: undeclared reference to 'nothing'"),
        ("optional.unwrap([1]) == nothing", "1:25: undeclared reference to 'nothing'"),
        ("[1].indexOf(1, 2) == 1", "1:12: found no matching overload for 'indexOf'"),
    ],
)
def test_places_are_those_of_the_expression_as_it_was_written(expression: str, place: str) -> None:
    with pytest.raises(SelectorError) as refusal:
        SELECTORS.check(expression)
    assert place in str(refusal.value)


@pytest.mark.parametrize(
    "expression",
    ["", ")", "[1].indexOf(1))", "([1].indexOf(1)", "'open", "[1].transformMap()", ".validate()"],
)
def test_what_is_no_expression_has_a_reason_too(expression: str) -> None:
    with pytest.raises(SelectorError):
        SELECTORS.check(expression)


@pytest.mark.parametrize(("expression", "place"), MALFORMED)
def test_a_malformed_selector_is_refused_with_the_place(expression: str, place: str | None) -> None:
    selectors = SELECTORS
    if place is None:  # its type is known only at run time
        selectors.check(expression)
        return
    with pytest.raises(SelectorError, match=place):
        selectors.check(expression)
    with pytest.raises(SelectorError):
        selectors.evaluate(expression, small_slice())
