"""Deletion: what holds an object, and what goes with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.waiting import wait_for
from tests.sim.conformance.helpers.builders import DRA, claim, config_map, pod

if TYPE_CHECKING:
    from tests.sim.conformance.helpers.client import Api

Obj = dict[str, Any]
FINALIZER = "mig.dra.dev/allocation"


@pytest.fixture
def maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


@pytest.fixture
def claims(namespace: str) -> str:
    return f"{DRA}/namespaces/{namespace}/resourceclaims"


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def test_a_deleted_object_is_gone(api: Api, maps: str) -> None:
    api.post(maps, config_map("a")).ok()
    api.delete(f"{maps}/a").ok()
    api.get(f"{maps}/a").refused(404)
    api.delete(f"{maps}/a").refused(404, "NotFound")


def test_a_deleted_claim_is_given_back(api: Api, claims: str) -> None:
    created = api.post(claims, claim("a")).ok()
    assert api.delete(f"{claims}/a").ok()["metadata"]["uid"] == created["metadata"]["uid"]


def test_a_finalizer_holds_the_object_until_it_is_removed(api: Api, claims: str) -> None:
    body = claim("a")
    body["metadata"]["finalizers"] = [FINALIZER, "other.dev/x"]
    api.post(claims, body).ok()
    held = api.delete(f"{claims}/a").ok()["metadata"]
    assert held["deletionTimestamp"]
    assert held["deletionGracePeriodSeconds"] == 0
    again = api.delete(f"{claims}/a").ok()["metadata"]
    assert again["deletionTimestamp"] == held["deletionTimestamp"]
    api.merge(f"{claims}/a", {"metadata": {"finalizers": [FINALIZER]}}).ok()
    last = api.merge(f"{claims}/a", {"metadata": {"finalizers": None}}).ok()
    assert last["metadata"]["uid"] == held["uid"]
    api.get(f"{claims}/a").refused(404)


def test_a_replacement_under_the_same_name_is_not_deleted_in_its_place(
    api: Api, claims: str
) -> None:
    old = api.post(claims, claim("a")).ok()["metadata"]
    api.delete(f"{claims}/a").ok()
    new = api.post(claims, claim("a")).ok()["metadata"]
    answer = api.delete(f"{claims}/a", {"preconditions": {"uid": old["uid"]}})
    assert "the UID in the precondition" in answer.refused(409, "Conflict")
    stale = {"preconditions": {"resourceVersion": old["resourceVersion"]}}
    api.delete(f"{claims}/a", stale).refused(409, "Conflict")
    exact = {"uid": new["uid"], "resourceVersion": new["resourceVersion"]}
    api.delete(f"{claims}/a", {"preconditions": exact}).ok()


def test_a_pod_without_node_goes_at_once(api: Api, pods: str) -> None:
    api.post(pods, pod("a")).ok()
    api.delete(f"{pods}/a").ok()
    api.get(f"{pods}/a").refused(404)


def test_a_pod_on_a_node_waits_for_its_kubelet(api: Api, pods: str) -> None:
    api.post(pods, pod("a", nodeName="node-a")).ok()
    leaving = api.delete(f"{pods}/a").ok()["metadata"]
    assert leaving["deletionGracePeriodSeconds"] == 30
    assert leaving["deletionTimestamp"]
    assert leaving["generation"] == 2
    api.get(f"{pods}/a").ok()
    # The kubelet's own delete.
    api.delete(f"{pods}/a", {"gracePeriodSeconds": 0}).ok()
    api.get(f"{pods}/a").refused(404)


def test_an_eviction_deletes(api: Api, pods: str) -> None:
    api.post(pods, pod("a")).ok()
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    assert api.post(f"{pods}/a/eviction", body).code == 201
    api.get(f"{pods}/a").refused(404)


def owned_by(name: str, owner: Obj, **fields: Any) -> Obj:
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    } | fields
    body = config_map(name)
    body["metadata"]["ownerReferences"] = [reference]
    return body


def gone(api: Api, path: str) -> bool:
    return api.get(path).code == 404


def test_dependents_go_with_their_owner(api: Api, maps: str) -> None:
    owner = api.post(maps, config_map("owner")).ok()
    api.post(maps, owned_by("child", owner)).ok()
    api.delete(f"{maps}/owner").ok()
    wait_for("the child is collected", lambda: gone(api, f"{maps}/child"))
