"""What the controller can do with its service account, and above all what not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api, ApiError
from hack.cluster.driver.chart import NAMESPACE, find, render
from hack.cluster.driver.installation import (
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
    reservation,
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


def test_the_controller_reads_volumes_and_namespaces_and_writes_none(controller: Api) -> None:
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    for path in (
        "/api/v1/persistentvolumes",
        "/api/v1/persistentvolumeclaims",
        "/api/v1/namespaces",
        "/apis/storage.k8s.io/v1/storageclasses",
    ):
        assert controller.request("GET", path)["kind"].endswith("List")
    body = {"metadata": {"name": "mine"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    assert refusal(controller, "POST", claims, body=body)[0] == 403
    assert refusal(controller, "DELETE", "/api/v1/namespaces/default")[0] == 403


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


def device_class(name: str, expression: str, *, label: str = f"{DRIVER}/generated") -> Obj:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name, "labels": {label: "true"}},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


OURS = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'mig'"


def test_of_a_mignode_the_controller_changes_what_is_reserved_and_nothing_else(
    controller: Api, admin: Api, foreign_mignode: str
) -> None:
    path = "/spec/reservations"
    steps = [
        {"op": "test", "path": path, "value": None},
        {"op": "add", "path": path, "value": [reservation()]},
    ]
    written = controller.request("PATCH", foreign_mignode, body=steps, content=JSON_PATCH)
    assert written["spec"]["reservations"] == [reservation()]
    stale = refusal(controller, "PATCH", foreign_mignode, body=steps, content=JSON_PATCH)
    assert stale[0] == 422, "what is tested is no longer what is there"
    for body in (
        {"spec": {"pool": "x"}},
        {"spec": {"allocator": "scheduler"}},
        {"spec": {"drain": {"reason": "mine"}}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"finalizers": ["a.example/b"]}},
    ):
        status, text = refusal(controller, "PATCH", foreign_mignode, body=body, content=MERGE)
        assert status == 403
        assert "nothing of a MigNode but spec.reservations" in text
    status_body = {"status": {"capabilities": ["x"]}}
    where = f"{foreign_mignode}/status"
    assert refusal(controller, "PATCH", where, body=status_body, content=MERGE)[0] == 403
    before = written["spec"]["reservations"]
    steps = [
        {"op": "test", "path": path, "value": before},
        {"op": "remove", "path": path},
    ]
    left = controller.request("PATCH", foreign_mignode, body=steps, content=JSON_PATCH)
    assert "reservations" not in left["spec"]


def test_the_schema_bounds_what_is_reserved(admin: Api, foreign_mignode: str) -> None:
    good, [device] = reservation(), reservation()["devices"]
    for bad in (
        [{k: v for k, v in good.items() if k != "claim"}],
        [good | {"id": ""}],
        [good | {"seconds": 0}],
        [good | {"devices": []}],
        [good | {"devices": [device] * 33}],
        [good, good],
        [reservation(str(n)) for n in range(65)],
    ):
        body = {"spec": {"reservations": bad}}
        assert refusal(admin, "PATCH", foreign_mignode, body=body, content=MERGE)[0] == 422


def test_the_controller_writes_its_own_device_classes(controller: Api, admin: Api) -> None:
    body = device_class("mig-test", OURS)
    where = f"{CLASSES}/mig-test?fieldManager=controller&force=true"
    assert controller.request("PATCH", where, body=body, content=APPLY)["spec"] == body["spec"]
    assert refusal(controller, "DELETE", f"{CLASSES}/mig-test")[0] == 403

    admin.create(device_class("nic.example", "device.driver == 'nic.example'", label="a"))
    for body, reason in (
        (device_class("mig-test", "true"), "select devices of driver mig.dra.dev only"),
        (device_class("mig-new", f"true || {OURS}"), "select devices of driver mig.dra.dev only"),
        (device_class("mig-new", OURS, label="a"), "with label mig.dra.dev/generated=true"),
        (device_class("nic.example", OURS), "with label mig.dra.dev/generated=true"),
    ):
        where = f"{CLASSES}/{body['metadata']['name']}?fieldManager=controller&force=true"
        status, text = refusal(controller, "PATCH", where, body=body, content=APPLY)
        assert (status, reason in text) == (403, True), text
    admin.delete("DeviceClass", "nic.example")


FINALIZER = {"metadata": {"finalizers": [f"{DRIVER}/allocation"]}}


def test_the_controller_allocates_devices_of_its_driver_only(
    installation: Installation, controller: Api, admin: Api, claim: Obj
) -> None:
    name = claim["metadata"]["name"]
    foreign = allocation("node-a")
    foreign["devices"]["results"][0]["driver"] = "nic.example"

    def refused(body: Obj) -> bool:
        where = status_of(claim)
        status, text = refusal(controller, "PATCH", where, body={"status": body}, content=MERGE)
        return (status, "take back devices of driver mig.dra.dev only" in text) == (403, True)

    without = {"status": {"allocation": allocation("node-a")}}
    admin.patch("ResourceClaim", name, {"metadata": {"finalizers": None}})
    status, text = refusal(controller, "PATCH", status_of(claim), body=without, content=MERGE)
    assert (status, "with finalizer mig.dra.dev/allocation only" in text) == (403, True), text
    controller.patch("ResourceClaim", name, FINALIZER)
    assert refused({"allocation": foreign})
    mixed = allocation("node-a")
    mixed["devices"]["results"] += foreign["devices"]["results"]
    assert refused({"allocation": mixed})

    someone = {"resource": "pods", "name": "a", "uid": "1"}
    admin.patch("ResourceClaim", name, {"status": {"allocation": foreign}}, subresource="status")
    assert refused({"allocation": None})
    assert refused({"reservedFor": [someone]})
    nic = {
        "driver": "nic.example",
        "pool": "node-a",
        "device": foreign["devices"]["results"][0]["device"],
    }
    admin.patch("ResourceClaim", name, {"status": {"devices": [nic]}}, subresource="status")
    # From 1.36 on the API server refuses this itself, unless the role is wider.
    role = copy.deepcopy(find(render(), "ClusterRole", "controller"))
    verbs = ["patch", "associated-node:patch", "arbitrary-node:patch"]
    drivers = {"resources": ["resourceclaims/driver"], "verbs": verbs}
    role["rules"].append({"apiGroups": ["resource.k8s.io"], **drivers})
    body = {"status": {"devices": None}}
    with installation.role(role):
        wait_for(
            "refusal",
            lambda: (
                "what is told of devices of driver mig.dra.dev only"
                in refusal(controller, "PATCH", status_of(claim), body=body, content=MERGE)[1]
            ),
        )


def test_the_controller_changes_its_finalizer_label_and_fence_and_nothing_else_of_a_claim(
    controller: Api, admin: Api, claim: Obj
) -> None:
    name = claim["metadata"]["name"]
    before = {"finalizers": ["a.example/b"], "annotations": {"a": "b"}, "labels": {"a": "b"}}
    admin.patch("ResourceClaim", name, {"metadata": before})
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "1"}
    for metadata in (
        {"finalizers": None},
        {"finalizers": ["a.example/b", "c.example/d"]},
        {"annotations": {"a": "c"}},
        {"annotations": {"a": None}},
        {"annotations": {"c": "d"}},
        {"labels": {"a": "c"}},
        {"labels": {"a": None}},
        {"labels": {"c": "d"}},
        {"ownerReferences": [owner]},
    ):
        where = f"{CLAIMS}/{name}"
        body = {"metadata": metadata}
        status, text = refusal(controller, "PATCH", where, body=body, content=MERGE)
        assert (status, "mig.dra.dev/allocation, label mig.dra.dev/node and" in text) == (
            403,
            True,
        ), metadata
    ours = {
        "finalizers": ["a.example/b", f"{DRIVER}/allocation"],
        "annotations": {f"{DRIVER}/fence": "1"},
        "labels": {f"{DRIVER}/node": "node-a"},
    }
    written = controller.patch("ResourceClaim", name, {"metadata": ours})["metadata"]
    assert written["labels"] == {"a": "b", f"{DRIVER}/node": "node-a"}
    assert written["annotations"] == {"a": "b", f"{DRIVER}/fence": "1"}
    admin.patch("ResourceClaim", name, {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("asks", ["exactly", "beside ours"])
def test_the_controller_takes_no_claim_of_another_drivers_class(
    asks: str, controller: Api, admin: Api, claim: Obj
) -> None:
    admin.create(device_class("other.example", "device.driver == 'nic.example'", label="a"))
    requests = [{"name": "other", "exactly": {"deviceClassName": "other.example"}}]
    if asks == "beside ours":
        requests += claim["spec"]["devices"]["requests"]
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "foreign"},
        "spec": {"devices": {"requests": requests}},
    }
    admin.create(body)
    admin.patch("ResourceClaim", "foreign", {"metadata": {"finalizers": None}})

    def refused() -> str:
        try:
            controller.patch("ResourceClaim", "foreign", FINALIZER)
        except ApiError as error:
            return str(error)
        admin.patch("ResourceClaim", "foreign", {"metadata": {"finalizers": None}})
        return ""  # the policy has not heard of the class yet

    text = wait_for("refusal", refused)
    assert "DeviceClass other.example does not select its devices" in text
    admin.delete("ResourceClaim", "foreign")
    admin.delete("DeviceClass", "other.example")


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
        assert (answer[0], "ClaimsAllocated and nominatedNodeName only" in answer[1]) == (
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

    status, text = nominate(controller, "plain", "node-a")
    assert (status, "nominate nodes only for pods with claims" in text) == (403, True), text
    api, where = controller, f"{PODS}/asks/status"
    for node in ("node-a", None):
        body = {"status": {"nominatedNodeName": node}}
        found = api.request("PATCH", where, body=body, content=MERGE)
        assert found["status"].get("nominatedNodeName") == node
    admin.patch("Pod", "asks", {"status": {"nominatedNodeName": "b"}}, subresource="status")
    assert nominate(controller, "asks", "node-a")[0] == 403, "of another it is not replaced"
    for name in ("asks", "plain"):
        admin.delete("Pod", name, grace=0)


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
