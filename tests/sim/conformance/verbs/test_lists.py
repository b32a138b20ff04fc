"""Lists: selection and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.sim.conformance.helpers.builders import DRA, config_map, pod, resource_slice

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.conformance.helpers.client import Api


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


def test_names_and_namespaces_select(api: Api, path: str, namespace: str) -> None:
    assert names(api, path, fieldSelector="metadata.name=m2") == ["m2"]
    selector = f"metadata.namespace={namespace},metadata.name!=m2"
    everywhere = names(api, "/api/v1/configmaps", fieldSelector=selector)
    assert everywhere == ["m0", "m1", "m3", "m4"]


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
