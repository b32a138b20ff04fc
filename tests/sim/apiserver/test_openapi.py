"""OpenAPI of a custom resource follows its definition at once; a real server takes its time."""

from __future__ import annotations

import copy
from typing import Any

from api.crds import mignode_definition
from tests.sim.conformance.helpers.client import Api

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PREFIX = "apis/mig.dra.dev/v1alpha1"


def mig_node(api: Api) -> dict[str, Any]:
    """The schema that a client finds for the kind, by the address that the index gives."""
    address = api.get("/openapi/v3").ok()["paths"][PREFIX]["serverRelativeURL"]
    schemas = api.get(address).ok()["components"]["schemas"]
    kind = {"group": "mig.dra.dev", "version": "v1alpha1", "kind": "MigNode"}
    (found,) = (s for s in schemas.values() if kind in s.get("x-kubernetes-group-version-kind", []))
    assert isinstance(found, dict)
    return found


def test_a_definition_is_described_and_its_changes_too(api: Api) -> None:
    definition = mignode_definition()
    name = definition["metadata"]["name"]
    api.post(DEFINITIONS, definition).ok()
    try:
        spec = mig_node(api)["properties"]["spec"]["properties"]
        assert "Nothing new is placed" in spec["drain"]["description"]
        first = api.get("/openapi/v3").ok()["paths"][PREFIX]
        changed = copy.deepcopy(definition["spec"])
        root = changed["versions"][0]["schema"]["openAPIV3Schema"]
        root["properties"]["spec"]["properties"]["drain"]["description"] = "Something else"
        api.merge(f"{DEFINITIONS}/{name}", {"spec": changed}).ok()
        assert api.get("/openapi/v3").ok()["paths"][PREFIX] != first
        spec = mig_node(api)["properties"]["spec"]["properties"]
        assert spec["drain"]["description"] == "Something else"
    finally:
        api.delete(f"{DEFINITIONS}/{name}").ok()
    assert PREFIX not in api.get("/openapi/v3").ok()["paths"]
