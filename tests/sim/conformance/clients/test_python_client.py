"""The official Python client, with its models and with dicts."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException

from tests.sim.conformance.helpers.builders import allocation, claim, pod

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def connection(kubeconfig: Path) -> Iterator[Any]:
    with config.new_client_from_config(str(kubeconfig)) as made:  # type: ignore[no-untyped-call]
        yield made


def test_models_create_read_and_list_pods(connection: Any, namespace: str) -> None:
    core: Any = client.CoreV1Api(connection)
    container = client.V1Container(name="main", image="x:1")
    spec = client.V1PodSpec(containers=[container], scheduler_name="nobody")
    body = client.V1Pod(metadata=client.V1ObjectMeta(name="p"), spec=spec)
    created = core.create_namespaced_pod(namespace, body)
    assert created.status.phase == "Pending"
    assert core.read_namespaced_pod("p", namespace).metadata.uid == created.metadata.uid
    assert [item.metadata.name for item in core.list_namespaced_pod(namespace).items] == ["p"]
    core.delete_namespaced_pod("p", namespace)


def test_models_allocate_a_claim(connection: Any, namespace: str) -> None:
    api: Any = client.ResourceV1Api(connection)
    api.create_namespaced_resource_claim(namespace, claim("c"))
    patch = {"status": {"allocation": allocation()}}
    patched = api.patch_namespaced_resource_claim_status("c", namespace, patch)
    assert patched.status.allocation.devices.results[0].pool == "node-a"
    changed = {"status": {"allocation": allocation(nodeSelector=None)}}
    with pytest.raises(ApiException) as refused:
        api.patch_namespaced_resource_claim_status("c", namespace, changed)
    assert refused.value.status == 422


def test_models_apply_on_the_server_side(connection: Any, namespace: str) -> None:
    core: Any = client.CoreV1Api(connection)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"x": "1"}}
    applied = core.patch_namespaced_config_map(
        "m", namespace, body, _content_type="application/apply-patch+yaml", field_manager="me"
    )
    assert applied.data == {"x": "1"}


def test_models_hold_a_lease(connection: Any, namespace: str) -> None:
    api: Any = client.CoordinationV1Api(connection)
    now = dt.datetime.now(dt.UTC)
    spec = client.V1LeaseSpec(holder_identity="me", lease_duration_seconds=15, renew_time=now)
    lease = client.V1Lease(metadata=client.V1ObjectMeta(name="l"), spec=spec)
    created = api.create_namespaced_lease(namespace, lease)
    created.spec.holder_identity = "you"
    assert api.replace_namespaced_lease("l", namespace, created).spec.holder_identity == "you"
    with pytest.raises(ApiException) as stale:
        api.replace_namespaced_lease("l", namespace, created)
    assert (stale.value.status, stale.value.reason) == (409, "Conflict")


def test_its_watch_streams(connection: Any, namespace: str) -> None:
    core: Any = client.CoreV1Api(connection)
    core.create_namespaced_pod(namespace, pod("p"))
    watching: Any = watch.Watch()  # type: ignore[no-untyped-call]
    stream = watching.stream(core.list_namespaced_pod, namespace, timeout_seconds=1)
    events = [(event["type"], event["object"].metadata.name) for event in stream]
    assert events == [("ADDED", "p")]


def test_its_versions_and_groups(connection: Any) -> None:
    assert client.VersionApi(connection).get_code().minor == "36"
    groups = {group.name for group in client.ApisApi(connection).get_api_versions().groups}
    assert "resource.k8s.io" in groups
