"""Objects: create, read, update, and the versions in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.conformance.helpers.builders import DRA, claim, config_map, pod

if TYPE_CHECKING:
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


def test_a_read_gives_what_the_write_gave(api: Api, namespace: str) -> None:
    created = api.post(maps(namespace), config_map("a", x="1")).ok()
    assert api.get(f"{maps(namespace)}/a").ok() == created


def test_a_name_is_taken_once(api: Api, namespace: str) -> None:
    api.post(maps(namespace), config_map("a")).ok()
    answer = api.post(maps(namespace), config_map("a"))
    assert answer.refused(409, "AlreadyExists") == 'configmaps "a" already exists'
    assert answer.body["details"] == {"name": "a", "kind": "configmaps"}


def test_a_missing_object_says_which(api: Api, namespace: str) -> None:
    answer = api.get(f"{DRA}/namespaces/{namespace}/resourceclaims/none")
    message = 'resourceclaims.resource.k8s.io "none" not found'
    assert answer.refused(404, "NotFound") == message
    details = {"name": "none", "group": "resource.k8s.io", "kind": "resourceclaims"}
    assert answer.body["details"] == details


def test_a_stale_update_conflicts(api: Api, namespace: str) -> None:
    old = api.post(maps(namespace), config_map("a", x="1")).ok()
    api.merge(f"{maps(namespace)}/a", {"data": {"x": "2"}}).ok()
    answer = api.put(f"{maps(namespace)}/a", old | {"data": {"x": "3"}})
    assert answer.refused(409, "Conflict") == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; please '
        "apply your changes to the latest version and try again"
    )
    assert api.get(f"{maps(namespace)}/a").ok()["data"] == {"x": "2"}


def test_an_update_without_version_wins(api: Api, namespace: str) -> None:
    api.post(maps(namespace), config_map("a", x="1")).ok()
    assert api.put(f"{maps(namespace)}/a", config_map("a", x="2")).ok()["data"] == {"x": "2"}


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


def test_the_main_endpoint_leaves_the_status_alone(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    created = api.post(path, pod("a") | {"status": {"phase": "Running"}}).ok()
    assert created["status"]["phase"] == "Pending"
    body = {"status": {"phase": "Failed"}, "metadata": {"labels": {"a": "b"}}}
    assert api.merge(f"{path}/a", body).ok()["status"]["phase"] == "Pending"


def test_a_status_update_of_a_claim_carries_no_metadata(api: Api, namespace: str) -> None:
    path = f"{DRA}/namespaces/{namespace}/resourceclaims"
    api.post(path, claim("a")).ok()
    metadata = {"finalizers": ["x.y/z"], "labels": {"a": "b"}, "annotations": {"c": "d"}}
    api.merge(f"{path}/a/status", {"metadata": metadata}).ok()
    kept = api.get(f"{path}/a").ok()["metadata"]
    assert not {"finalizers", "labels", "annotations"} & kept.keys()
