"""Claims that are ours, told by class and selectors."""

from __future__ import annotations

import pytest

from dra.cel.kinds import Kinds
from dra.cel.offers import UnansweredError
from dra.cel.questions import Answer
from dra.claims.claims import read_claim
from dra.claims.classes import generated_label, read_class
from dra.claims.reader import Reader
from dra.claims.reasons import Obstacle, Reason
from tests.controller.helpers.objects import DRIVER, claim, device_class, request, versioned
from tests.dra.claims.wanted import read, refused, wanted


@pytest.mark.parametrize(
    "expression",
    [
        "device.driver != '{}'",
        "!(device.driver == '{}')",
        "device.driver != 'gpu.nvidia.com' && '{}' != ''",
        "device.driver.startsWith('mig')",
        "device.driver.startsWith('{}')",
        "device.driver.endsWith('{}')",
        "device.driver.contains('{}')",
        "device.driver.matches('{}')",
        "device.driver.size() == 11 && '{}' != ''",
        "device.driver in ['{}', 'gpu.nvidia.com']",
        'device.driver == "{}" || device.driver == "gpu.nvidia.com"',
        "device.driver == 'gpu.nvidia.com' && device.driver != '{}'",
        "device.driver == '{}' || device.attributes['gpu.nvidia.com'].type == 'mig'",
        "device.driver == '{}' || has(device.attributes['gpu.nvidia.com'].type)",
        "device.driver == '{}' || 'gpu.nvidia.com' in device.attributes",
        "device.driver == '{}' || 'type' in device.attributes['gpu.nvidia.com']",
        "!has(device.attributes['{}'].type)",
        "!('{}' in device.attributes)",
        "device.driver == '{}' || device.attributes['resource.kubernetes.io'].pcieRoot == 'p'",
        "device.attributes[device.driver].type == 'mig' && '{}' != ''",
        "device.driver == '{}' || device.capacity[device.driver].m.compareTo(quantity('1')) > 0",
        "cel.bind(a, device.attributes, a[device.driver].type == 'mig') && '{}' != ''",
        "true // {}",
        "true",
    ],
)
def test_a_class_that_selects_devices_of_others_is_left_to_them(expression: str) -> None:
    made = device_class("theirs", expression.format(DRIVER))
    assert read(claim("c", request("r", "theirs")), made) is None
    narrowed = claim("c", request("r", "theirs", f"device.driver == '{DRIVER}'"))
    assert read(narrowed, made) is None, "its class says whose a request is"
    mixed = claim("c", request("r", "theirs"), request("s", "mig-1g.5gb"))
    assert refused(mixed, made).reason is Reason.MIXED


@pytest.mark.parametrize(
    "expression",
    [
        "device.attributes['{}'].type == 'mig'",
        "has(device.attributes['{}'].type)",
        "'type' in device.attributes['{}']",
        "'{}' in device.attributes && device.attributes['{}'].profile.startsWith('1g')",
        "device.driver == '{}' && device.attributes['resource.kubernetes.io'].pcieRoot != ''",
        "device.driver == '{}' && device.attributes['{}'].productName != 'gpu.nvidia.com'",
        "device.attributes[device.driver].type == 'mig' && device.driver == '{}'",
        "device.attributes['{}'].uuid != device.attributes['resource.kubernetes.io'].pcieRoot",
        "device.capacity['{}'].memory.compareTo(quantity('1Gi')) > 0",
        "['{}'].exists(name, name == device.driver)",
        "device.driver == '{}' && false",
    ],
)
def test_a_class_that_selects_our_devices_alone_is_ours(expression: str) -> None:
    made = device_class("handmade", expression.replace("{}", DRIVER))
    assert wanted(claim("c", request("r", "handmade")), made).wants


@pytest.mark.parametrize(
    "beside",
    [
        "device.driver != 'gpu.nvidia.com'",
        "device.attributes['resource.kubernetes.io'].pcieRoot != '' // all have one",
    ],
)
@pytest.mark.parametrize("step", [1, -1])
def test_all_selectors_of_a_class_together_say_whose_it_is(beside: str, step: int) -> None:
    made = device_class("handmade", f"device.driver == '{DRIVER}'")
    selectors = [*made["spec"]["selectors"], {"cel": {"expression": beside}}]
    made["spec"]["selectors"] = selectors[::step]
    assert wanted(claim("c", request("r", "handmade")), made).wants


def test_a_class_without_selectors_is_not_ours_whatever_its_label() -> None:
    made = device_class("any", "true")
    made["metadata"]["labels"] = {generated_label(DRIVER): "true"}
    assert read(claim("c", request("r", "any")), made) is None
    made["spec"] = {}
    assert read(claim("c", request("r", "any")), made) is None


def test_a_class_of_which_it_takes_too_much_to_find_out_whose_it_is_gets_nothing() -> None:
    costly = device_class("costly", f"'{DRIVER}' in device.attributes || [1].exists(x, x > 0)")
    classes = {"costly": read_class(costly, DRIVER)}
    kinds = Kinds()
    reader = Reader(DRIVER, kinds, classes)
    asked = read_claim(versioned(claim("c", request("r", "costly"))))
    answers = [Answer(), Answer(error="it takes more than 0.25 s", costly=True)]
    for answer in answers:
        with pytest.raises(UnansweredError) as unknown:
            reader.read(asked)
        kinds.learn(unknown.value.question, answer)
    found = reader.read(asked)
    assert isinstance(found, Obstacle)
    assert found.reason is Reason.COSTLY_SELECTOR
    assert found.message == (
        "DeviceClass 'costly' is left alone, as it cannot be found out whether it selects devices "
        "of other drivers too: it takes more than 0.25 s; begin its selector with "
        f"device.driver == '{DRIVER}' &&, or write it simpler"
    )


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("mig-1g5gb", "mig-1g.5gb"),
        ("1g.5gb", "mig-1g.5gb"),
        ("mig-1g.5gb-me", "mig-1g.5gb.me"),
        ("mig-1g.5gb+me", "mig-1g.5gb.me"),
        ("mig-1g.6gb", "mig-1g.5gb"),
        ("mig-3g.40gb", "mig-3g.20gb"),
    ],
)
def test_a_class_called_like_a_generated_one_is_missed_and_the_nearest_named(
    name: str, nearest: str
) -> None:
    found = refused(claim("c", request("r", name)))
    assert found.reason is Reason.NO_SUCH_CLASS
    assert found.message == (
        f"DeviceClass {name!r} does not exist; did you mean {nearest!r}? kubectl get "
        "deviceclasses lists all"
    )
