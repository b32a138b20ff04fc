"""Requests of a claim as they are understood, and what is said of those that are not."""

from __future__ import annotations

import pytest

from dra.claims.classes import generated_label, is_generated, needs_write
from dra.claims.reasons import Reason
from dra.common.resources import Obj
from tests.controller.helpers.objects import (
    DRIVER,
    claim,
    device_class,
    first_available,
    request,
    versioned,
)
from tests.dra.claims.wanted import CLASSES, opaque, refused, wanted


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


def test_an_unknown_field_of_an_opaque_config_is_named_with_its_path() -> None:
    found = refused(claim("c", config=[opaque(policy="sws", colour="red")]))
    assert found.reason is Reason.BAD_CONFIG
    assert "spec.devices.config[0].opaque.parameters" in found.message
    assert "placement.colour" in found.message
    bad = device_class("bad", f"device.driver == '{DRIVER}'", config=[opaque(policy="cheapest")])
    found = refused(claim("c", request("r", "bad")), bad)
    assert "DeviceClass 'bad' config[0]" in found.message
    assert "placement.policy" in found.message


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
