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


def test_an_apply_creates_what_is_absent(api: Api, path: str) -> None:
    answer = api.apply(path, config_map("a", x="1"))
    assert answer.code == 201
    assert owners(answer.ok()) == {("me", "Apply"): {"f:data": {"f:x": {}}}}
    assert api.apply(path, config_map("a", x="1")).code == 200


def test_an_apply_that_changes_nothing_writes_nothing(api: Api, path: str) -> None:
    first = api.apply(path, config_map("a", x="1")).ok()
    assert api.apply(path, config_map("a", x="1")).ok() == first


def test_what_is_no_longer_applied_is_removed(api: Api, path: str) -> None:
    api.apply(path, config_map("a", x="1", y="2")).ok()
    assert api.apply(path, config_map("a", x="1")).ok()["data"] == {"x": "1"}


def test_a_container_goes_with_its_last_field(api: Api, path: str) -> None:
    api.apply(path, config_map("a", x="1")).ok()
    bare = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}
    assert "data" not in api.apply(path, bare).ok()


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


def test_a_field_of_an_updater_conflicts_and_says_since_when(api: Api, path: str) -> None:
    api.post(path.rpartition("/")[0], config_map("a", x="1")).ok()
    message = api.apply(path, config_map("a", x="2")).refused(409, "Conflict")
    assert 'conflict with "conformance" using v1: .data.x' in message


def test_force_takes_the_field_over(api: Api, path: str) -> None:
    api.apply(path, config_map("a", x="1", y="1"), manager="me").ok()
    forced = api.apply(path, config_map("a", x="2"), manager="you", force=True).ok()
    assert forced["data"] == {"x": "2", "y": "1"}
    assert owners(forced) == {
        ("me", "Apply"): {"f:data": {"f:y": {}}},
        ("you", "Apply"): {"f:data": {"f:x": {}}},
    }


def test_an_update_takes_what_it_changes(api: Api, path: str) -> None:
    api.apply(path, config_map("a", x="1", y="1"), manager="me").ok()
    updated = api.merge(path, {"data": {"x": "2"}}, fieldManager="you").ok()
    assert owners(updated) == {
        ("me", "Apply"): {"f:data": {"f:y": {}}},
        ("you", "Update"): {"f:data": {"f:x": {}}},
    }


def test_a_manager_that_owns_nothing_more_disappears(api: Api, path: str) -> None:
    api.apply(path, config_map("a", x="1"), manager="me").ok()
    updated = api.merge(path, {"data": {"x": "2"}}, fieldManager="you").ok()
    assert owners(updated).keys() == {("you", "Update")}


def test_an_apply_with_a_stale_version_conflicts(api: Api, path: str) -> None:
    old = api.apply(path, config_map("a", x="1")).ok()["metadata"]["resourceVersion"]
    api.apply(path, config_map("a", x="2")).ok()
    body = config_map("a", x="3")
    body["metadata"]["resourceVersion"] = old
    api.apply(path, body).refused(409, "Conflict")


def test_labels_of_several_managers_merge(api: Api, path: str) -> None:
    for manager in ("me", "you"):
        body = config_map("a")
        body["metadata"]["labels"] = {manager: "1"}
        api.apply(path, body, manager=manager).ok()
    assert api.get(path).ok()["metadata"]["labels"] == {"me": "1", "you": "1"}


def test_finalizers_are_a_set(api: Api, path: str) -> None:
    for manager in ("me", "you"):
        body = config_map("a")
        body["metadata"]["finalizers"] = [f"a.b/{manager}"]
        applied = api.apply(path, body, manager=manager).ok()
    assert sorted(applied["metadata"]["finalizers"]) == ["a.b/me", "a.b/you"]
    fields = owners(applied)["me", "Apply"]["f:metadata"]["f:finalizers"]
    assert fields == {'v:"a.b/me"': {}}
    bare = config_map("a")
    kept = api.apply(path, bare, manager="me").ok()["metadata"]["finalizers"]
    assert kept == ["a.b/you"]
    api.apply(path, bare, manager="you").ok()


def test_two_drivers_write_their_devices_into_one_claim(api: Api, a_claim: str) -> None:
    first = device_status("d-0", data={"uuid": "MIG-0"}, conditions=[condition()])
    second = device_status("d-1", data={"uuid": "MIG-1"})
    api.apply(a_claim, claim_status(first), manager="one").ok()
    both = api.apply(a_claim, claim_status(second), manager="two").ok()
    assert [d["device"] for d in both["status"]["devices"]] == ["d-0", "d-1"]
    rest = api.apply(a_claim, claim_status(), manager="one").ok()
    assert [d["device"] for d in rest["status"]["devices"]] == ["d-1"]


def test_the_keys_of_a_device_are_driver_pool_and_device(api: Api, a_claim: str) -> None:
    applied = api.apply(a_claim, claim_status(device_status("d-0"))).ok()
    fields = owners(applied)["me", "Apply"]["f:status"]["f:devices"]
    key = 'k:{"device":"d-0","driver":"mig.dra.dev","pool":"node-a"}'
    assert fields == {key: {".": {}, "f:device": {}, "f:driver": {}, "f:pool": {}}}


def test_the_data_of_a_device_is_owned_as_one(api: Api, a_claim: str) -> None:
    body = device_status("d-0", data={"a": 1, "b": {"c": 2}})
    api.apply(a_claim, claim_status(body)).ok()
    change = device_status("d-0", data={"b": {"c": 3}})
    applied = api.apply(a_claim, claim_status(change)).ok()
    assert applied["status"]["devices"][0]["data"] == {"b": {"c": 3}}


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


def test_yaml_can_be_applied(api: Api, path: str) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {when: '2026-01-01'}\n"
    raw = api._pool.request(
        "PATCH",
        f"{api._host}{path}?fieldManager=me",
        body=text.encode(),
        headers=api._headers | {"Content-Type": "application/apply-patch+yaml"},
    )
    assert raw.status == 201, raw.data
    assert api.get(path).ok()["data"] == {"when": "2026-01-01"}
