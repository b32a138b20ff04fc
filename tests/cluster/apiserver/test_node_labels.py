"""Labels of nodes on a real API server, written with the rights that the chart gives."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller.cluster.cluster import Cluster
from controller.keep.labels import NodeLabels
from controller.options import Options
from controller.serve.world import World
from controller.write.in_flight import InFlight
from controller.write.requests import Requests
from dra.cel.kinds import Kinds
from dra.common.resources import MIG_NODES, Obj
from dra.gpu.mignode import from_mignode, to_mignode
from dra.kube.client import KubeApi
from hack.cluster import controlplane
from hack.cluster.api import Api, ApiError
from hack.cluster.binaries import Binaries
from hack.cluster.controlplane import ADMIN, ControlPlane, Setup
from hack.cluster.installation import Installation
from sim.processes import wait_for
from tests.cluster.harness.accounts import CONTROLLER, acting, token
from tests.cluster.rbac.requests import MERGE
from tests.controller.helpers.bench import inline
from tests.controller.helpers.objects import DRIVER, FINALIZER, mignode
from tests.dra.gpu.test_mignode import INVENTORY

COUNT, MARK = "nvidia.com/mig-1g.5gb.count", f"{DRIVER}/labels"


VALUES: Obj = {"nodeLabels": {"enabled": True}}


class Site:
    """A control plane with the chart, and what keeps labels there as its controller."""

    def __init__(self, plane: ControlPlane, home: Path) -> None:
        installation = Installation(plane, VALUES)
        installation.apply()
        self.admin = plane.api
        self.controller = acting(installation, CONTROLLER)
        kubeconfig = home / "controller.kubeconfig"
        controlplane.write_kubeconfig(
            kubeconfig,
            server=plane.server,
            certificate=plane.certificate,
            token=token(installation, CONTROLLER),
        )
        requests = Requests(
            kube=KubeApi.connect(str(kubeconfig), user_agent="test"),
            driver=DRIVER,
            leads=lambda: True,
            now=lambda: dt.datetime.now(dt.UTC),
        )
        self.cluster = Cluster(DRIVER, FINALIZER, Kinds(None))
        self.in_flight = InFlight(inline)
        world = SimpleNamespace(
            cluster=self.cluster,
            requests=requests,
            in_flight=self.in_flight,
            now=lambda: 0.0,
            options=Options(driver_name=DRIVER, node_labels=True),
        )
        self.keeper = NodeLabels(cast("World", world))

    def look(self, name: str) -> dict[str, str]:
        """Have a node looked at as it is now; returns its labels after that."""
        self.cluster.set_node(self.admin.get("Node", name))
        self.keeper.note(self.cluster.take_effects())
        while self.keeper.due <= 0.0:
            self.keeper.work()
            self.in_flight.take_answers()
        found: dict[str, str] = self.admin.get("Node", name)["metadata"]["labels"]
        return found

    def label(self, name: str, **labels: Any) -> None:
        """Somebody else's labels; None takes one off."""
        where = f"/api/v1/nodes/{name}?fieldManager=nfd-master"
        self.admin.request("PATCH", where, body={"metadata": {"labels": labels}}, content=MERGE)


@pytest.fixture(scope="module")
def kept(binaries: Binaries, root: Path) -> Iterator[Site]:
    home = root / "nl"
    home.mkdir()
    controllers = ("serviceaccount", "serviceaccount-token", "clusterrole-aggregation")
    with ControlPlane(binaries, home, setup=Setup(scheduling=False, controllers=controllers)) as p:
        for name in ("plain", "shared", "found"):
            p.api.create(
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": name, "labels": {"a": "b"}},
                }
            )
        yield Site(p, home)


def test_they_come_and_go_with_the_mignode(kept: Site) -> None:
    before = kept.look("plain")
    kept.cluster.set_mignode(mignode("plain"))
    found = kept.look("plain")
    assert (found[COUNT], found["nvidia.com/gpu.count"], found[MARK]) == ("7", "1", "")
    assert before.items() <= found.items()
    kept.cluster.remove_mignode("plain")
    assert kept.look("plain") == before


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
        {"metadata": {"labels": {"nvidia.com/gpu.deploy.device-plugin": "false"}}},
        {"metadata": {"labels": {"nvidia.com/mig.config": "all-disabled"}}},
        {"metadata": {"annotations": {"mine": "1"}}},
        {"spec": {"unschedulable": True}},
    ],
)
def test_the_controller_changes_nothing_else_of_a_node(kept: Site, change: Obj) -> None:
    where = "/api/v1/nodes/plain?dryRun=All"
    api: Api = kept.controller
    allowed = {"metadata": {"labels": {"nvidia.com/gpu.product": "tried"}}}
    assert api.request("PATCH", where, body=allowed, content=MERGE)

    def refused() -> bool:
        try:
            api.request("PATCH", where, body=change, content=MERGE)
        except ApiError as error:
            return error.status == 403 and "the controller may change" in str(error)
        return False  # the policy is not in force yet

    wait_for("refusal", refused)


# -- the MigNode resource on a real API server


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
    shown_first = ["NAME", "GPUS", "SLICES", "FREE", "LARGEST", "UNAVAILABLE", "ALLOCATOR", "READY"]
    assert heading.split()[:8] == shown_first
    assert row.split()[0] == INVENTORY.node
    assert " scheduler " in row
    assert " True " in row
