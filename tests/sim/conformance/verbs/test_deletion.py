"""Deletion: what holds an object, and what goes with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.waiting import wait_for
from tests.sim.conformance.helpers.builders import DRA, claim, config_map, pod

if TYPE_CHECKING:
    from tests.sim.conformance.helpers.client import Api, Watch


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


# -- watches: nothing is missed, and selections have borders


@pytest.fixture
def path(namespace: str) -> str:
    return f"{DRA}/namespaces/{namespace}/resourceclaims"


def watch_from_now(api: Api, path: str, **params: str | int | bool) -> Watch:
    version = api.get(path).ok()["metadata"]["resourceVersion"]
    return api.watch(path, **{"resourceVersion": version, "timeoutSeconds": 900} | params)


def label(api: Api, path: str, value: str | None) -> None:
    api.merge(path, {"metadata": {"labels": {"show": value}}}).ok()


def test_changes_after_a_list_are_seen_in_order(api: Api, path: str) -> None:
    with watch_from_now(api, path) as watch:
        created = api.post(path, claim("a")).ok()
        assert watch.next().object == created
        label(api, f"{path}/a", "x")
        assert watch.next().seen == ("MODIFIED", "a")
        api.delete(f"{path}/a").ok()
        assert watch.next().seen == ("DELETED", "a")


def test_objects_enter_and_leave_a_label_selection(api: Api, path: str) -> None:
    with watch_from_now(api, path, labelSelector="show=yes") as watch:
        api.post(path, claim("a")).ok()
        label(api, f"{path}/a", "yes")
        entered = watch.next()
        assert entered.seen == ("ADDED", "a")
        api.merge(f"{path}/a", {"metadata": {"annotations": {"x": "y"}}}).ok()
        assert watch.next().seen == ("MODIFIED", "a")
        label(api, f"{path}/a", "no")
        left = watch.next()
        assert left.seen == ("DELETED", "a")
        assert left.object["metadata"]["labels"] == {"show": "yes"}
        live = api.get(f"{path}/a").ok()["metadata"]["resourceVersion"]
        assert left.object["metadata"]["resourceVersion"] == live
        api.delete(f"{path}/a").ok()
        api.post(path, claim("b") | {"metadata": {"name": "b", "labels": {"show": "yes"}}}).ok()
        assert watch.next().seen == ("ADDED", "b")


def test_a_bound_pod_enters_the_selection_of_its_node(api: Api, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with watch_from_now(api, pods, fieldSelector="spec.nodeName=node-a") as watch:
        api.post(pods, pod("a", terminationGracePeriodSeconds=0)).ok()
        binding = {"metadata": {"name": "a"}, "target": {"kind": "Node", "name": "node-a"}}
        api.post(f"{pods}/a/binding", binding).ok()
        assert watch.next().seen == ("ADDED", "a")
        api.delete(f"{pods}/a", {"gracePeriodSeconds": 0}).ok()
        marked = watch.next()
        assert marked.seen == ("MODIFIED", "a")
        assert marked.object["metadata"]["deletionTimestamp"]
        assert watch.next().seen == ("DELETED", "a")


def test_a_bookmark_comes_before_the_end_for_whom_asked(api: Api, path: str) -> None:
    api.post(path, claim("a")).ok()
    # A real API server sends none where the events were there before the watch.
    with (
        watch_from_now(api, path, timeoutSeconds=5, allowWatchBookmarks=True) as watch,
        watch_from_now(api, path, timeoutSeconds=5) as unasked,
    ):
        api.post(path, claim("b")).ok()
        events = watch.rest()
        assert [event.seen for event in unasked.rest()] == [("ADDED", "b")]
    assert events[0].seen == ("ADDED", "b")
    bookmark = events[-1]
    assert bookmark.type == "BOOKMARK"
    assert bookmark.object["kind"] == "ResourceClaim"
    version = int(bookmark.object["metadata"]["resourceVersion"])
    assert version >= int(events[0].object["metadata"]["resourceVersion"])
