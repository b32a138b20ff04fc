"""The specs of ResourceClaims and their templates: what users can get wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.conformance.helpers.builders import (
    DRA,
    DRIVER,
    allocation,
    claim,
    request,
)

if TYPE_CHECKING:
    from tests.sim.conformance.helpers.client import Api

Obj = dict[str, Any]


@pytest.fixture
def claims(namespace: str) -> str:
    return f"{DRA}/namespaces/{namespace}/resourceclaims"


def requested(**fields: Any) -> Obj:
    return claim("a", {"name": "r0"} | fields)


# --- the spec -----------------------------------------------------------------------------------
def test_a_request_counts_exactly_one_by_default(api: Api, claims: str) -> None:
    created = api.post(claims, claim("a")).ok()
    exactly = created["spec"]["devices"]["requests"][0]["exactly"]
    assert exactly == {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 1}
    assert created["status"] == {}
    assert "generation" not in created["metadata"]


def test_a_new_claim_has_no_status(api: Api, claims: str) -> None:
    created = api.post(claims, claim("a") | {"status": {"allocation": allocation()}}).ok()
    assert created["status"] == {}


def test_the_spec_never_changes(api: Api, claims: str) -> None:
    api.post(claims, claim("a")).ok()
    change = {"spec": {"devices": {"requests": [request("r1")]}}}
    answer = api.merge(f"{claims}/a", change)
    assert answer.causes() == {("FieldValueInvalid", "spec")}
    assert answer.refused(422, "Invalid").endswith("field is immutable")


def test_alternatives_are_tried_in_order(api: Api, claims: str) -> None:
    subs = [{"name": f"s{index}", "deviceClassName": DRIVER} for index in range(2)]
    created = api.post(claims, requested(firstAvailable=subs)).ok()
    (wanted,) = created["spec"]["devices"]["requests"]
    assert [sub["count"] for sub in wanted["firstAvailable"]] == [1, 1]


def test_a_template_is_completed_like_a_claim_and_never_changes(api: Api, namespace: str) -> None:
    path = f"{DRA}/namespaces/{namespace}/resourceclaimtemplates"
    good = {"metadata": {"name": "t"}, "spec": {"spec": claim("a")["spec"]}}
    created = api.post(path, good).ok()
    assert created["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1
    change = {"spec": {"metadata": {"labels": {"a": "b"}}}}
    assert api.merge(f"{path}/t", change).causes() == {("FieldValueInvalid", "spec")}
