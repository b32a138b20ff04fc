"""Classes whose selectors read our domain by name, and yet select devices of other drivers."""

from __future__ import annotations

import pytest

from dra.cel.kinds import Kinds
from tests.controller.helpers.objects import DRIVER
from tests.dra.cel.slices import OWN, SELECTORS

SHARED = "device.attributes['resource.kubernetes.io']"
DYNAMIC = "device.attributes[device.driver]"
SIZE = "device.capacity[device.driver].memory"
WITHOUT = f"!has({OWN}.type)"


def selects_others(*expressions: str) -> bool:
    return Kinds(SELECTORS).selects_others(expressions, DRIVER)


@pytest.mark.parametrize(
    "expression",
    [
        f"{OWN}.?type.orValue('x') == 'x' && {SHARED}.pcieRoot == 'pci0000:00'",
        f"({OWN}.?type.orValue('none') == 'none') && {SHARED}.pcieRoot != 'q'",
        f"device.driver != '{DRIVER}' && {SHARED}.?pcieRoot.orValue('') == 'pci0000:00'",
        f"{WITHOUT} && has({SHARED}.pcieRoot)",
        f"!('{DRIVER}' in device.attributes) && 'pcieRoot' in {SHARED}",
        f"cel.bind(s, {SHARED}, s.pcieRoot == 'a' && s.numaNode == 1) && {WITHOUT}",
        f"{OWN}.?type.orValue('x') != 'mig' && {DYNAMIC}.model == 'A100'",
        f"device.driver == 'gpu.nvidia.com' && {OWN}.?type.orValue('x') in ['x'] && {DYNAMIC}.a",
        f"{WITHOUT} && !{DYNAMIC}.broken",
        f"{WITHOUT} && {DYNAMIC}.v.compareTo(semver('1.0.0')) >= 0 && {DYNAMIC}.type == 'gpu'",
        f"{WITHOUT} && {SIZE}.isGreaterThan(quantity('10Gi'))",
        f"['a.example.com'].exists(d, device.attributes[d].?model.orValue('') == 'm') && {WITHOUT}",
    ],
)
def test_what_a_device_of_others_may_have_is_tried(expression: str) -> None:
    assert selects_others(expression)
    first, _, second = expression.partition(" && ")
    if first.count("(") == first.count(")"):
        assert selects_others(second, first), "in selectors of their own"


@pytest.mark.parametrize(
    "expression",
    [
        f"{OWN}.type == 'mig' && {SHARED}.pcieRoot == 'pci0000:00'",
        f"{SHARED}.pcieRoot == 'pci0000:00' && {OWN}.type == 'mig'",
        f"has({OWN}.type) && {SHARED}.pcieRoot == 'pci0000:00'",
        f"{OWN}.?type.orValue('') == 'mig' && {DYNAMIC}.profile == '1g.5gb'",
        f"device.driver == '{DRIVER}' && {SHARED}.?pcieRoot.orValue('') == ''",
        f"device.driver == '{DRIVER}' && {WITHOUT}",
        f"'{DRIVER}' in device.attributes && {SHARED}.pcieRoot.matches('^pci')",
        f"device.capacity['{DRIVER}'].memory.compareTo(quantity('1Gi')) > 0 && {DYNAMIC}.a == 'p'",
        f"{OWN}[?'type'].hasValue() && {DYNAMIC}.type == 'mig'",
    ],
)
def test_no_device_of_others_has_attributes_of_our_domain(expression: str) -> None:
    assert not selects_others(expression)
