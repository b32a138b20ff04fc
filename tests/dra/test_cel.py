"""Selectors select what they would select in kube-scheduler (KEP-4381)."""

from __future__ import annotations

import pytest

from dra.devices import slice_attributes, slice_capacity
from dra.selectors.cache import BoundedCache
from dra.selectors.cel import SelectorError, Selectors
from dra.selectors.celdata import DeviceData, View, device_data
from tests.controller.objects import DRIVER, gpu, inventory
from tests.dra.gpus import A100

OWN = f'device.attributes["{DRIVER}"]'
MEMORY = f'device.capacity["{DRIVER}"].memory'


def small_slice(node: str = "node-a", minor: int = 0) -> DeviceData:
    card = gpu(minor, node)
    profile = A100.by_name("1g.5gb")
    assert profile is not None
    return device_data(
        DRIVER, slice_attributes(card, profile, inventory(node, card)), slice_capacity(profile)
    )


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
    "[1,2].sum()==3",
    "[].sum() == 0",
    "[1.5,2.0].sum()==3.5",
    "[1,2].min()==1 && [1,2].max()==2",
    "[1,2,2].isSorted() && ![2,1].isSorted()",
    "[1,2].slice(0,1)==[1]",
    "'abcabc'.find('b.')=='bc'",
    "'abcabc'.findAll('b.')==['bc','bc']",
    "'abcabc'.findAll('b.',1).size()==1",
    "'x'.find('y') == ''",
    "url('https://user@example.com:8443/a%20b?x=1&x=2').getHost()=='example.com:8443'",
    "url('https://example.com:8443/a?x=1&x=2').getQuery()=={'x':['1','2']}",
    "url('https://[::1]:80/').getHostname()=='::1' && url('https://e:80').getPort()=='80'",
    "!isURL('a b') && isURL('/x')",
    "ip('1.1.1.1').family()==4 && ip('::1').isLoopback()",
    "isIP('fe80::1') && !isIP('fe80::1%eth0') && !isIP('::ffff:1.2.3.4')",
    "ip.isCanonical('::1') && !ip.isCanonical('::0001')",
    "cidr('10.0.0.0/8').containsIP('10.1.2.3') && !cidr('10.0.0.0/8').containsIP(ip('11.0.0.0'))",
    "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')",
    "!cidr('10.1.0.0/16').containsCIDR(cidr('10.0.0.0/8'))",
    "cidr('10.1.2.3/8').masked()==cidr('10.0.0.0/8') && cidr('10.1.2.3/8').prefixLength()==8",
    "cidr('10.0.0.0/8').ip()==ip('10.0.0.0')",
    "isCIDR('10.0.0.0/8') && !isCIDR('10.0.0.0/33')",
    "[[1],[2]].flatten()==[1,2] && [[[1]],[[2]]].flatten(2)==[1,2]",
    "[3,1].sort()==[1,3]",
    "[1,1].distinct()==[1]",
    "lists.range(3)==[0,1,2]",
    "'abc'.indexOf('b')==1 && 'abcb'.lastIndexOf('b')==3",
    "[1,2].first().value()==1",
    "ip('224.0.0.5').isLinkLocalMulticast() && ip('ff02::1').isLinkLocalMulticast()",
    "ip('169.254.1.1').isLinkLocalUnicast() && ip('0.0.0.0').isUnspecified()",
    "ip('8.8.8.8').isGlobalUnicast() && ip('10.0.0.1').isGlobalUnicast()",
]
"""What Kubernetes adds to CEL; the real kube-scheduler agrees (tests/cluster)."""
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
    ("[].min() == 1", "empty list"),
    ("ip('x') == ip('y')", "IPv4"),
    ("cidr('10.0.0.0') == cidr('10.0.0.0/8')", "10.0.0.0"),
    ("'a'.find('(') == ''", "missing )"),
    ("url('a b').getHost() == ''", "URL"),
]
MALFORMED = [
    ("device.driver ==", "1:17"),
    ("device.driver = 'x'", "1:15"),
    ("nothing == 1", "undeclared reference to 'nothing'"),
    ("device.driver.unknown()", "unknown"),
    ("'a' + 1 == 2", "overload"),
    ("1 + 1", "boolean"),
    ("device.driver", None),
    ("", "1:1"),
    ("[1, 2].indexOf(2) == 1", "overload"),
    ("[1, 2].sortBy(n, -n) == [2, 1]", "sortBy"),
]


