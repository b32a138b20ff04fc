"""Which claims are ours, and what is said about those that cannot be served."""

from __future__ import annotations

from typing import Any

import pytest

from dra.cel.cel import Selectors
from dra.cel.kinds.asked import UnansweredError
from dra.cel.kinds.kinds import Kinds
from dra.cel.questions import Answer
from dra.claims.claims import read_claim
from dra.claims.classes import (
    generated_classes,
    generated_label,
    is_generated,
    looks_ours,
    needs_write,
    read_class,
)
from dra.claims.reasons import Obstacle, Reason
from dra.claims.requests.reader import Reader
from dra.claims.requests.wants import ClaimWants
from dra.common.resources import Obj
from tests.controller.objects import (
    DRIVER,
    claim,
    device_class,
    first_available,
    request,
    versioned,
)

CLASSES = [
    *generated_classes(DRIVER, ["1g.5gb", "1g.5gb+me", "3g.20gb"]),
    device_class("other", "device.driver == 'gpu.nvidia.com'"),
    device_class("lookalike", f"device.driver == 'x.{DRIVER}'"),
    device_class("handmade", f"device.driver == '{DRIVER}'"),
    device_class("broken", f"device.driver == '{DRIVER}' &&"),
]


def opaque(driver: str = DRIVER, **placement: Any) -> Obj:
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "placement": placement,
    }
    return {"opaque": {"driver": driver, "parameters": parameters}}


def read(obj: Obj, *more: Obj) -> ClaimWants | Obstacle | None:
    classes = {c["metadata"]["name"]: read_class(c, DRIVER) for c in [*CLASSES, *more]}
    known = versioned(obj)
    return Reader(DRIVER, Kinds(Selectors()), classes).read(read_claim(known))


def wanted(obj: Obj, *more: Obj) -> ClaimWants:
    found = read(obj, *more)
    assert isinstance(found, ClaimWants)
    return found


def refused(obj: Obj, *more: Obj) -> Obstacle:
    found = read(obj, *more)
    assert isinstance(found, Obstacle)
    return found


def test_a_want_carries_the_selectors_of_class_and_request() -> None:
    own = "device.attributes['mig.dra.dev'].architecture == 'Ampere'"
    found = wanted(claim("c", request("r", "mig-1g.5gb", own, count=2)))
    (want,) = found.wants
    assert (want.request, want.class_name, want.count) == ("r", "mig-1g.5gb", 2)
    assert len(want.expressions) == 2
    assert "1g.5gb" in want.expressions[0]
    assert want.expressions[1] == own


@pytest.mark.parametrize("name", ["other", "lookalike", "does-not-exist"])
def test_claims_for_others_are_none_of_our_business(name: str) -> None:
    assert read(claim("c", request("r", name))) is None


def test_a_class_that_names_our_driver_is_ours() -> None:
    assert wanted(claim("c", request("r", "handmade"))).wants


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


def test_whose_a_claim_is_may_not_be_known_yet() -> None:
    classes = {c["metadata"]["name"]: read_class(c, DRIVER) for c in CLASSES}
    kinds = Kinds()
    reader = Reader(DRIVER, kinds, classes)
    asked = read_claim(versioned(claim("c", request("r", "handmade"))))
    for _ in ("does it compile?", "does it select others?"):
        with pytest.raises(UnansweredError) as unknown:
            reader.concerns(asked)
        assert reader.expressions(asked) == []
        question = unknown.value.question
        kinds.learn(question, Selectors().answer(question.job))
    assert reader.concerns(asked)


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


def test_a_class_called_like_a_generated_one_is_missed_and_the_existing_ones_named() -> None:
    found = refused(claim("c", request("r", "mig-9g.99gb")))
    assert found.reason is Reason.NO_SUCH_CLASS
    assert "mig-9g.99gb" in found.message
    assert "mig-1g.5gb, mig-1g.5gb.me, mig-3g.20gb" in found.message
    assert looks_ours("mig-1c.3g.20gb") is False


def test_a_claim_that_mixes_drivers_is_left_alone_and_told_so() -> None:
    mixed = claim("c", request("a", "mig-1g.5gb"), request("b", "other"))
    assert refused(mixed).reason is Reason.MIXED
    alternatives = {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "other"}]}
    assert refused(claim("c", request("a"), alternatives)).reason is Reason.MIXED


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (request("r", allocationMode="Some"), "allocationMode Some"),
        (request("r", count=33), "33 devices"),
        (
            first_available(
                "r", ("x", "mig-1g.5gb", {"count": 34}), ("y", "mig-3g.20gb", {"count": 33})
            ),
            "33 devices",
        ),
    ],
)
def test_what_is_not_supported_is_named(bad: Obj, told: str) -> None:
    found = refused(claim("c", bad))
    assert found.reason is Reason.UNSUPPORTED
    assert told in found.message


