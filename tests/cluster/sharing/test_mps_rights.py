"""Pods of MPS daemons that a plugin may make on a real API server, and those that it may not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from dra.gpu.inventory import ClaimRef
from hack.cluster.api import ApiError
from hack.cluster.binaries import Binaries
from hack.cluster.chart import NAMESPACE
from hack.cluster.controlplane import ControlPlane
from hack.cluster.installation import Installation
from kubeletplugin.claims.sharing.mps_pod import CONTROL, Places, Settings, daemon_pod
from kubeletplugin.host.driverfiles import DriverFiles
from kubeletplugin.host.libraries import this_architecture
from kubeletplugin.host.roots import Roots
from kubeletplugin.options import Options
from tests.cluster.harness.accounts import CONTROLLER, PLUGIN, acting, pod_on, wait_until_guarded
from tests.cluster.harness.pods import add_fake_node, pod

IMAGE = "dra-driver-nvidia-mig/kubelet-plugin:0.1.0"
FILES = DriverFiles(
    version="1",
    roots=Roots(*[Path("/")] * 5),
    directories={},
    libraries=(),
    programs={CONTROL: f"/usr/bin/{CONTROL}"},
    opencl=None,
    hook=None,
    architecture=this_architecture(),
)


def body(api: Any) -> Obj:
    """The pod as the plugin on node-a makes it."""
    uid = api.get("Node", "node-a")["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": uid}
    roots = Roots(*[Path("/")] * 5)
    options = Options(node_name="node-a", roots=roots, mps_namespace=NAMESPACE, mps_image=IMAGE)
    claim = ClaimRef("default", "c", "11111111-2222-3333-4444-555555555555")
    places = Places(Path("/var/lib/kubelet/plugins/mig.dra.dev/mps/x"))
    settings = Settings("MIG-x", "boot", ())
    return daemon_pod(claim, settings, options=options, owner=owner, places=places, files=FILES)


def other_node(pod: Obj) -> None:
    pod["spec"]["nodeName"] = "node-b"


def other_name(pod: Obj) -> None:
    pod["metadata"]["name"] = "x"


def other_image(pod: Obj) -> None:
    pod["spec"]["containers"][0]["image"] = "x"


def a_token(pod: Obj) -> None:
    pod["spec"]["automountServiceAccountToken"] = True


def a_secret(pod: Obj) -> None:
    pod["spec"]["imagePullSecrets"] = [{"name": "not-the-release's"}]


def other_account(pod: Obj) -> None:
    """Its tokens would be the kubelet's of the node to ask for."""
    pod["spec"]["serviceAccountName"] = CONTROLLER


def a_projected_token(pod: Obj) -> None:
    sources = [{"serviceAccountToken": {"path": "token"}}]
    pod["spec"]["volumes"].append({"name": "t", "projected": {"sources": sources}})


def other_labels(pod: Obj) -> None:
    """By which the controller's Deployment would count it among its own."""
    pod["metadata"]["labels"]["app.kubernetes.io/name"] = "dra-driver-nvidia-mig"


def other_owner(pod: Obj) -> None:
    pod["metadata"]["ownerReferences"][0]["name"] = "node-b"


def a_finalizer(pod: Obj) -> None:
    pod["metadata"]["finalizers"] = ["a.example/b"]


REFUSED: list[tuple[Callable[[Obj], None], str]] = [
    (other_node, "may only write pods of that node, not of 'node-b'"),
    (other_name, "may make and delete pods of MPS daemons only"),
    (other_image, "one container of this driver's image"),
    (a_token, "one container of this driver's image"),
    (a_secret, "one container of this driver's image"),
    (other_account, "the account default"),
    (a_projected_token, "no token"),
    (other_labels, "no labels of others"),
    (other_owner, "have that Node for their owner"),
    (a_finalizer, "no finalizers"),
]


@pytest.mark.timeout(240)
def test_a_plugin_makes_pods_of_daemons_on_its_own_node_and_no_others(
    binaries: Binaries, root: Path
) -> None:
    home = root / "mr"
    home.mkdir()
    labels = {"nvidia.com/gpu.present": "true", "kubernetes.io/os": "linux"}
    with ControlPlane(binaries, home) as plane:
        for name in ("node-a", "node-b"):
            add_fake_node(plane.api, name, labels=labels)
        made = Installation(plane, {"mps": {"enabled": True}})
        made.apply()
        plugin = acting(made, PLUGIN, pod_on(made, "node-a", "kubelet-plugin"))
        wait_until_guarded(made, plugin)
        good = body(plane.api)
        for change, told in REFUSED:
            bad = copy.deepcopy(good)
            change(bad)
            with pytest.raises(ApiError) as caught:
                plugin.create(bad)
            assert told in str(caught.value), change.__name__
        assert plugin.create(good)["spec"]["nodeName"] == "node-a"
        other = acting(made, PLUGIN, pod_on(made, "node-b", "kubelet-plugin"))
        with pytest.raises(ApiError) as caught:
            other.delete("Pod", good["metadata"]["name"], namespace=NAMESPACE)
        assert "may only write pods of that node" in str(caught.value)
        plugin.delete("Pod", good["metadata"]["name"], namespace=NAMESPACE)
        tenant = plane.api.create(pod("tenant", {"main": ["true"]}))
        assert plugin.get("Pod", "tenant")["metadata"]["uid"] == tenant["metadata"]["uid"]
        with pytest.raises(ApiError) as caught:
            plugin.list("Pod")
        assert caught.value.status == 403
