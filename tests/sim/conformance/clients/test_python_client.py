"""The official Python client, with its models and with dicts."""

from __future__ import annotations

import datetime as dt
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.conformance.helpers.builders import allocation, claim

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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


def test_models_hold_a_lease(client: Any, connection: Any, namespace: str) -> None:
    api = client.CoordinationV1Api(connection)
    now = dt.datetime.now(dt.UTC)
    spec = client.V1LeaseSpec(holder_identity="me", lease_duration_seconds=15, renew_time=now)
    lease = client.V1Lease(metadata=client.V1ObjectMeta(name="l"), spec=spec)
    created = api.create_namespaced_lease(namespace, lease)
    created.spec.holder_identity = "you"
    assert api.replace_namespaced_lease("l", namespace, created).spec.holder_identity == "you"
    with pytest.raises(client.ApiException) as stale:
        api.replace_namespaced_lease("l", namespace, created)
    assert (stale.value.status, stale.value.reason) == (409, "Conflict")


def test_its_versions_and_groups(client: Any, connection: Any) -> None:
    assert client.VersionApi(connection).get_code().minor == "36"
    groups = {group.name for group in client.ApisApi(connection).get_api_versions().groups}
    assert "resource.k8s.io" in groups
