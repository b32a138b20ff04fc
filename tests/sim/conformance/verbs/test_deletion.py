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


def test_no_finalizer_can_be_added_during_deletion(api: Api, claims: str) -> None:
    body = claim("a")
    body["metadata"]["finalizers"] = [FINALIZER]
    api.post(claims, body).ok()
    api.delete(f"{claims}/a").ok()
    change = {"metadata": {"finalizers": [FINALIZER, "late.dev/x"]}}
    answer = api.merge(f"{claims}/a", change)
    assert answer.causes() == {("FieldValueForbidden", "metadata.finalizers")}
    assert "late.dev/x" in answer.refused(422, "Invalid")
    api.merge(f"{claims}/a", {"metadata": {"finalizers": None}}).ok()


def test_a_held_object_can_still_be_updated_but_not_revived(api: Api, maps: str) -> None:
    body = config_map("a", x="1")
    body["metadata"]["finalizers"] = [FINALIZER]
    api.post(maps, body).ok()
    api.delete(f"{maps}/a").ok()
    change = {"metadata": {"deletionTimestamp": None}, "data": {"x": "2"}}
    changed = api.merge(f"{maps}/a", change).ok()
    assert changed["data"] == {"x": "2"}
    assert changed["metadata"]["deletionTimestamp"]
    api.merge(f"{maps}/a", {"metadata": {"finalizers": None}}).ok()


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


def test_the_grace_of_a_pod_can_be_shortened_but_not_prolonged(api: Api, pods: str) -> None:
    api.post(pods, pod("a", nodeName="node-a")).ok()
    first = api.delete(f"{pods}/a", {"gracePeriodSeconds": 20}).ok()["metadata"]
    longer = api.delete(f"{pods}/a", {"gracePeriodSeconds": 100}).ok()["metadata"]
    assert longer["deletionTimestamp"] == first["deletionTimestamp"]
    shorter = api.delete(f"{pods}/a", {"gracePeriodSeconds": 5}).ok()["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 5
    assert shorter["deletionTimestamp"] < first["deletionTimestamp"]
    api.delete(f"{pods}/a", {"gracePeriodSeconds": 0}).ok()


def test_a_finished_pod_goes_at_once(api: Api, pods: str) -> None:
    api.post(pods, pod("a", nodeName="node-a")).ok()
    api.merge(f"{pods}/a/status", {"status": {"phase": "Succeeded"}}).ok()
    api.delete(f"{pods}/a").ok()
    api.get(f"{pods}/a").refused(404)


def test_a_finalizer_outlives_the_grace_of_a_pod(api: Api, pods: str) -> None:
    body = pod("a", nodeName="node-a")
    body["metadata"]["finalizers"] = [FINALIZER]
    api.post(pods, body).ok()
    api.delete(f"{pods}/a", {"gracePeriodSeconds": 0}).ok()
    api.get(f"{pods}/a").ok()
    api.merge(f"{pods}/a", {"metadata": {"finalizers": None}}).ok()
    api.get(f"{pods}/a").refused(404)


def test_an_eviction_deletes(api: Api, pods: str) -> None:
    api.post(pods, pod("a")).ok()
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
    assert api.post(f"{pods}/a/eviction", body).code == 201
    api.get(f"{pods}/a").refused(404)


def test_a_dry_run_deletes_nothing(api: Api, maps: str) -> None:
    api.post(maps, config_map("a")).ok()
    api.delete(f"{maps}/a", dryRun="All").ok()
    api.get(f"{maps}/a").ok()


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


def test_a_child_of_a_pod_with_a_finalizer_waits_for_it(api: Api, pods: str, claims: str) -> None:
    owner = api.post(pods, pod("p")).ok()["metadata"]
    body = claim("c")
    body["metadata"] |= {
        "finalizers": [FINALIZER],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner["uid"]}],
    }
    api.post(claims, body).ok()
    api.delete(f"{pods}/p").ok()
    wait_for(
        "the claim is being deleted",
        lambda: "deletionTimestamp" in api.get(f"{claims}/c").ok()["metadata"],
    )
    api.merge(f"{claims}/c", {"metadata": {"finalizers": None}}).ok()
    wait_for("the claim is gone", lambda: gone(api, f"{claims}/c"))


def test_an_object_whose_owner_never_was_is_collected(api: Api, maps: str) -> None:
    ghost = {"metadata": {"name": "ghost", "uid": "11111111-2222-3333-4444-555555555555"}}
    api.post(maps, owned_by("child", ghost)).ok()
    wait_for("the child is collected", lambda: gone(api, f"{maps}/child"))


def test_a_second_owner_keeps_the_child(api: Api, maps: str) -> None:
    first, second = (api.post(maps, config_map(name)).ok() for name in ("one", "two"))
    body = owned_by("child", first)
    body["metadata"]["ownerReferences"] += owned_by("x", second)["metadata"]["ownerReferences"]
    api.post(maps, body).ok()
    api.post(maps, owned_by("witness", first)).ok()
    api.delete(f"{maps}/one").ok()
    wait_for("the collector has been here", lambda: gone(api, f"{maps}/witness"))
    assert not gone(api, f"{maps}/child")


def test_a_namespace_goes_after_its_content(api: Api, unique: str) -> None:
    space = f"/api/v1/namespaces/{unique}"
    api.post("/api/v1/namespaces", {"metadata": {"name": unique}}).ok()
    body = config_map("a")
    body["metadata"]["finalizers"] = [FINALIZER]
    api.post(f"{space}/configmaps", body).ok()
    leaving = api.delete(space).ok()
    assert leaving["status"]["phase"] == "Terminating"
    refused = api.post(f"{space}/configmaps", config_map("late"))
    assert "because it is being terminated" in refused.refused(403, "Forbidden")
    wait_for(
        "the content is being deleted",
        lambda: "deletionTimestamp" in api.get(f"{space}/configmaps/a").ok()["metadata"],
    )
    api.merge(f"{space}/configmaps/a", {"metadata": {"finalizers": None}}).ok()
    wait_for("the namespace is gone", lambda: gone(api, space))
