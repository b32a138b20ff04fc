"""Custom resources: served as soon as they are established, cut to their schema."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.waiting import wait_for
from tests.sim.conformance.helpers.client import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

Obj = dict[str, Any]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SCHEMA: Obj = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["pool"],
            "properties": {
                "pool": {"type": "string"},
                "size": {"type": "integer"},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "gpus": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["uuid"],
                    "items": {
                        "type": "object",
                        "required": ["uuid"],
                        "properties": {
                            "uuid": {"type": "string"},
                            "state": {"type": "string"},
                        },
                    },
                },
            },
        },
        "status": {
            "type": "object",
            "properties": {"ready": {"type": "integer"}, "note": {"type": "string"}},
        },
    },
}


class Kind:
    """A resource of the module's own."""

    def __init__(self) -> None:
        self.group = f"g{uuid.uuid4().hex[:8]}.example.com"
        self.path = f"/apis/{self.group}/v1alpha1/trees"
        self.definition = f"{CRDS}/trees.{self.group}"

    def crd(self) -> Obj:
        version = {
            "name": "v1alpha1",
            "served": True,
            "storage": True,
            "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": SCHEMA},
            "additionalPrinterColumns": [
                {"name": "Pool", "type": "string", "jsonPath": ".spec.pool"},
                {"name": "Ready", "type": "integer", "jsonPath": ".status.ready"},
                {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
            ],
            "selectableFields": [{"jsonPath": ".spec.pool"}],
        }
        names = {"plural": "trees", "singular": "tree", "kind": "Tree", "shortNames": ["tr"]}
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"trees.{self.group}"},
            "spec": {
                "group": self.group, "scope": "Cluster", "names": names, "versions": [version],
            },
        }  # fmt: skip

    def tree(self, name: str = "a", **spec: Any) -> Obj:
        return {
            "apiVersion": f"{self.group}/v1alpha1",
            "kind": "Tree",
            "metadata": {"name": name},
            "spec": {"pool": "p"} | spec,
        }


@pytest.fixture(scope="module")
def kind(api: Api) -> Iterator[Kind]:
    made = Kind()
    api.post(CRDS, made.crd()).ok()
    wait_for("the resource is served", lambda: api.get(made.path).code == 200)
    yield made
    api.delete(made.definition).ok()


@pytest.fixture
def trees(api: Api, kind: Kind) -> Iterator[str]:
    yield kind.path
    for each in api.get(kind.path).ok()["items"]:
        api.delete(f"{kind.path}/{each['metadata']['name']}").ok()


def test_changes_of_an_object_are_counted(api: Api, kind: Kind, trees: str) -> None:
    created = api.post(trees, kind.tree()).ok()
    assert created["metadata"]["generation"] == 1
    changed = api.merge(f"{trees}/a", {"spec": {"size": 3}}).ok()
    assert changed["metadata"]["generation"] == 2


def test_fields_outside_the_schema_are_dropped(api: Api, kind: Kind, trees: str) -> None:
    body = kind.tree(surprise=1, free={"any": {"thing": 1}}, labels={"a": "b"})
    body["more"] = True
    created = api.post(trees, body).ok()
    assert "more" not in created
    assert created["spec"] == {
        "pool": "p",
        "free": {"any": {"thing": 1}},
        "labels": {"a": "b"},
    }
    strict = api.post(trees, kind.tree("b", surprise=1), fieldValidation="Strict")
    assert 'unknown field "spec.surprise"' in strict.refused(400, "BadRequest")


def test_the_status_has_its_own_endpoint(api: Api, kind: Kind, trees: str) -> None:
    created = api.post(trees, kind.tree() | {"status": {"ready": 1}}).ok()
    assert "status" not in created
    patch = {"status": {"ready": 2}, "spec": {"size": 1}, "metadata": {"labels": {"a": "b"}}}
    reported = api.merge(f"{trees}/a/status", patch).ok()
    assert reported["status"] == {"ready": 2}
    assert "size" not in reported["spec"]
    assert "labels" not in reported["metadata"]
    assert reported["metadata"]["generation"] == 1
    kept = api.merge(f"{trees}/a", {"status": {"ready": 9}, "spec": {"size": 1}}).ok()
    assert kept["status"] == {"ready": 2}


def test_lists_with_keys_are_applied_by_several_managers(api: Api, kind: Kind, trees: str) -> None:
    for manager, gpu in (("one", "GPU-1"), ("two", "GPU-2")):
        body = kind.tree(gpus=[{"uuid": gpu, "state": manager}])
        applied = api.apply(f"{trees}/a", body, manager=manager).ok()
    assert [gpu["uuid"] for gpu in applied["spec"]["gpus"]] == ["GPU-1", "GPU-2"]
    other = kind.tree(gpus=[{"uuid": "GPU-1", "state": "mine"}])
    message = api.apply(f"{trees}/a", other, manager="two").refused(409, "Conflict")
    assert '.spec.gpus[uuid="GPU-1"].state' in message
    kept = api.apply(f"{trees}/a", kind.tree(), manager="two").ok()
    assert [gpu["uuid"] for gpu in kept["spec"]["gpus"]] == ["GPU-1"]


def test_a_resource_is_discovered_and_watched(api: Api, kind: Kind, trees: str) -> None:
    listed = api.get(f"/apis/{kind.group}/v1alpha1").ok()["resources"]
    found = {entry["name"]: entry for entry in listed}
    assert found.keys() == {"trees", "trees/status"}
    assert found["trees"]["shortNames"] == ["tr"]
    assert found["trees"]["namespaced"] is False
    with api.watch(trees, timeoutSeconds=900) as watch:
        api.post(trees, kind.tree("w")).ok()
        assert watch.next().seen == ("ADDED", "w")
