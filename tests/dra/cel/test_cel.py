"""Selectors select what they would select in kube-scheduler (KEP-4381)."""

from __future__ import annotations

import pytest

from dra.cel.data import View
from tests.controller.helpers.objects import DRIVER
from tests.dra.cel.slices import MEMORY, OWN, SELECTORS, small_slice

SELECTED = [
    f"device.driver == '{DRIVER}'",
    f"{OWN}.type == 'mig' && {OWN}.profile == '1g.5gb'",
    f"{OWN}.profile in ['1g.5gb', '2g.10gb']",
    f"{OWN}.profile.matches('^1g[.]')",
    f"{OWN}.productName.lowerAscii().contains('a100')",
    f"{MEMORY}.compareTo(quantity('4Gi')) >= 0",
    f"{MEMORY}.isGreaterThan(quantity('4864M'))",
    f"{MEMORY} == quantity('4864Mi')",
    f"quantity('1Gi') == quantity('1024Mi') && {MEMORY}.isInteger() && sign({MEMORY}) == 1",
    f"{MEMORY}.sub(quantity('864Mi')).add(1).asInteger() == 4194304001",
    f"device.capacity['{DRIVER}'].multiprocessors.asApproximateFloat() == 14.0",
    f"{OWN}.driverVersion.isGreaterThan(semver('550.0.0'))",
    f"{OWN}.driverVersion.compareTo(semver('570.86.10')) == 0",
    f"{OWN}.driverVersion == semver('v570.86.10', true)",
    f"{OWN}.cudaComputeCapability.major() == 8 && {OWN}.driverVersion.minor() == 86",
    f"{OWN}.driverVersion.patch() == 10",
    "isSemver('1.2.3') && !isSemver('1.2') && isSemver('1.2', true)",
    "isQuantity('12Gi') && !isQuantity('12Gb')",
    "device.attributes['resource.kubernetes.io'].pciBusID == '0000:00:00.0'",
    f"cel.bind(own, {OWN}, own.type == 'mig' && own.profile == '1g.5gb')",
    f"{OWN}.?nothing.orValue('none') == 'none'",
    f"!{OWN}.?nothing.hasValue()",
    f"!has({OWN}.nothing)",
    "device.attributes['gpu.nvidia.com'].?x.orValue('') == ''",
    "!has(device.attributes['gpu.nvidia.com'].x)",
    "!('gpu.nvidia.com' in device.attributes)",
    f"'{DRIVER}' in device.attributes && 'profile' in {OWN}",
    f"{OWN}.nothing == 'x' || {OWN}.type == 'mig'",
    f"sets.contains(['1g.5gb', '2g.10gb'], [{OWN}.profile])",
    f"sets.intersects(['1g.5gb'], [{OWN}.profile]) && sets.equivalent([1, 2], [2, 1])",
    f"{OWN}.exists(name, name == 'profile')",
    "!device.allowMultipleAllocations",
    "cel.bind(d, device, d.driver.endsWith('dra.dev'))",
]
LIBRARIES = [
    "[1,2].slice(0,1)==[1]",
    "'abcabc'.find('b.')=='bc'",
    "'abcabc'.findAll('b.')==['bc','bc']",
    "'abcabc'.findAll('b.',1).size()==1",
    "'x'.find('y') == ''",
    "[[1],[2]].flatten()==[1,2] && [[[1]],[[2]]].flatten(2)==[1,2]",
    "[3,1].sort()==[1,3]",
    "[1,1].distinct()==[1]",
    "lists.range(3)==[0,1,2]",
    "[1,2].first().value()==1",
    "[1, 2].reverse() == [2, 1]",
    "[2, 1].sortBy(n, n) == [1, 2] && ['bb', 'a'].sortBy(w, w.size()) == ['a', 'bb']",
    "['b', 'a'].sort()[0] == 'a'",
    "[1, 2].last().value() == 2 && ![].first().hasValue()",
    "[1, 2].all(i, v, v == i + 1) && [1, 2].exists(i, v, v == 2 && i == 1)",
    "{'a': 1}.all(k, v, k == 'a' && v == 1) && !{'a': 1}.exists(k, v, v == 2)",
    "[1, 2].exists_one(v, v > 1) && ![1, 2].exists_one(v, v > 0)",
    "[1, 2].transformList(i, v, i + v) == [1, 3] && [1, 2].transformList(i, v, i > 0, v) == [2]",
    "optional.of(1).optMap(v, v + 1).value() == 2",
    "optional.of([1]).optFlatMap(v, v.first()).value() == 1",
    "optional.none().or(optional.of(3)).value() == 3 && !optional.ofNonZeroValue(0).hasValue()",
    (
        "[1, ?optional.none()] == [1] && {?'a': optional.of(1)} == {'a': 1} "
        "&& {'a': 1}[?'b'].orValue(2) == 2"
    ),
    (
        "'%s has %d of %.2f, %x %X %o %b'.format(['a', 2, 1.0 / 3.0, 255, 'a', 8, 5]) "
        "== 'a has 2 of 0.33, ff 61 10 101'"
    ),
    "'%s %s'.format([[1, null], true]) == '[1, null] true'",
    "strings.quote('a\"b') == '\"a\\\\\"b\"'",
    "'a b'.split(' ')[1] == 'b' && 'a-b-c'.split('-', 2)[1] == 'b-c'",
    "'abc'.charAt(1) == 'b' && 'abc'.substring(1, 2) == 'b' && ' a '.trim() == 'a'",
    "'abab'.replace('a', 'c', 1) == 'cbab' && 'Ab'.upperAscii() == 'AB'",
    "1 < 1.5 && 2u > 1 && 1.0 <= 1 && 2 >= 1u && dyn(1) < 1.5",
    "timestamp('2020-01-01T00:00:00Z').getHours('Asia/Tokyo') == 9",
    "duration('90s').getMinutes() == 1 && duration('1h') > duration('59m')",
    "sets.contains([quantity('1'), quantity('2')], [quantity('1')])",
    "sets.contains([optional.of(1)], [optional.of(1)])",  # once ended the process
    "'abc'.indexOf('b')==1 && 'abcb'.lastIndexOf('b')==3",
    "'abcabc'.indexOf('c', 3) == 5 && 'abcabc'.lastIndexOf('a', 2) == 0",
    "'abc'.indexOf('') == 0 && 'abc'.lastIndexOf('') == 3",
    "'abc'.indexOf('', 2) == 2 && 'abc'.lastIndexOf('', 1) == 1",
    "[1, 2].existsOne(i, v, v > 1)",
]
"""What Kubernetes adds to CEL; the real kube-scheduler agrees (tests/cluster)."""
COSTLY = [
    "['a', 'b'].join('-') == 'a-b'",
]
"""The API server refuses them for what they could cost at worst; here nothing is estimated."""
NOT_SELECTED = [
    "false",
    "device.driver == 'gpu.nvidia.com'",
    f"{OWN}.profile == '3g.20gb'",
    f"{MEMORY}.isLessThan(quantity('1Gi'))",
    "'gpu.nvidia.com' in device.attributes && device.attributes['gpu.nvidia.com'].x",
]
FAILING = [
    (f"{OWN}.nothing == 'x'", "nothing"),
    ("device.attributes['gpu.nvidia.com'].x == 1", "x"),
    ("device.nothing == 1", "nothing"),
    (f"{MEMORY}.compareTo(quantity('12Gb')) > 0", "12Gb"),
    (f"{OWN}.driverVersion.isLessThan(quantity('1'))", "semver"),
    (f"{OWN}.profile.isLessThan(quantity('1'))", "overload"),
    (f"{OWN}.profile", "boolean"),
    ("'a'.find('(') == ''", "missing )"),
    ("'abc'.indexOf('a', -1) == 0", "out of range"),
    ("string(dyn(quantity('1'))) == '1'", "overload"),
    ("optional.none().value() == 1", "none"),
    ("'%d'.format(['a']) == ''", "decimal"),
    ("[1].slice(0, 2) == []", "slice"),
    ("[dyn(1), dyn('a')].sort() == []", "same type"),
]
UNSUPPORTED = [
    ("lists.range(-1) == []", "reserve"),
    ("'abc'.indexOf('a', 9) == -1", "out of range"),
    ("{'a': 1}.transformMap(k, v, v + 1) == {'a': 2}", "no transformMap, transformMapEntry"),
    ("['x'].transformMapEntry(i, v, {v: i}) == {'x': 0}", "no transformMap, transformMapEntry"),
]
"""Functions that Kubernetes alone has: refused at run time."""


