"""What the controller can do with its service account, and above all what not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hack.cluster.api import Api, Obj
from hack.cluster.chart import NAMESPACE, find, render
from hack.cluster.installation import (
    CONTROLLER,
    Installation,
)
from hack.cluster.nodes import pod
from hack.cluster.waiting import wait_for
from tests.cluster.rbac.requests import (
    APPLY,
    CLAIMS,
    CLASSES,
    DRIVER,
    JSON_PATCH,
    MERGE,
    MIGNODES,
    PODS,
    STRATEGIC,
    allocation,
    refusal,
    status_of,
)


def test_the_controller_allocates_and_takes_back(controller: Api, claim: Obj) -> None:
    name = claim["metadata"]["name"]
    finalizers = {"metadata": {"finalizers": [f"{DRIVER}/allocation"]}}
    controller.patch("ResourceClaim", name, finalizers)
    body = {"status": {"allocation": allocation("node-a")}}
    written = controller.patch("ResourceClaim", name, body, subresource="status")
    assert written["status"]["allocation"]["devices"]["results"][0]["pool"] == "node-a"
    controller.patch("ResourceClaim", name, {"status": {"allocation": None}}, subresource="status")
    last = controller.patch("ResourceClaim", name, {"metadata": {"finalizers": None}})
    assert "finalizers" not in last["metadata"]


def test_without_the_permission_of_1_36_the_controller_cannot_allocate(
    installation: Installation, controller: Api, claim: Obj, admin: Api
) -> None:
    """So the rule is needed, and the test above shows something."""
    if int(admin.request("GET", "/version")["minor"]) < 36:
        pytest.skip("from Kubernetes 1.36 on")
    role = copy.deepcopy(find(render(), "ClusterRole", "controller"))
    for rule in role["rules"]:
        rule["resources"] = [r for r in rule["resources"] if r != "resourceclaims/binding"]
    with installation.role(role):
        body = {"status": {"allocation": allocation("node-a")}}
        wait_for(
            "refusal",
            lambda: (
                "resourceclaims/binding"
                in refusal(
                    controller, "PATCH", f"{status_of(claim)}?dryRun=All", body=body, content=MERGE
                )[1]
            ),
        )


def test_the_controller_writes_device_classes_but_no_mignode(
    controller: Api, foreign_mignode: str
) -> None:
    name = "mig-test"
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"extendedResourceName": "nvidia.com/mig-test"},
    }
    where = f"{CLASSES}/{name}?fieldManager=controller&force=true"
    assert controller.request("PATCH", where, body=body, content=APPLY)["spec"] == body["spec"]
    assert refusal(controller, "DELETE", f"{CLASSES}/{name}")[0] == 403
    status, _ = refusal(
        controller, "PATCH", foreign_mignode, body={"spec": {"pool": "x"}}, content=MERGE
    )
    assert status == 403


def test_the_controller_lifts_our_gate_and_changes_nothing_else_of_a_pod(
    controller: Api, admin: Api
) -> None:
    gates = [{"name": f"{DRIVER}/allocation"}, {"name": "other.example/gate"}]
    made = pod("gated", {"main": ["true"]}, schedulingGates=gates)
    admin.create(made)
    where = f"{PODS}/gated"

    def replaced(pointer: str, value: Any) -> tuple[int, str]:
        patch = [{"op": "add", "path": pointer, "value": value}]
        return refusal(controller, "PATCH", where, body=patch, content=JSON_PATCH)

    for pointer, value in (
        ("/spec/containers/0/image", "another:1"),
        ("/spec/tolerations/-", {"key": "a", "operator": "Exists"}),
        ("/spec/nodeSelector", {"a": "b"}),
        ("/spec/activeDeadlineSeconds", 1),
        ("/metadata/labels", {"a": "b"}),
        ("/metadata/annotations", {"a": "b"}),
        ("/metadata/finalizers", ["a.example/b"]),
    ):
        status, text = replaced(pointer, value)
        assert (status, "nothing of a pod but its scheduling gates" in text) == (403, True), pointer
    other = [{"op": "remove", "path": "/spec/schedulingGates/1"}]
    status, text = refusal(controller, "PATCH", where, body=other, content=JSON_PATCH)
    assert (status, "mig.dra.dev/allocation only" in text) == (403, True)

    ours = [{"op": "remove", "path": "/spec/schedulingGates/0"}]
    lifted = controller.request("PATCH", where, body=ours, content=JSON_PATCH)
    assert lifted["spec"]["schedulingGates"] == gates[1:]
    admin.delete("Pod", "gated", grace=0)


def test_the_controller_sets_our_condition_and_changes_nothing_else_of_a_status(
    controller: Api, admin: Api
) -> None:
    admin.create(pod("waits", {"main": ["true"]}, schedulingGates=[{"name": "other.example/gate"}]))
    where = f"{PODS}/waits/status"

    def patched(status: Obj) -> Obj:
        return {"body": {"status": status}, "content": STRATEGIC}

    for status in (
        {"phase": "Failed"},
        {"reason": "Evicted"},
        {"message": "x"},
        {"nominatedNodeName": "node-a"},
        {"podIPs": [{"ip": "10.0.0.1"}], "podIP": "10.0.0.1"},
        {"conditions": [{"type": "Ready", "status": "True"}]},
    ):
        answer = refusal(controller, "PATCH", where, **patched(status))
        assert (answer[0], "ClaimsAllocated only" in answer[1]) == (403, True), status
    ours = {"type": f"{DRIVER}/ClaimsAllocated", "status": "False", "reason": "WaitingForSlice"}
    written = controller.request("PATCH", where, **patched({"conditions": [ours]}))
    found = {c["type"]: c["status"] for c in written["status"]["conditions"]}
    assert found == {"PodScheduled": "False", ours["type"]: "False"}
    admin.delete("Pod", "waits", grace=0)


def test_the_controller_keeps_its_own_lease_only(controller: Api) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    for name, allowed in ((f"{DRIVER}-controller", True), ("someone-elses", False)):
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": NAMESPACE},
        }
        made = controller.request("POST", leases, body=lease)
        if allowed:
            controller.request("PUT", f"{leases}/{name}", body=made)
        else:
            assert refusal(controller, "PUT", f"{leases}/{name}", body=made)[0] == 403
    default = leases.replace(NAMESPACE, "default")
    assert refusal(controller, "POST", default, body=lease)[0] == 403


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