def test_what_looks_at_devices_is_told_from_what_holds_them() -> None:
    look = request("look", adminAccess=True)
    assert wanted(claim("c", look)).views
    assert not wanted(claim("c", request("r"))).views
    found = refused(claim("c", request("r"), look))
    assert "request 'look' has adminAccess and request 'r' has not" in found.message
    constraints = [{"matchAttribute": "mig.dra.dev/parentUUID"}]
    assert "select by CEL instead" in refused(claim("c", look, constraints=constraints)).message


def test_constraints_are_understood_and_unknown_ones_refused() -> None:
    same = {"matchAttribute": "mig.dra.dev/parentUUID", "requests": ["a"]}
    found = wanted(claim("c", request("a"), request("b"), constraints=[same]))
    (constraint,) = found.constraints
    assert [constraint.covers(w) for w in found.wants] == [True, False]
    assert not constraint.distinct
    apart = {"distinctAttribute": "mig.dra.dev/parentUUID"}
    assert [c.distinct for c in wanted(claim("c", constraints=[apart])).constraints] == [True]
    refusal = refused(claim("c", constraints=[{"nearAttribute": "x/y"}]))
    assert refusal.reason is Reason.UNSUPPORTED
    assert "nearAttribute" in refusal.message
    assert "matchAttribute or distinctAttribute" in refusal.message


def test_claims_that_are_alike_want_the_same_and_are_bound_each_for_itself() -> None:
    apart = {"distinctAttribute": "mig.dra.dev/parentUUID"}
    classes = {c["metadata"]["name"]: read_class(c, DRIVER) for c in CLASSES}
    reader = Reader(DRIVER, Kinds(Selectors()), classes)
    first, second = (
        reader.read(read_claim(versioned(c)))
        for c in (claim(name, request("r"), constraints=[apart]) for name in ("c", "d"))
    )
    assert isinstance(first, ClaimWants)
    assert isinstance(second, ClaimWants)
    assert (first.claim.ref.name, second.claim.ref.name) == ("c", "d")
    assert first.choices is second.choices
    assert [w.claim.ref.uid for w in (first, second)] == [
        constraint.claim_uid for w in (first, second) for constraint in w.constraints
    ]


def test_what_a_claim_wants_changes_with_its_class() -> None:
    classes = {c["metadata"]["name"]: read_class(c, DRIVER) for c in CLASSES}
    reader = Reader(DRIVER, Kinds(Selectors()), classes)
    wanted = claim("c", request("r", "handmade"))

    def read_again() -> ClaimWants | Obstacle | None:
        return reader.read(read_claim(versioned(wanted)))

    before = read_again()
    changed = device_class("handmade", f"device.driver == '{DRIVER}' && false")
    classes["handmade"] = read_class(changed, DRIVER)
    after = read_again()
    assert isinstance(before, ClaimWants)
    assert isinstance(after, ClaimWants)
    assert after.wants[0].expressions == (f"device.driver == '{DRIVER}' && false",)
    del classes["handmade"]
    assert read_again() is None


def test_a_constraint_covers_a_request_with_its_subrequests_or_a_subrequest_alone() -> None:
    both = first_available("r", ("x", "mig-3g.20gb", {}), ("y", "mig-1g.5gb", {}))
    wider = {"matchAttribute": "mig.dra.dev/parentUUID", "requests": ["r"]}
    narrower = {"matchAttribute": "mig.dra.dev/parentUUID", "requests": ["r/y"]}
    found = wanted(claim("c", both, constraints=[wider, narrower]))
    ((x, y),) = found.choices
    assert (x.request, y.request) == ("r/x", "r/y")
    assert [c.covers(x) for c in found.constraints] == [True, False]
    assert [c.covers(y) for c in found.constraints] == [True, True]


def test_a_capacity_request_selects_devices_with_at_least_so_much() -> None:
    asked = request("r", "mig.dra.dev", capacity={"requests": {"memory": "12Gi", "x.y/z": "1"}})
    (want,) = wanted(claim("c", asked)).wants
    assert (
        "device.capacity['mig.dra.dev'].memory.compareTo(quantity('12Gi')) >= 0" in want.expressions
    )
    assert "device.capacity['x.y'].z.compareTo(quantity('1')) >= 0" in want.expressions


def test_each_request_has_the_policy_of_its_class_or_of_the_config_that_names_it() -> None:
    spread = device_class("mine", f"device.driver == '{DRIVER}'", config=[opaque(policy="spread")])
    named = {**opaque(policy="mfi"), "requests": ["b", "c/y"]}
    found = wanted(
        claim(
            "c",
            request("a", "mine"),
            request("b"),
            first_available("c", ("x", "mig-1g.5gb", {}), ("y", "mine", {})),
            config=[named],
        ),
        spread,
    )
    policies = {w.request: w.policy for choice in found.choices for w in choice}
    assert policies == {"a": "spread", "b": "mfi", "c/x": "sws", "c/y": "mfi"}


