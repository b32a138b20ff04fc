"""The three patches that are not server-side apply."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sim.conformance.helpers.builders import DRA, claim, config_map, pod

if TYPE_CHECKING:
    from tests.sim.conformance.helpers.client import Api


@pytest.fixture
def a_map(api: Api, namespace: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    api.post(path, config_map("a", x="1", y="2")).ok()
    return f"{path}/a"


@pytest.fixture
def a_pod(api: Api, namespace: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/pods"
    body = pod("a", containers=[{"name": n, "image": f"{n}:1"} for n in ("one", "two")])
    body["metadata"] |= {
        "labels": {"l": "1"},
        "finalizers": ["a.b/one"],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Secret", "name": "s", "uid": "u-1", "controller": True}
        ],
    }
    # Without its owner the garbage collector would delete it.
    del body["metadata"]["ownerReferences"]
    api.post(path, body).ok()
    return f"{path}/a"


def test_a_merge_patch_sets_and_null_removes(api: Api, a_map: str) -> None:
    patched = api.merge(a_map, {"data": {"x": None, "z": "3"}}).ok()
    assert patched["data"] == {"y": "2", "z": "3"}


def test_a_patch_with_the_right_version_is_taken_and_a_stale_one_is_not(
    api: Api, a_map: str
) -> None:
    version = api.get(a_map).ok()["metadata"]["resourceVersion"]
    body = {"metadata": {"resourceVersion": version}, "data": {"x": "3"}}
    api.merge(a_map, body).ok()
    api.merge(a_map, body | {"data": {"x": "4"}}).refused(409, "Conflict")


def test_a_json_patch_does_all_or_nothing(api: Api, a_map: str) -> None:
    steps = [
        {"op": "test", "path": "/data/x", "value": "1"},
        {"op": "replace", "path": "/data/x", "value": "9"},
        {"op": "remove", "path": "/data/a~1b"},
    ]
    api.patch(a_map, steps).refused(422, "Invalid")
    assert api.patch(a_map, steps[:2]).ok()["data"] == {"x": "9", "y": "2"}


def test_a_json_patch_can_guard_a_uid_and_add_a_finalizer(api: Api, namespace: str) -> None:
    path = f"{DRA}/namespaces/{namespace}/resourceclaims"
    uid = api.post(path, claim("a")).ok()["metadata"]["uid"]
    steps = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/metadata/finalizers", "value": ["mig.dra.dev/allocation"]},
    ]
    patched = api.patch(f"{path}/a", steps).ok()
    assert patched["metadata"]["finalizers"] == ["mig.dra.dev/allocation"]
    gone = [{"op": "remove", "path": "/metadata/finalizers/0"}]
    assert "finalizers" not in api.patch(f"{path}/a", gone).ok()["metadata"]


def test_a_strategic_patch_merges_containers_by_name(api: Api, a_pod: str) -> None:
    body = {"spec": {"containers": [{"name": "two", "image": "two:2"}]}}
    containers = api.strategic(a_pod, body).ok()["spec"]["containers"]
    assert [(c["name"], c["image"]) for c in containers] == [("one", "one:1"), ("two", "two:2")]


def test_a_strategic_patch_adds_to_finalizers_and_deletes_from_them(api: Api, a_pod: str) -> None:
    added = api.strategic(a_pod, {"metadata": {"finalizers": ["a.b/two"]}}).ok()
    assert sorted(added["metadata"]["finalizers"]) == ["a.b/one", "a.b/two"]
    directive = {"$deleteFromPrimitiveList/finalizers": ["a.b/one", "a.b/two"]}
    assert "finalizers" not in api.strategic(a_pod, {"metadata": directive}).ok()["metadata"]
