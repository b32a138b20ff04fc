"""The chart, installed once on a control plane of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import ControlPlane
from hack.cluster.installation import Installation
from sim.processes import wait_for
from tests.cluster.harness.accounts import (
    CONTROLLER,
    PLUGIN,
    acting,
    mignode,
    node_owner,
    pod_on,
    wait_until_guarded,
)
from tests.cluster.harness.pods import add_fake_node
from tests.cluster.rbac.requests import MIGNODES, allocation

GPU = {"nvidia.com/gpu.present": "true"}


@pytest.fixture(scope="package")
def plane(binaries: Binaries, root: Path) -> Iterator[ControlPlane]:
    """A control plane of its own: what the chart installs would be in the way of other tests."""
    home = root / "rbac"
    home.mkdir()
    with ControlPlane(binaries, home) as running:
        yield running


@pytest.fixture(scope="package")
def installation(plane: ControlPlane) -> Installation:
    """The chart with its defaults, on two nodes with GPUs and one without."""
    for name in ("node-a", "node-b"):
        add_fake_node(plane.api, name, labels={**GPU, "kubernetes.io/os": "linux"})
    add_fake_node(plane.api, "plain", labels={"kubernetes.io/os": "linux"})
    made = Installation(plane)
    made.apply()
    wait_until_guarded(made, acting(made, PLUGIN, pod_on(made, "node-a", "kubelet-plugin")))
    return made


@pytest.fixture(scope="package")
def admin(installation: Installation) -> Api:
    return installation.api


@pytest.fixture(scope="package")
def plugin(installation: Installation) -> Api:
    """As the plugin on node-a."""
    return acting(installation, PLUGIN, pod_on(installation, "node-a", "kubelet-plugin"))


@pytest.fixture(scope="package")
def controller(installation: Installation) -> Api:
    bound = wait_for("controller pod", lambda: installation.pods("controller"))[0]
    return acting(installation, CONTROLLER, bound)


@pytest.fixture(scope="package")
def foreign_mignode(admin: Api, installation: Installation) -> str:
    """The MigNode of node-b, made by its own plugin."""
    other = acting(installation, PLUGIN, pod_on(installation, "node-b", "kubelet-plugin"))
    other.create(mignode("node-b", owner=node_owner(admin, "node-b")))
    return f"{MIGNODES}/node-b"


@pytest.fixture
def claim(admin: Api, request: pytest.FixtureRequest) -> Iterator[Obj]:
    """A claim that is allocated to the node that the test's parameter names, else to none."""
    name = "c" + str(abs(hash(request.node.name)))
    spec = {"requests": [{"name": "slice", "exactly": {"deviceClassName": "mig-1g.5gb"}}]}
    made = admin.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name},
            "spec": {"devices": spec},
        }
    )
    if node := getattr(request, "param", ""):
        body = {"status": {"allocation": allocation(node)}}
        made = admin.patch("ResourceClaim", name, body, subresource="status")
    yield made
    admin.delete("ResourceClaim", name)