@pytest.mark.parametrize("expression", [*SELECTED, *LIBRARIES])
def test_a_selector_that_holds_selects(expression: str) -> None:
    verdict = Selectors().evaluate(expression, small_slice())
    assert (verdict.selected, verdict.error) == (True, "")


@pytest.mark.parametrize("expression", NOT_SELECTED)
def test_a_selector_that_does_not_hold_selects_nothing(expression: str) -> None:
    verdict = Selectors().evaluate(expression, small_slice())
    assert (verdict.selected, verdict.error) == (False, "")


@pytest.mark.parametrize(("expression", "reason"), FAILING)
def test_a_failure_at_run_time_is_kept_as_a_reason(expression: str, reason: str) -> None:
    verdict = Selectors().evaluate(expression, small_slice())
    assert not verdict.selected
    assert reason in verdict.error
    assert "\n" not in verdict.error


@pytest.mark.parametrize(("expression", "place"), MALFORMED)
def test_a_malformed_selector_is_refused_with_the_place(expression: str, place: str | None) -> None:
    selectors = Selectors()
    if place is None:  # its type is known only at run time
        selectors.check(expression)
        return
    with pytest.raises(SelectorError, match=place):
        selectors.check(expression)
    with pytest.raises(SelectorError):
        selectors.evaluate(expression, small_slice())


def test_a_pattern_cannot_keep_the_controller_busy() -> None:
    text = "a" * 5000
    verdict = Selectors().evaluate(f"'{text}b'.find('(a+)+$') == ''", small_slice())
    assert verdict.selected


def test_gpus_of_one_kind_share_an_evaluation_unless_the_selector_tells_them_apart() -> None:
    selectors = Selectors()
    one, other = small_slice(minor=0), small_slice(minor=1)
    alike = f"{OWN}.profile == '1g.5gb'"
    assert selectors.evaluate(alike, one) is selectors.evaluate(alike, other)
    apart = f"{OWN}.parentUUID == 'GPU-node-a-1'"
    assert not selectors.evaluate(apart, one).selected
    assert selectors.evaluate(apart, other).selected


@pytest.mark.parametrize(
    ("expression", "per_gpu"),
    [
        (f"{OWN}.profile in ['1g.5gb']", False),
        (f"{MEMORY}.isLessThan(quantity('1Gi')) && {OWN}.?x.orValue('') == ''", False),
        (f"{OWN}['profile'] == '1g.5gb'", False),
        (f"{OWN}.parentUUID.startsWith('GPU-')", True),
        (f"{OWN}['parent' + 'UUID'] == 'x'", True),
        (f"{OWN}.exists(n, {OWN}[n] == 'x')", True),
        ("device.attributes['resource.kubernetes.io'].pcieRoot == 'pci0000:00'", True),
    ],
)
def test_what_tells_gpus_apart_is_read_off_the_text(expression: str, per_gpu: bool) -> None:  # noqa: FBT001
    assert View.of(expression).per_gpu is per_gpu


def test_memory_for_results_is_bounded() -> None:
    cache: BoundedCache[int, int] = BoundedCache(3)
    computed: list[int] = []

    def square(n: int) -> int:
        def compute() -> int:
            computed.append(n)
            return n * n

        return cache.get(n, compute)

    for n in (1, 2, 3, 1, 4, 1):
        assert square(n) == n * n
    assert len(cache) == 3
    assert computed == [1, 2, 3, 4]
    assert square(2) == 4
    assert computed[-1] == 2
