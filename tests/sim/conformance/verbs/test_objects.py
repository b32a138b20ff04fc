"""Objects: create, read, update, and the versions in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sim.conformance.helpers.builders import DRA, claim, config_map, pod, resource_slice

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.conformance.helpers.client import Api


def maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def test_a_created_object_gets_identity_version_and_manager(api: Api, namespace: str) -> None:
    answer = api.post(maps(namespace), config_map("a", x="1"))
    assert answer.code == 201
    metadata = answer.ok()["metadata"]
    assert metadata["namespace"] == namespace
    assert len(metadata["uid"]) == 36
    assert metadata["creationTimestamp"].endswith("Z")
    assert int(metadata["resourceVersion"]) > 0
    assert "generation" not in metadata
    (entry,) = metadata["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("conformance", "Update")
    assert entry["fieldsV1"]["f:data"]["f:x"] == {}


def test_a_stale_update_conflicts(api: Api, namespace: str) -> None:
    old = api.post(maps(namespace), config_map("a", x="1")).ok()
    api.merge(f"{maps(namespace)}/a", {"data": {"x": "2"}}).ok()
    answer = api.put(f"{maps(namespace)}/a", old | {"data": {"x": "3"}})
    assert answer.refused(409, "Conflict") == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; please '
        "apply your changes to the latest version and try again"
    )
    assert api.get(f"{maps(namespace)}/a").ok()["data"] == {"x": "2"}


def test_an_update_that_changes_nothing_writes_nothing(api: Api, namespace: str) -> None:
    old = api.post(maps(namespace), config_map("a", x="1")).ok()
    same = api.put(f"{maps(namespace)}/a", old).ok()
    assert same == old
    patched = api.merge(f"{maps(namespace)}/a", {"data": {"x": "1"}}, fieldManager="other").ok()
    assert patched["metadata"] == old["metadata"]


def test_the_generation_counts_changes_of_the_spec_only(api: Api, unique: str) -> None:
    path = f"{DRA}/deviceclasses"
    body = {"metadata": {"name": unique}, "spec": {}}
    assert api.post(path, body).ok()["metadata"]["generation"] == 1
    labelled = api.merge(f"{path}/{unique}", {"metadata": {"labels": {"a": "b"}}}).ok()
    assert labelled["metadata"]["generation"] == 1
    changed = api.merge(f"{path}/{unique}", {"spec": {"extendedResourceName": "e.com/a"}}).ok()
    assert changed["metadata"]["generation"] == 2
    api.delete(f"{path}/{unique}").ok()


def test_the_status_endpoint_writes_the_status_only(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    api.post(path, pod("a")).ok()
    body = {"status": {"phase": "Running"}, "spec": {"nodeName": "n"}}
    assert api.merge(f"{path}/a/status", body).ok()["status"]["phase"] == "Running"
    assert "nodeName" not in api.get(f"{path}/a").ok()["spec"]


def test_a_status_update_of_a_claim_carries_no_metadata(api: Api, namespace: str) -> None:
    path = f"{DRA}/namespaces/{namespace}/resourceclaims"
    api.post(path, claim("a")).ok()
    metadata = {"finalizers": ["x.y/z"], "labels": {"a": "b"}, "annotations": {"c": "d"}}
    api.merge(f"{path}/a/status", {"metadata": metadata}).ok()
    kept = api.get(f"{path}/a").ok()["metadata"]
    assert not {"finalizers", "labels", "annotations"} & kept.keys()


# -- lists: selection and pages


@pytest.fixture
def path(api: Api, namespace: str) -> str:
    """Five config maps with labels."""
    where = f"/api/v1/namespaces/{namespace}/configmaps"
    for index, labels in enumerate(
        ({}, {"tier": "a"}, {"tier": "b"}, {"tier": "a", "x": ""}, {"x": "y"})
    ):
        body = config_map(f"m{index}")
        body["metadata"]["labels"] = labels
        api.post(where, body).ok()
    return where


def names(api: Api, path: str, **params: str | int) -> list[str]:
    found = api.get(path, **params).ok()
    # The control plane puts its certificates into every namespace.
    listed = [item["metadata"]["name"] for item in found["items"]]
    return [name for name in listed if name != "kube-root-ca.crt"]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("tier=a", ["m1", "m3"]),
        ("tier==b", ["m2"]),
        ("tier!=a", ["m0", "m2", "m4"]),
        ("tier in (a, b)", ["m1", "m2", "m3"]),
        ("tier notin (a)", ["m0", "m2", "m4"]),
        ("tier", ["m1", "m2", "m3"]),
        ("!tier", ["m0", "m4"]),
        ("tier=a,x", ["m3"]),
        ("x=", ["m3"]),
    ],
)
def test_labels_select(api: Api, path: str, selector: str, expected: list[str]) -> None:
    assert names(api, path, labelSelector=selector) == expected


def test_pods_are_selected_by_node(api: Api, namespace: str) -> None:
    where = f"/api/v1/namespaces/{namespace}/pods"
    for name, more in (("on-a", {"nodeName": "node-a"}), ("on-b", {"nodeName": "node-b"})):
        api.post(where, pod(name, terminationGracePeriodSeconds=0, **more)).ok()
    api.post(where, pod("free")).ok()
    assert names(api, where, fieldSelector="spec.nodeName=node-a") == ["on-a"]
    assert names(api, where, fieldSelector="spec.nodeName=") == ["free"]
    assert names(api, where, fieldSelector="status.phase!=Pending") == []
    for name in ("on-a", "on-b"):
        api.delete(f"{where}/{name}", {"gracePeriodSeconds": 0})


def test_slices_are_selected_by_node_and_driver(
    api: Api, unique: str, cleanup: Callable[[str], str]
) -> None:
    where, driver = f"{DRA}/resourceslices", f"{unique}.example.com"
    for node in ("node-a", "node-b"):
        name = f"{unique}-{node}"
        api.post(where, resource_slice(name, nodeName=node, driver=driver)).ok()
        cleanup(f"{where}/{name}")
    assert len(names(api, where, fieldSelector=f"spec.driver={driver}")) == 2
    both = f"spec.driver={driver},spec.nodeName=node-b"
    assert names(api, where, fieldSelector=both) == [f"{unique}-node-b"]


def test_pages_follow_each_other_without_gap(api: Api, path: str) -> None:
    found, token, versions = [], "", set()
    while True:
        page = api.get(path, limit=2, **{"continue": token} if token else {}).ok()
        assert len(page["items"]) <= 2
        found += [item["metadata"]["name"] for item in page["items"]]
        versions.add(page["metadata"]["resourceVersion"])
        token = page["metadata"].get("continue", "")
        if not token:
            break
        assert page["metadata"]["remainingItemCount"] > 0
    assert [name for name in found if name.startswith("m")] == ["m0", "m1", "m2", "m3", "m4"]
    assert len(versions) == 1


# -- the three patches that are not server-side apply


@pytest.fixture
def a_map(api: Api, namespace: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    api.post(path, config_map("a", x="1", y="2")).ok()
    return f"{path}/a"


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
