"""The chart on a real cluster: it applies, and its pods land where they should."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dra.common.resources import Obj
from hack.cluster import controlplane
from hack.cluster.chart import NAMESPACE, notes
from hack.cluster.controlplane import ControlPlane
from hack.cluster.installation import Installation, path
from sim.processes import wait_for
from tests.cluster.harness.accounts import CONTROLLER
from tests.cluster.rbac.requests import CLAIMS, MERGE, MIGNODES, PODS, refusal


def test_applying_the_chart_again_changes_nothing(installation: Installation) -> None:
    def versions(objects: list[Obj]) -> dict[str, str]:
        # Workloads have a status that controllers go on writing.
        return {
            path(each): each["metadata"]["resourceVersion"]
            for each in objects
            if each["kind"] not in {"Deployment", "DaemonSet", "PodDisruptionBudget"}
        }

    first = versions(installation.apply())
    assert len(first) > 15
    assert versions(installation.apply()) == first


def test_the_plugin_lands_on_the_gpu_nodes_and_two_controllers_on_different_nodes(
    installation: Installation,
) -> None:
    controllers = wait_for(
        "both controllers",
        lambda: found if len(found := installation.pods("controller")) == 2 else None,
    )
    assert len({each["spec"]["nodeName"] for each in controllers}) == 2
    nodes = {each["spec"]["nodeName"] for each in installation.pods("kubelet-plugin")}
    assert nodes == {"node-a", "node-b"}
    (priority,) = {each["spec"]["priority"] for each in installation.pods("kubelet-plugin")}
    assert priority > controllers[0]["spec"]["priority"] > 1_000_000_000


@pytest.mark.parametrize("claim", ["", "node-a"], indirect=True)
def test_the_notes_show_who_still_holds_a_slice(claim: Obj, plane: ControlPlane) -> None:
    """Also for a claim with two devices."""
    (command,) = (line for line in notes().splitlines() if "kubectl get resourceclaims" in line)
    if held := bool(claim.get("status", {}).get("allocation")):
        more = claim["status"]["allocation"]
        more["devices"]["results"] *= 2
        for value in (None, more):
            body = {"status": {"allocation": value}}
            plane.api.patch("ResourceClaim", claim["metadata"]["name"], body, subresource="status")
    kubeconfig = str(plane.kubeconfig(controlplane.ADMIN))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": path, "KUBECONFIG": kubeconfig, "HOME": str(plane.root)},
        timeout=60,
    )
    assert done.stderr == ""
    assert (claim["metadata"]["name"] in done.stdout) is held
    assert (done.returncode == 0) is held


# -- requests that neither program has any need of, and may not make


NOTHING_BUT = [
    ("GET", "/api/v1/secrets"),
    ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets"),
    ("GET", "/api/v1/configmaps"),
    ("POST", PODS),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    ("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{CONTROLLER}/token"),
    ("PATCH", "/api/v1/nodes/node-a"),
    ("DELETE", f"{CLAIMS}/x"),
    ("DELETE", f"{MIGNODES}/node-b"),
    ("DELETE", f"{PODS}/x"),
    ("POST", f"{PODS}/x/binding"),
]


@pytest.mark.parametrize("who", ["plugin", "controller"])
@pytest.mark.parametrize(("method", "where"), NOTHING_BUT)
def test_neither_can_do_what_it_has_no_need_of(
    who: str, method: str, where: str, request: pytest.FixtureRequest
) -> None:
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}
    status, text = refusal(
        request.getfixturevalue(who),
        method,
        where,
        body=None if method == "GET" else body,
        content=MERGE if method == "PATCH" else "application/json",
    )
    assert status == 403
    assert "cannot " in text
