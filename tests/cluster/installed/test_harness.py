"""The harness itself: real control plane, real kubelet, and nothing left of them."""

from __future__ import annotations

from pathlib import Path

from hack.cluster.api import Api
from hack.cluster.binaries import CONTROL_PLANE, find_binaries
from hack.cluster.kubelet import KubeletNode
from sim.processes import wait_for
from tests.cluster.harness.pods import pod


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