@pytest.mark.parametrize("expression", [*SELECTED, *LIBRARIES, *COSTLY])
def test_a_selector_that_holds_selects(expression: str) -> None:
    verdict = SELECTORS.evaluate(expression, small_slice())
    assert (verdict.selected, verdict.error) == (True, "")


@pytest.mark.parametrize(("expression", "reason"), FAILING)
def test_a_failure_at_run_time_is_kept_as_a_reason(expression: str, reason: str) -> None:
    verdict = SELECTORS.evaluate(expression, small_slice())
    assert not verdict.selected
    assert reason in verdict.error
    assert "\n" not in verdict.error


@pytest.mark.parametrize(("expression", "name"), UNSUPPORTED)
def test_what_is_not_supported_is_named(expression: str, name: str) -> None:
    verdict = SELECTORS.evaluate(expression, small_slice())
    assert not verdict.selected
    assert name in verdict.error


@pytest.mark.parametrize("value", ["optional.of(1)", "type(1)", "duration('1s')", "quantity('1')"])
def test_a_selector_of_something_else_than_a_boolean_selects_nothing(value: str) -> None:
    verdict = SELECTORS.evaluate(f"dyn({value})", small_slice())
    assert (verdict.selected, verdict.error) == (False, "evaluated to something that is no boolean")


def test_a_pattern_cannot_keep_the_controller_busy() -> None:
    text = "a" * 5000
    verdict = SELECTORS.evaluate(f"'{text}b'.find('(a+)+$') == ''", small_slice())
    assert verdict.selected


@pytest.mark.parametrize(
    ("expression", "per_gpu"),
    [
        (f"{OWN}.profile in ['1g.5gb']", False),
        (f"{MEMORY}.isLessThan(quantity('1Gi')) && {OWN}.?x.orValue('') == ''", False),
        (f"{OWN}['profile'] == '1g.5gb'", False),
        (f"{OWN}.parentUUID.startsWith('GPU-')", True),
        (f"{OWN}['parent' + 'UUID'] == 'x'", True),
        (f"{OWN}.exists(n, {OWN}[n] == 'x')", True),
        (f"{OWN}.existsOne(n, v, v == 'x')", True),
        (f"'%s'.format([{OWN}]) == ''", True),
        ("device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:00'", True),
    ],
)
def test_what_tells_gpus_apart_is_read_off_the_text(expression: str, per_gpu: bool) -> None:  # noqa: FBT001
    assert View.of(expression).per_gpu is per_gpu