def test_a_selector_that_does_not_compile_is_shown_with_its_place() -> None:
    found = refused(claim("c", request("r", "mig-1g.5gb", "device.driver = 'x'")))
    assert found.reason is Reason.BAD_SELECTOR
    assert "'r'" in found.message
    assert "1:15" in found.message
    assert refused(claim("c", request("r", "broken"))).reason is Reason.BAD_SELECTOR


def test_an_unknown_field_of_an_opaque_config_is_named_with_its_path() -> None:
    found = refused(claim("c", config=[opaque(policy="sws", colour="red")]))
    assert found.reason is Reason.BAD_CONFIG
    assert "spec.devices.config[0].opaque.parameters" in found.message
    assert "placement.colour" in found.message
    bad = device_class("bad", f"device.driver == '{DRIVER}'", config=[opaque(policy="cheapest")])
    found = refused(claim("c", request("r", "bad")), bad)
    assert "DeviceClass 'bad' config[0]" in found.message
    assert "placement.policy" in found.message


def test_the_claim_has_the_last_word_on_the_policy() -> None:
    spread = device_class("mine", f"device.driver == '{DRIVER}'", config=[opaque(policy="spread")])
    assert wanted(claim("c")).wants[0].policy == "sws"
    assert wanted(claim("c", request("r", "mine")), spread).wants[0].policy == "spread"
    overruled = claim("c", request("r", "mine"), config=[opaque(policy="best-fit")])
    found = wanted(overruled, spread)
    assert found.wants[0].policy == "best-fit"
    assert [e["source"] for e in found.config(["r"])] == ["FromClass", "FromClaim"]


def test_a_claim_that_names_its_node_policy_keeps_the_rest_of_its_class() -> None:
    config = opaque(policy="mfi", nodes={"policy": "binpack", "by": ["cpu"]})
    mine = device_class("mine", f"device.driver == '{DRIVER}'", config=[config])
    (plain,) = wanted(claim("c", request("r", "mine")), mine).wants
    assert (plain.policy, plain.nodes.policy, plain.nodes.by) == ("mfi", "binpack", ("cpu",))
    for policy in ("none", "spread"):
        own = opaque(nodes={"policy": policy})
        (want,) = wanted(claim("c", request("r", "mine"), config=[own]), mine).wants
        assert (want.policy, want.nodes.policy) == ("mfi", policy)


def test_configs_of_other_drivers_are_not_read() -> None:
    foreign = {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "Whatever"}}}
    assert wanted(claim("c", config=[foreign])).wants[0].policy == "sws"


def test_a_generated_class_selects_one_profile_and_names_its_extended_resource() -> None:
    by_name = {c["metadata"]["name"]: c for c in CLASSES}
    assert {"mig.dra.dev", "gpu.dra.dev", "mig-1g.5gb", "mig-1g.5gb.me"} <= by_name.keys()
    spec = by_name["mig-1g.5gb.me"]["spec"]
    assert spec["extendedResourceName"] == "nvidia.com/mig-1g.5gb.me"
    assert "profile == '1g.5gb+me'" in spec["selectors"][0]["cel"]["expression"]
    assert "extendedResourceName" not in by_name["gpu.dra.dev"]["spec"]
    assert is_generated(by_name["mig-1g.5gb"], DRIVER)
    assert not is_generated(by_name["handmade"], DRIVER)


def test_a_generated_class_is_written_only_when_it_differs() -> None:
    wanted_class = CLASSES[2]
    found = versioned({**wanted_class, "metadata": dict(wanted_class["metadata"])})
    assert not needs_write(wanted_class, found, DRIVER)
    dropped = {k: v for k, v in wanted_class["spec"].items() if k != "extendedResourceName"}
    assert not needs_write(wanted_class, {**found, "spec": dropped}, DRIVER)
    renamed = {**wanted_class["spec"], "extendedResourceName": "nvidia.com/other"}
    assert needs_write(wanted_class, {**found, "spec": renamed}, DRIVER)
    assert needs_write(wanted_class, {**found, "spec": {**found["spec"], "selectors": []}}, DRIVER)
    bare = {**found, "metadata": {"name": "x", "labels": {generated_label(DRIVER): "true"}}}
    assert needs_write(wanted_class, bare, DRIVER)
    annotated = {**found, "metadata": {**found["metadata"], "labels": {}}}
    assert needs_write(wanted_class, annotated, DRIVER)
