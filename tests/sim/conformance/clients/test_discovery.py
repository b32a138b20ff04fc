"""Discovery, versions, health, and the tables of built-in kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.conformance.helpers.builders import DRA
from tests.sim.conformance.helpers.client import AS_TABLE

if TYPE_CHECKING:
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


def rows(api: Api, path: str) -> dict[str, dict[str, Any]]:
    table = api.get(path, headers={"Accept": AS_TABLE}).ok()
    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    names = [column["name"] for column in table["columnDefinitions"]]
    found = [dict(zip(names, row["cells"], strict=True)) for row in table["rows"]]
    return {row["Name"]: row for row in found}
