"""Pods, leases, events, nodes: what the daemons and their stand-ins write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.sim.conformance.helpers.builders import pod

if TYPE_CHECKING:
    from tests.sim.conformance.helpers.client import Api

Obj = dict[str, Any]

GATE = {"name": "mig.dra.dev/allocation"}


@pytest.fixture
def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


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


# --- nodes --------------------------------------------------------------------------------------
