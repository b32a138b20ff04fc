"""Selectors that do not compile are refused with the place of the mistake."""

from __future__ import annotations

import re

import pytest

from dra.cel.questions import Job, Selected, SelectorError
from dra.sandbox.process import Sandbox
from tests.dra.cel.slices import OWN, SELECTORS, small_slice

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
    ("'abc'.reverse() == 'cba'", "reverse"),
]


LACKING = [
    ("ip('::1').isLoopback()", "ip"),
    ("!isIP(device.driver)", "isIP"),
    ("ip.isCanonical('::1')", "ip"),
    ("cidr('10.0.0.0/8').prefixLength() == 8", "cidr"),
    ("isCIDR('10.0.0.0/8')", "isCIDR"),
    ("url('https://e:80').getPort() == '80'", "url"),
    ("isURL('/x')", "isURL"),
    ("!format.dns1123Label().validate('a-1').hasValue()", "format"),
    ("format.named('uuid').hasValue()", "format"),
    ("[1, 2].exists_one(i, v, v > 1)", "exists_one of two variables"),
    ("[optional.of(1)].unwrapOpt() == [1]", "unwrapOpt"),
    ("optional.unwrap([optional.of(1)]) == [1]", "unwrap"),
    ("[1, 2].indexOf(2) == 1", "indexOf of lists"),
    ("['a'].lastIndexOf(device.driver) == -1", "lastIndexOf of lists"),
    ("[1, 2].sum() == 3", "sum"),
    ("[1, 2].min() == 1", "min"),
    ("['b', 'a'].max() == 'b'", "max"),
    ("[1, 2].isSorted()", "isSorted"),
    (f"{OWN}.profile.includes('1g.5gb')", "includes"),
    ("type(1) == net.IP", "net.IP"),
]
"""Functions that Kubernetes alone has: refused before they are evaluated."""


@pytest.mark.parametrize(("expression", "name"), LACKING)
def test_a_function_that_kubernetes_alone_has_is_named(expression: str, name: str) -> None:
    with pytest.raises(SelectorError) as refusal:
        SELECTORS.check(expression)
    assert f"this driver has no {name}, which kube-scheduler has" in str(refusal.value)


@pytest.mark.parametrize(
    "expression",
    ["", ")", "[1].indexOf(1))", "([1].indexOf(1)", "'open", "[1].transformMap()"],
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


# -- optionals inside maps, which the CEL runtime cannot hand to functions of ours


UNSAFE = [
    "{'a': optional.of(1)}.isLessThan({'a': 'b'})",
    "{'a': {'b': optional.of(1)}}.isLessThan({'a': 'b'})",
    "{'a': [optional.of(1)]}.isLessThan({'a': 'b'})",
    "cel.bind(x, optional.of(1), {'a': x}).isLessThan({'a': 'b'})",
    "dyn(optional.of(1)).isLessThan({'a': 'b'})",
    "dyn({'a': optional.of(1)}).isLessThan({'a': 'b'})",
    "{'a': [1].first()}.isLessThan({'a': 'b'})",
]
"""They may end the process, or call Python with garbage."""


SAFE = [
    "isQuantity('1') && optional.of(1).hasValue()",
    "isQuantity('1') && [1, ?optional.of(2)].size() == 2",
    "[1].first().hasValue() && isQuantity('1')",
    "(true ? optional.of(1) : optional.none()).hasValue() && isQuantity('1')",
    f"{OWN}.?driverVersion.orValue(semver('0.0.0')).isGreaterThan(semver('1.0.0'))",
    f"{OWN}[?'driverVersion'].optMap(v, v.major() > 1).orValue(false)",
]


def test_an_optional_that_a_function_of_ours_could_find_is_refused() -> None:
    sandbox = Sandbox()
    try:
        for expression in UNSAFE:
            answer = sandbox.answer(Job((expression,), (small_slice(),)))
            said = answer.error or answer.selected[0].error
            assert not answer.selected or not answer.selected[0].devices
            assert re.search(r"optionals? in (a map|lists or maps)", said), (expression, said)
            plain = sandbox.answer(Job((SAFE[0],), (small_slice(),)))
            assert plain.selected == (Selected((0,)),)
    finally:
        sandbox.close()


@pytest.mark.parametrize("expression", SAFE)
def test_an_optional_that_stays_among_its_own_is_not_refused(expression: str) -> None:
    assert SELECTORS.evaluate(expression, small_slice()).selected
