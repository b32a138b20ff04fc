"""Writes of the controller to pods, with its service account, and above all those refused."""

from __future__ import annotations

from typing import Any

from dra.common.resources import Obj
from hack.cluster.api import Api
from tests.cluster.harness.pods import pod
from tests.cluster.rbac.requests import DRIVER, JSON_PATCH, MERGE, PODS, STRATEGIC, refusal


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
        ("/metadata/annotations", {f"{DRIVER}/prepare-retry": "1", "a": "b"}),
        ("/metadata/finalizers", ["a.example/b"]),
    ):
        status, text = replaced(pointer, value)
        said = "nothing of a pod but its scheduling gates and annotation mig.dra.dev/prepare-retry"
        assert (status, said in text) == (403, True), pointer
    other = [{"op": "remove", "path": "/spec/schedulingGates/1"}]
    status, text = refusal(controller, "PATCH", where, body=other, content=JSON_PATCH)
    assert (status, "mig.dra.dev/allocation only" in text) == (403, True)

    ours = [{"op": "remove", "path": "/spec/schedulingGates/0"}]
    lifted = controller.request("PATCH", where, body=ours, content=JSON_PATCH)
    assert lifted["spec"]["schedulingGates"] == gates[1:]
    admin.delete("Pod", "gated", grace=0)


def test_the_controller_sets_the_annotation_that_wakes_kubelet_and_no_other(
    controller: Api, admin: Api
) -> None:
    made = pod("woken", {"main": ["true"]}, schedulingGates=[{"name": "other.example/gate"}])
    made["metadata"]["annotations"] = {"a": "b"}
    admin.create(made)

    def patched(**annotations: str | None) -> Obj:
        return {"body": {"metadata": {"annotations": annotations}}, "content": MERGE}

    retry = f"{DRIVER}/prepare-retry"
    for change in ({"a": "c"}, {"a": None}, {"c": "d"}, {retry: "1", "c": "d"}):
        status, text = refusal(controller, "PATCH", f"{PODS}/woken", **patched(**change))
        assert (status, "annotation mig.dra.dev/prepare-retry" in text) == (403, True), change
    for value in ("1", "2"):
        written = controller.request("PATCH", f"{PODS}/woken", **patched(**{retry: value}))
        assert written["metadata"]["annotations"] == {"a": "b", retry: value}
    admin.delete("Pod", "woken", grace=0)


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
        {"podIPs": [{"ip": "10.0.0.1"}], "podIP": "10.0.0.1"},
        {"conditions": [{"type": "Ready", "status": "True"}]},
    ):
        answer = refusal(controller, "PATCH", where, **patched(status))
        assert (answer[0], "SentToScheduler and nominatedNodeName only" in answer[1]) == (
            403,
            True,
        ), status
    ours = {"type": f"{DRIVER}/ClaimsAllocated", "status": "False", "reason": "WaitingForSlice"}
    written = controller.request("PATCH", where, **patched({"conditions": [ours]}))
    found = {c["type"]: c["status"] for c in written["status"]["conditions"]}
    assert found == {"PodScheduled": "False", ours["type"]: "False"}
    admin.delete("Pod", "waits", grace=0)


def test_the_controller_nominates_nodes_for_pods_with_claims_only(
    controller: Api, admin: Api
) -> None:
    claims = {"gpu": {"resourceClaimTemplateName": "none"}}
    waits: dict[str, Any] = {"schedulingGates": [{"name": "other.example/gate"}]}
    containers = {"main": ["true"]}
    admin.create(pod("asks", containers, claims=claims, **waits))
    admin.create(pod("plain", containers, **waits))

    def nominate(api: Api, name: str, node: str | None) -> tuple[int, str]:
        body = {"status": {"nominatedNodeName": node}}
        return refusal(api, "PATCH", f"{PODS}/{name}/status", body=body, content=MERGE)

    code, text = nominate(controller, "plain", "node-a")
    assert (code, "nominate nodes only for pods with claims" in text) == (403, True), text
    api, where = controller, f"{PODS}/asks/status"
    for node in ("node-a", None):
        body = {"status": {"nominatedNodeName": node}}
        found = api.request("PATCH", where, body=body, content=MERGE)
        assert found["status"].get("nominatedNodeName") == node
    admin.patch("Pod", "asks", {"status": {"nominatedNodeName": "b"}}, subresource="status")
    assert nominate(controller, "asks", "node-a")[0] == 403, "of another it is not replaced"
    ours: dict[str, Any] = {"schedulingGates": [{"name": f"{DRIVER}/allocation"}]}
    admin.create(pod("gated", containers, claims=claims, **ours))
    admin.patch("Pod", "gated", {"status": {"nominatedNodeName": "b"}}, subresource="status")
    sent = {"type": f"{DRIVER}/SentToScheduler", "status": "True", "reason": "Nominated"}
    status = {"nominatedNodeName": "node-a", "conditions": [sent | {"message": "node-a"}]}
    where = f"{PODS}/gated/status"
    found = controller.request("PATCH", where, body={"status": status}, content=STRATEGIC)
    assert found["status"]["nominatedNodeName"] == "node-a", "behind our gate it is"
    for name in ("asks", "plain", "gated"):
        admin.delete("Pod", name, grace=0)
