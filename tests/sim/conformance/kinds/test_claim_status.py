"""The status of ResourceClaims: what allocators and node drivers can get wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.conformance.helpers.builders import (
    DRA,
    allocation,
    claim,
    condition,
    device_status,
    result,
)

if TYPE_CHECKING:
    from tests.sim.conformance.helpers.client import Answer, Api

Obj = dict[str, Any]

POD = {"resource": "pods", "name": "p", "uid": "1"}


@pytest.fixture
def claims(namespace: str) -> str:
    return f"{DRA}/namespaces/{namespace}/resourceclaims"


@pytest.fixture
def a_claim(api: Api, claims: str) -> str:
    """A new claim; gives the path of its status."""
    api.post(claims, claim("a")).ok()
    return f"{claims}/a/status"


@pytest.fixture
def allocated(api: Api, a_claim: str) -> str:
    api.merge(a_claim, {"status": {"allocation": allocation()}}).ok()
    return a_claim


def allocate(api: Api, path: str, *results: Obj, **fields: Any) -> Answer:
    return api.merge(path, {"status": {"allocation": allocation(*results, **fields)}})


def report(api: Api, path: str, *devices: Obj) -> Answer:
    return api.merge(path, {"status": {"devices": list(devices)}})


# --- the allocation -----------------------------------------------------------------------------
def test_anybody_may_allocate_a_device_that_no_slice_lists(api: Api, a_claim: str) -> None:
    given = allocate(api, a_claim).ok()["status"]["allocation"]
    assert given == allocation()


def test_an_allocation_never_changes(api: Api, allocated: str) -> None:
    answer = allocate(api, allocated, result("other"))
    assert answer.causes() == {("FieldValueInvalid", "status.allocation")}
    assert "field is immutable" in answer.refused(422, "Invalid")


def test_a_claim_is_deallocated_with_its_device_states(api: Api, allocated: str) -> None:
    report(api, allocated, device_status()).ok()
    cleared = api.merge(allocated, {"status": {"allocation": None}}).ok()
    assert cleared["status"] == {}


def test_a_reserved_claim_is_not_deallocated(api: Api, allocated: str) -> None:
    api.merge(allocated, {"status": {"reservedFor": [POD]}}).ok()
    answer = api.merge(allocated, {"status": {"allocation": None}})
    assert answer.causes() == {("FieldValueForbidden", "status.reservedFor")}
    api.merge(allocated, {"status": {"allocation": None, "reservedFor": None}}).ok()


# --- reservations and device states -------------------------------------------------------------


def test_a_device_state_belongs_to_an_allocated_device(api: Api, allocated: str) -> None:
    answer = report(api, allocated, device_status("other"))
    assert answer.causes() == {("FieldValueInvalid", "status.devices[0]")}
    assert "must be an allocated device in the claim" in answer.refused(422)
    state = device_status(data={"uuid": "MIG-1"}, conditions=[condition()])
    assert report(api, allocated, state).ok()["status"]["devices"] == [state]
