"""Discovery, versions, health, and the tables of built-in kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.conformance.helpers.builders import DRA, allocation, claim, pod, resource_slice
from tests.sim.conformance.helpers.client import AS_TABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.conformance.helpers.client import Api

Obj = dict[str, Any]


def test_the_version_is_1_36(api: Api) -> None:
    version = api.get("/version").ok()
    assert (version["major"], version["minor"]) == ("1", "36")
    assert version["gitVersion"].startswith("v1.36.")


@pytest.mark.parametrize(
    ("path", "name", "entry"),
    [
        ("/api/v1", "pods", ("Pod", True, ["po"])),
        ("/api/v1", "nodes", ("Node", False, ["no"])),
        ("/api/v1", "events", ("Event", True, ["ev"])),
        ("/api/v1", "pods/binding", ("Binding", True, None)),
        ("/api/v1", "pods/status", ("Pod", True, None)),
        (DRA, "resourceclaims", ("ResourceClaim", True, None)),
        (DRA, "resourceclaims/status", ("ResourceClaim", True, None)),
        (DRA, "resourceclaimtemplates", ("ResourceClaimTemplate", True, None)),
        (DRA, "resourceslices", ("ResourceSlice", False, None)),
        (DRA, "deviceclasses", ("DeviceClass", False, None)),
        ("/apis/coordination.k8s.io/v1", "leases", ("Lease", True, None)),
        ("/apis/apps/v1", "daemonsets", ("DaemonSet", True, ["ds"])),
        (
            "/apis/apiextensions.k8s.io/v1",
            "customresourcedefinitions",
            ("CustomResourceDefinition", False, ["crd", "crds"]),
        ),
    ],
)
def test_resources_are_listed(
    api: Api, path: str, name: str, entry: tuple[str, bool, list[str] | None]
) -> None:
    (found,) = (each for each in api.get(path).ok()["resources"] if each["name"] == name)
    assert (found["kind"], found["namespaced"], found.get("shortNames")) == entry
    if "/" not in name:
        wanted = {"create", "delete", "get", "list", "patch", "update", "watch"}
        assert set(found["verbs"]) >= wanted


def test_groups_are_listed(api: Api) -> None:
    groups = {group["name"]: group for group in api.get("/apis").ok()["groups"]}
    assert groups["resource.k8s.io"]["preferredVersion"]["version"] == "v1"
    alone = api.get("/apis/resource.k8s.io").ok()
    assert (alone["kind"], alone["name"]) == ("APIGroup", "resource.k8s.io")
    assert api.get("/api").ok()["versions"] == ["v1"]


def rows(api: Api, path: str) -> dict[str, dict[str, Any]]:
    table = api.get(path, headers={"Accept": AS_TABLE}).ok()
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    names = [column["name"] for column in table["columnDefinitions"]]
    found = [dict(zip(names, row["cells"], strict=True)) for row in table["rows"]]
    return {row["Name"]: row for row in found}


def test_pods_as_rows(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    api.post(path, pod("a")).ok()
    api.post(path, pod("b", schedulingGates=[{"name": "x/y"}])).ok()
    found = rows(api, path)
    a = found["a"]
    assert [a[c] for c in ("Ready", "Status", "Restarts")] == ["0/1", "Pending", "0"]
    assert [a[c] for c in ("IP", "Node")] == ["<none>"] * 2
    assert found["b"]["Status"] == "SchedulingGated"


def test_claims_as_rows(api: Api, namespace: str) -> None:
    path = f"{DRA}/namespaces/{namespace}/resourceclaims"
    for name in ("waiting", "given", "taken"):
        api.post(path, claim(name)).ok()
    for name in ("given", "taken"):
        api.merge(f"{path}/{name}/status", {"status": {"allocation": allocation()}}).ok()
    users = [{"resource": "pods", "name": "p", "uid": "1"}]
    api.merge(f"{path}/taken/status", {"status": {"reservedFor": users}}).ok()
    found = {name: row["State"] for name, row in rows(api, path).items()}
    assert found == {"waiting": "pending", "given": "allocated", "taken": "allocated,reserved"}


def test_slices_as_rows(api: Api, unique: str, cleanup: Callable[[str], str]) -> None:
    api.post(f"{DRA}/resourceslices", resource_slice(unique)).ok()
    cleanup(f"{DRA}/resourceslices/{unique}")
    row = rows(api, f"{DRA}/resourceslices")[unique]
    assert [row[c] for c in ("Node", "Driver", "Pool")] == ["node-a", "mig.dra.dev", "node-a"]


def test_nodes_as_rows(api: Api, unique: str, cleanup: Callable[[str], str]) -> None:
    conditions = [{"type": "Ready", "status": "True"}]
    info = {"kubeletVersion": "v1.36.2", "osImage": "Linux"}
    addresses = [{"type": "InternalIP", "address": "10.0.0.7"}]
    status = {"conditions": conditions, "nodeInfo": info, "addresses": addresses}
    labels = {"node-role.kubernetes.io/worker": ""}
    metadata = {"name": unique, "labels": labels}
    spec = {"unschedulable": True}
    api.post("/api/v1/nodes", {"metadata": metadata, "status": status, "spec": spec}).ok()
    cleanup(f"/api/v1/nodes/{unique}")
    row = rows(api, "/api/v1/nodes")[unique]
    assert row["Status"] == "Ready,SchedulingDisabled"
    assert [row[c] for c in ("Roles", "Version", "Internal-IP")] == [
        "worker",
        "v1.36.2",
        "10.0.0.7",
    ]
