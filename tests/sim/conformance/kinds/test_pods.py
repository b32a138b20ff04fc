"""Pods, leases, events, nodes: what the daemons and their stand-ins write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.conformance.helpers.builders import pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.sim.conformance.helpers.client import Api

Obj = dict[str, Any]

GATE = {"name": "mig.dra.dev/allocation"}


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def test_a_pod_gets_its_defaults(api: Api, pods: str) -> None:
    created = api.post(pods, pod("a")).ok()
    spec = created["spec"]
    assert spec["restartPolicy"] == "Always"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["dnsPolicy"] == "ClusterFirst"
    assert created["status"]["phase"] == "Pending"
    assert created["metadata"]["generation"] == 1


def test_the_spec_of_a_pod_hardly_changes(api: Api, pods: str) -> None:
    api.post(pods, pod("a")).ok()
    answer = api.merge(f"{pods}/a", {"spec": {"priorityClassName": "x"}})
    assert answer.causes() == {("FieldValueForbidden", "spec")}
    assert "pod updates may not change fields other than" in answer.refused(422)
    image = {"spec": {"containers": [{"name": "main", "image": "y:2"}]}}
    changed = api.strategic(f"{pods}/a", image).ok()
    assert changed["spec"]["containers"][0]["image"] == "y:2"
    assert changed["metadata"]["generation"] == 2


def test_a_gate_can_go_but_never_come(api: Api, pods: str) -> None:
    created = api.post(pods, pod("a", schedulingGates=[GATE, {"name": "x/y"}])).ok()
    (condition,) = created["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "False")
    assert condition["reason"] == "SchedulingGated"
    fewer = api.merge(f"{pods}/a", {"spec": {"schedulingGates": [GATE]}}).ok()
    assert fewer["spec"]["schedulingGates"] == [GATE]
    more = api.merge(f"{pods}/a", {"spec": {"schedulingGates": [GATE, {"name": "new/x"}]}})
    assert more.causes() == {("FieldValueForbidden", "spec.schedulingGates[1].name")}
    none = api.merge(f"{pods}/a", {"spec": {"schedulingGates": None}}).ok()
    assert "schedulingGates" not in none["spec"]


def test_a_gate_is_removed_together_with_the_choice_of_a_node(api: Api, pods: str) -> None:
    api.post(pods, pod("a", schedulingGates=[GATE])).ok()
    steps = [
        {"op": "add", "path": "/spec/nodeSelector", "value": {"kubernetes.io/hostname": "a"}},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ]
    api.patch(f"{pods}/a", steps).ok()
    late = api.merge(f"{pods}/a", {"spec": {"nodeSelector": {"more": "x"}}})
    assert late.causes() == {("FieldValueForbidden", "spec")}


def bind(api: Api, pods: str, name: str, node: str, **metadata: str) -> Any:
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name} | metadata,
        "target": {"kind": "Node", "name": node},
    }
    return api.post(f"{pods}/{name}/binding", body)


def test_a_binding_gives_the_pod_its_node_once(api: Api, pods: str) -> None:
    uid = api.post(pods, pod("a", terminationGracePeriodSeconds=0)).ok()["metadata"]["uid"]
    assert bind(api, pods, "a", "node-a", uid=uid).code == 201
    bound = api.get(f"{pods}/a").ok()
    assert bound["spec"]["nodeName"] == "node-a"
    (condition,) = bound["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
    message = bind(api, pods, "a", "node-b").refused(409, "Conflict")
    assert 'pod a is already assigned to node "node-a"' in message
    api.delete(f"{pods}/a", {"gracePeriodSeconds": 0}).ok()


def test_a_binding_to_another_uid_is_refused(api: Api, pods: str) -> None:
    api.post(pods, pod("a")).ok()
    bind(api, pods, "a", "n", uid="11111111-2222-3333-4444-555555555555").refused(409, "Conflict")


def test_a_gated_pod_is_not_bound(api: Api, pods: str) -> None:
    api.post(pods, pod("a", schedulingGates=[GATE])).ok()
    message = bind(api, pods, "a", "node-a").refused(409, "Conflict")
    assert "non-empty .spec.schedulingGates" in message


def test_the_claims_of_a_pod_are_recorded_in_its_status(api: Api, pods: str) -> None:
    body: Obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a"},
        "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "a-gpu-x"}]},
    }
    template = {"name": "gpu", "resourceClaimTemplateName": "t"}
    api.post(pods, pod("a", resourceClaims=[template])).ok()
    applied = api.apply(f"{pods}/a/status", body).ok()
    assert applied["status"]["resourceClaimStatuses"] == body["status"]["resourceClaimStatuses"]


# --- leases -------------------------------------------------------------------------------------
# --- events -------------------------------------------------------------------------------------
def event(namespace: str, **fields: Any) -> Obj:
    about = {"kind": "Pod", "namespace": namespace, "name": "p", "uid": "1"}
    return {
        "metadata": {"generateName": "e-"},
        "involvedObject": about,
        "type": "Normal",
        "reason": "Tested",
        "message": "m",
        "count": 1,
    } | fields


def test_an_event_is_counted_by_a_patch(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/events"
    name = api.post(path, event(namespace)).ok()["metadata"]["name"]
    assert api.strategic(f"{path}/{name}", {"count": 2}).ok()["count"] == 2


# --- nodes --------------------------------------------------------------------------------------
def test_a_node_offers_its_capacity(api: Api, unique: str, cleanup: Callable[[str], str]) -> None:
    status = {"capacity": {"cpu": "4", "memory": "8Gi"}}
    api.post("/api/v1/nodes", {"metadata": {"name": unique}, "status": status}).ok()
    path = cleanup(f"/api/v1/nodes/{unique}")
    assert api.get(path).ok()["status"]["allocatable"] == status["capacity"]
    ready = {"type": "Ready", "status": "True", "reason": "R", "message": "m"}
    patched = api.strategic(f"{path}/status", {"status": {"conditions": [ready]}}).ok()
    assert patched["status"]["conditions"][0]["status"] == "True"
    api.merge(path, {"spec": {"unschedulable": True}}).ok()
    selected = api.get("/api/v1/nodes", fieldSelector="spec.unschedulable=true").ok()["items"]
    assert unique in {node["metadata"]["name"] for node in selected}
