"""Optionals inside lists and maps, which the CEL runtime cannot hand to functions of ours."""

from __future__ import annotations

import pytest

from dra.cel.questions import SelectorError
from dra.cel.selectors import Selectors
from tests.dra.cel.slices import OWN, small_slice

UNSAFE = [
    "[optional.of(1)].isSorted()",
    "[[optional.of(1)]].isSorted()",
    "[{'a': optional.of(1)}].isSorted()",
    "[1].map(x, optional.of(x)).isSorted()",
    "cel.bind(x, optional.of(1), [x]).isSorted()",
    "cel.bind(x, optional.of(1), [dyn(x)].isSorted())",
    "[true ? dyn(1) : optional.of(1)].isSorted()",
    "dyn(optional.of(1)).isSorted()",
    "[[1].first()].isSorted()",
    "optional.of([optional.of(1)]).value().isSorted()",
    "[optional.of(1), ?optional.of(2)].isSorted()",
    "{'a': optional.of(1)}.isLessThan({'a': 'b'})",
    "{'a': optional.of(1)}.transformMap(k, v, v) == {}",
]
"""They would end the process, or call Python with garbage."""
SAFE = [
    "[1].isSorted() && optional.of(1).hasValue()",
    "[1, ?optional.of(2)].isSorted()",
    "[1].first().hasValue() && [1].isSorted()",
    "(true ? optional.of(1) : optional.none()).hasValue() && [1].isSorted()",
    f"{OWN}.?driverVersion.orValue(semver('0.0.0')).isGreaterThan(semver('1.0.0'))",
    f"{OWN}[?'driverVersion'].optMap(v, v.major() > 1).orValue(false)",
    "[optional.of(1)].unwrapOpt() == [1]",
]


@pytest.mark.parametrize("expression", UNSAFE)
def test_an_optional_that_a_function_of_ours_could_find_is_refused(expression: str) -> None:
    # Checked only: evaluated, it could end the process of the tests.
    with pytest.raises(SelectorError, match=r"optional in a list.*not supported.*orValue"):
        Selectors().check(expression)


@pytest.mark.parametrize("expression", SAFE)
def test_an_optional_that_stays_among_its_own_is_not_refused(expression: str) -> None:
    assert Selectors().evaluate(expression, small_slice()).selected
