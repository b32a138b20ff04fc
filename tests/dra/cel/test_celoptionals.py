"""Optionals inside lists and maps, which the CEL runtime cannot hand to functions of ours."""

from __future__ import annotations

import re

import pytest

from dra.cel.questions import Job, Selected
from dra.sandbox.process import Sandbox
from tests.dra.cel.slices import OWN, SELECTORS, small_slice

UNSAFE = [
    "[optional.of(1)].isSorted()",
    "[[optional.of(1)]].isSorted()",
    "[{'a': optional.of(1)}].isSorted()",
    "[1].map(x, optional.of(x)).isSorted()",
    "cel.bind(x, optional.of(1), [x]).isSorted()",
    "cel.bind(x, optional.of(1), [dyn(x)].isSorted())",
    "dyn(optional.of(1)).isSorted()",
    "[[1].first()].isSorted()",
    "optional.of([optional.of(1)]).value().isSorted()",
    "[optional.of(1), ?optional.of(2)].isSorted()",
    "{'a': optional.of(1)}.isLessThan({'a': 'b'})",
    "{'a': optional.of(1)}.transformMap(k, v, v) == {}",
]
"""They may end the process, or call Python with garbage."""
SAFE = [
    "[1].isSorted() && optional.of(1).hasValue()",
    "[1, ?optional.of(2)].isSorted()",
    "[1].first().hasValue() && [1].isSorted()",
    "(true ? optional.of(1) : optional.none()).hasValue() && [1].isSorted()",
    f"{OWN}.?driverVersion.orValue(semver('0.0.0')).isGreaterThan(semver('1.0.0'))",
    f"{OWN}[?'driverVersion'].optMap(v, v.major() > 1).orValue(false)",
    "[optional.of(1)].unwrapOpt() == [1]",
]


def test_an_optional_that_a_function_of_ours_could_find_is_refused() -> None:
    sandbox = Sandbox()
    try:
        for expression in UNSAFE:
            answer = sandbox.answer(Job((expression,), (small_slice(),)))
            said = answer.error or answer.selected[0].error
            assert not answer.selected or not answer.selected[0].devices
            assert re.search(r"optionals? in (a list|lists)", said), (expression, said)
            plain = sandbox.answer(Job((SAFE[0],), (small_slice(),)))
            assert plain.selected == (Selected((0,)),)
    finally:
        sandbox.close()


@pytest.mark.parametrize("expression", SAFE)
def test_an_optional_that_stays_among_its_own_is_not_refused(expression: str) -> None:
    assert SELECTORS.evaluate(expression, small_slice()).selected
