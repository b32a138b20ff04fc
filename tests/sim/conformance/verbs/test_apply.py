"""Server-side apply: who owns which field, and what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.conformance.helpers.builders import (
    DRA,
    allocation,
    claim,
    condition,
    config_map,
    device_status,
    result,
)

if TYPE_CHECKING:
    from tests.sim.conformance.helpers.client import Api

Obj = dict[str, Any]


@pytest.fixture
def path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps/a"


@pytest.fixture
def a_claim(api: Api, namespace: str) -> str:
    """An allocated claim of two devices."""
    claims = f"{DRA}/namespaces/{namespace}/resourceclaims"
    api.post(claims, claim("a")).ok()
    given = allocation(result("d-0"), result("d-1"))
    api.merge(f"{claims}/a/status", {"status": {"allocation": given}}).ok()
    return f"{claims}/a/status"


def claim_status(*devices: Obj) -> Obj:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "a"},
        "status": {"devices": list(devices)},
    }


def owners(obj: Obj) -> dict[tuple[str, str], Obj]:
    entries = obj["metadata"]["managedFields"]
    return {(entry["manager"], entry["operation"]): entry["fieldsV1"] for entry in entries}


def test_what_is_no_longer_applied_is_removed(api: Api, path: str) -> None:
    api.apply(path, config_map("a", x="1", y="2")).ok()
    assert api.apply(path, config_map("a", x="1")).ok()["data"] == {"x": "1"}


def test_what_others_own_stays(api: Api, path: str) -> None:
    api.apply(path, config_map("a", x="1", y="2"), manager="me").ok()
    api.apply(path, config_map("a", y="2", z="3"), manager="you").ok()
    assert api.apply(path, config_map("a", x="1"), manager="me").ok()["data"] == {
        "x": "1",
        "y": "2",
        "z": "3",
    }


def test_a_field_of_another_manager_conflicts(api: Api, path: str) -> None:
    api.apply(path, config_map("a", x="1"), manager="me").ok()
    answer = api.apply(path, config_map("a", x="2"), manager="you")
    message = answer.refused(409, "Conflict")
    assert message == 'Apply failed with 1 conflict: conflict with "me": .data.x'
    (cause,) = answer.body["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("FieldManagerConflict", ".data.x")


def test_two_drivers_write_their_devices_into_one_claim(api: Api, a_claim: str) -> None:
    first = device_status("d-0", data={"uuid": "MIG-0"}, conditions=[condition()])
    second = device_status("d-1", data={"uuid": "MIG-1"})
    api.apply(a_claim, claim_status(first), manager="one").ok()
    both = api.apply(a_claim, claim_status(second), manager="two").ok()
    assert [d["device"] for d in both["status"]["devices"]] == ["d-0", "d-1"]
    rest = api.apply(a_claim, claim_status(), manager="one").ok()
    assert [d["device"] for d in rest["status"]["devices"]] == ["d-1"]


def test_conditions_of_a_device_merge_by_type(api: Api, a_claim: str) -> None:
    for manager, kind in (("one", "Ready"), ("two", "Healthy")):
        body = device_status("d-0", conditions=[condition(kind)])
        applied = api.apply(a_claim, claim_status(body), manager=manager).ok()
    kinds = {c["type"] for c in applied["status"]["devices"][0]["conditions"]}
    assert kinds == {"Ready", "Healthy"}


def test_an_applied_status_owns_no_metadata(api: Api, a_claim: str) -> None:
    body = claim_status(device_status("d-0"))
    body["metadata"]["labels"] = {"a": "b"}
    applied = api.apply(a_claim, body).ok()
    assert "labels" not in applied["metadata"]
    assert owners(applied)["me", "Apply"].keys() == {"f:status"}
    entry = next(e for e in applied["metadata"]["managedFields"] if e["operation"] == "Apply")
    assert entry["subresource"] == "status"
