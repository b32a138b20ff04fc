"""The MigNode resource on a real API server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import MIG_NODES
from dra.gpu.mignode import from_mignode, to_mignode
from dra.kube.client import KubeApi
from hack.cluster.controlplane import ADMIN, ControlPlane
from tests.dra.gpu.test_mignode import INVENTORY

KUBECTL = Path(sys.executable).parent / "kubectl"


@pytest.fixture
def kube(control_plane: ControlPlane, crds: None) -> Iterator[KubeApi]:
    client = KubeApi.connect(str(control_plane.kubeconfig(ADMIN)), user_agent="cluster-tests")
    yield client
    for each in client.list(MIG_NODES).items:
        if each["metadata"]["name"] == INVENTORY.node:
            client.delete(MIG_NODES, INVENTORY.node)
    client.close()


def stored(kube: KubeApi) -> dict[str, Any]:
    """Writes the inventory as the plugin does, object first, then its status."""
    body = to_mignode(INVENTORY, transition_time="2026-11-21T10:00:00Z")
    manager = "mig.dra.dev/kubelet-plugin"
    spec = {key: value for key, value in body.items() if key != "status"}
    kube.apply(MIG_NODES, spec, field_manager=manager)
    status = {key: value for key, value in body.items() if key != "spec"}
    kube.apply(MIG_NODES, status, field_manager=manager, subresource="status")
    return kube.get(MIG_NODES, INVENTORY.node)


def test_the_schema_keeps_every_field_of_an_inventory(kube: KubeApi) -> None:
    assert from_mignode(stored(kube)) == INVENTORY


def test_kubectl_shows_a_node_at_a_glance(kube: KubeApi, control_plane: ControlPlane) -> None:
    stored(kube)
    command = [str(KUBECTL), "--kubeconfig", str(control_plane.kubeconfig(ADMIN))]
    shown = subprocess.run(
        [*command, "get", "mn", INVENTORY.node], check=True, capture_output=True, text=True
    ).stdout
    heading, row = shown.splitlines()
    assert heading.split()[:7] == [
        "NAME",
        "GPUS",
        "SLICES",
        "FREE",
        "LARGEST",
        "ALLOCATOR",
        "READY",
    ]
    assert row.split()[0] == INVENTORY.node
    assert " scheduler " in row
    assert " True " in row
