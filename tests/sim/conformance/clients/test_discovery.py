"""Discovery, versions, health, and the tables of built-in kinds."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.conformance.helpers.builders import DRA, allocation, claim

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.sim.conformance.helpers.client import Api


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


# -- the official Python client, with its models and with dicts


@pytest.fixture(scope="module")
def client() -> Any:
    """The library, which takes a second to load."""
    return import_module("kubernetes.client")


@pytest.fixture(scope="module")
def connection(kubeconfig: Path) -> Iterator[Any]:
    config = import_module("kubernetes.config")
    with config.new_client_from_config(str(kubeconfig)) as made:
        yield made


def test_models_allocate_a_claim(client: Any, connection: Any, namespace: str) -> None:
    api = client.ResourceV1Api(connection)
    api.create_namespaced_resource_claim(namespace, claim("c"))
    patch = {"status": {"allocation": allocation()}}
    patched = api.patch_namespaced_resource_claim_status("c", namespace, patch)
    assert patched.status.allocation.devices.results[0].pool == "node-a"
    changed = {"status": {"allocation": allocation(nodeSelector=None)}}
    with pytest.raises(client.ApiException) as refused:
        api.patch_namespaced_resource_claim_status("c", namespace, changed)
    assert refused.value.status == 422
