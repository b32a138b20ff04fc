"""The harness itself: real control plane, real kubelet, and nothing left of them."""

from __future__ import annotations

from pathlib import Path

from hack.cluster.api import Api
from hack.cluster.binaries import CONTROL_PLANE, find_binaries
from hack.cluster.controlplane import ControlPlane
from hack.cluster.kubelet import KubeletNode
from hack.cluster.nodes import add_fake_node, pod
from hack.cluster.waiting import wait_for


def test_a_real_control_plane_serves_resource_k8s_io_v1(api: Api) -> None:
    resources = api.request("GET", "/apis/resource.k8s.io/v1")["resources"]
    names = {each["name"] for each in resources}
    assert {"deviceclasses", "resourceclaims", "resourceclaims/status", "resourceslices"} <= names
    assert int(api.request("GET", "/version")["minor"]) >= 34


def test_the_scheduler_binds_a_pod_to_a_fake_node(api: Api) -> None:
    add_fake_node(api, "fake")
    api.create(
        pod("bound", {"main": ["sleep", "1"]}, nodeSelector={"kubernetes.io/hostname": "fake"})
    )
    wait_for("binding", lambda: api.get("Pod", "bound")["spec"].get("nodeName") == "fake")
    api.delete("Pod", "bound", grace=0)
    api.delete("Node", "fake")


def test_the_audit_log_tells_who_wrote_what(api: Api, control_plane: ControlPlane) -> None:
    mark = control_plane.audit.mark()
    name = {"metadata": {"name": "audited"}}
    api.create({"apiVersion": "v1", "kind": "Namespace", **name})
    api.get("Namespace", "audited")
    (write,) = wait_for(
        "entry in the audit log", lambda: control_plane.audit.writes(since=mark, user="admin")
    )
    assert (write.verb, write.resource, write.name) == ("create", "namespaces", "audited")
    api.delete("Namespace", "audited")


def test_a_host_network_pod_runs_on_the_real_kubelet(api: Api, kubelet: KubeletNode) -> None:
    made = api.create(pod("hello", {"main": ["sh", "-c", "echo hello; id"]}, nodeName=kubelet.name))
    wait_for(
        "finished pod",
        lambda: api.get("Pod", "hello")["status"].get("phase") == "Succeeded",
        timeout=60,
        context=kubelet.tails,
    )
    assert kubelet.log(made, "main").splitlines()[0] == "hello"
    api.delete("Pod", "hello")
    wait_for("deletion of the pod", lambda: api.find("Pod", "hello") is None)


def test_a_pod_that_still_runs_at_the_end_is_removed_with_the_node(
    api: Api, kubelet: KubeletNode
) -> None:
    """The kubelet fixture asserts so when it ends."""
    body = pod(
        "staying", {"main": ["sleep", "1000000"]}, restartPolicy="Always", nodeName=kubelet.name
    )
    api.create(body)
    wait_for(
        "running pod",
        lambda: api.get("Pod", "staying")["status"].get("phase") == "Running",
        timeout=60,
        context=kubelet.tails,
    )
    assert kubelet.leftovers()


def test_the_newest_stored_version_is_taken_and_the_variable_comes_first(tmp_path: Path) -> None:
    store = tmp_path / ".local/share/kubebuilder-envtest/k8s"
    for version in ("1.9.12-linux-amd64", "1.36.2-linux-amd64", "1.36.10-linux-amd64", "other"):
        (store / version).mkdir(parents=True)
    assert find_binaries({}, home=tmp_path).directory == store / "1.36.10-linux-amd64"
    named = {"KUBEBUILDER_ASSETS": "/assets"}
    assert find_binaries(named, home=tmp_path).directory == Path("/assets")


def test_what_is_missing_is_named_with_its_directory(tmp_path: Path) -> None:
    nothing = find_binaries({}, home=tmp_path).missing(CONTROL_PLANE)
    assert "kube-apiserver" in nothing
    assert "KUBEBUILDER_ASSETS is not set" in nothing

    etcd = tmp_path / "etcd"
    etcd.touch(mode=0o755)
    partial = find_binaries({"KUBEBUILDER_ASSETS": str(tmp_path)}, home=tmp_path)
    assert partial.missing(["etcd"]) == ""
    assert partial.missing(["etcd", "runc"]).startswith(f"no runc in {tmp_path}")
