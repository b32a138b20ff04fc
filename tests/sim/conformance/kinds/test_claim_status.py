"""The status of ResourceClaims: what allocators and node drivers can get wrong."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers.waiting import wait_for
from tests.sim.conformance.helpers.builders import (
    DRA,
    allocation,
    claim,
    condition,
    device,
    device_status,
    pod,
    resource_slice,
    result,
)
from tests.sim.conformance.helpers.client import Api

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.sim.conformance.helpers.client import Answer, Api


Obj = dict[str, Any]


POD = {"resource": "pods", "name": "p", "uid": "1"}


@pytest.fixture
def claims(namespace: str) -> str:
    return f"{DRA}/namespaces/{namespace}/resourceclaims"


@pytest.fixture
def a_claim(api: Api, claims: str) -> str:
    """A new claim; gives the path of its status."""
    api.post(claims, claim("a")).ok()
    return f"{claims}/a/status"


@pytest.fixture
def allocated(api: Api, a_claim: str) -> str:
    api.merge(a_claim, {"status": {"allocation": allocation()}}).ok()
    return a_claim


def allocate(api: Api, path: str, *results: Obj, **fields: Any) -> Answer:
    return api.merge(path, {"status": {"allocation": allocation(*results, **fields)}})


def report(api: Api, path: str, *devices: Obj) -> Answer:
    return api.merge(path, {"status": {"devices": list(devices)}})


# --- the allocation -----------------------------------------------------------------------------
def test_anybody_may_allocate_a_device_that_no_slice_lists(api: Api, a_claim: str) -> None:
    given = allocate(api, a_claim).ok()["status"]["allocation"]
    assert given == allocation()


def test_an_allocation_never_changes(api: Api, allocated: str) -> None:
    answer = allocate(api, allocated, result("other"))
    assert answer.causes() == {("FieldValueInvalid", "status.allocation")}
    assert "field is immutable" in answer.refused(422, "Invalid")


def test_a_claim_is_deallocated_with_its_device_states(api: Api, allocated: str) -> None:
    report(api, allocated, device_status()).ok()
    cleared = api.merge(allocated, {"status": {"allocation": None}}).ok()
    assert cleared["status"] == {}


def test_a_reserved_claim_is_not_deallocated(api: Api, allocated: str) -> None:
    api.merge(allocated, {"status": {"reservedFor": [POD]}}).ok()
    answer = api.merge(allocated, {"status": {"allocation": None}})
    assert answer.causes() == {("FieldValueForbidden", "status.reservedFor")}
    api.merge(allocated, {"status": {"allocation": None, "reservedFor": None}}).ok()


def test_a_device_state_belongs_to_an_allocated_device(api: Api, allocated: str) -> None:
    answer = report(api, allocated, device_status("other"))
    assert answer.causes() == {("FieldValueInvalid", "status.devices[0]")}
    assert "must be an allocated device in the claim" in answer.refused(422)
    state = device_status(data={"uuid": "MIG-1"}, conditions=[condition()])
    assert report(api, allocated, state).ok()["status"]["devices"] == [state]


# -- custom resources: served as soon as they are established, cut to their schema


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


SCHEMA: Obj = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["pool"],
            "properties": {
                "pool": {"type": "string"},
                "size": {"type": "integer"},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "gpus": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["uuid"],
                    "items": {
                        "type": "object",
                        "required": ["uuid"],
                        "properties": {"uuid": {"type": "string"}, "state": {"type": "string"}},
                    },
                },
            },
        },
        "status": {
            "type": "object",
            "properties": {"ready": {"type": "integer"}, "note": {"type": "string"}},
        },
    },
}


class Kind:
    """A resource of the module's own."""

    def __init__(self) -> None:
        self.group = f"g{uuid.uuid4().hex[:8]}.example.com"
        self.path = f"/apis/{self.group}/v1alpha1/trees"
        self.definition = f"{CRDS}/trees.{self.group}"

    def crd(self) -> Obj:
        version = {
            "name": "v1alpha1",
            "served": True,
            "storage": True,
            "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": SCHEMA},
            "additionalPrinterColumns": [
                {"name": "Pool", "type": "string", "jsonPath": ".spec.pool"},
                {"name": "Ready", "type": "integer", "jsonPath": ".status.ready"},
                {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1},
                {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
            ],
            "selectableFields": [{"jsonPath": ".spec.pool"}],
        }
        names = {"plural": "trees", "singular": "tree", "kind": "Tree", "shortNames": ["tr"]}
        return {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"trees.{self.group}"},
            "spec": {
                "group": self.group, "scope": "Cluster", "names": names, "versions": [version],
            },
        }  # fmt: skip

    def tree(self, name: str = "a", **spec: Any) -> Obj:
        return {
            "apiVersion": f"{self.group}/v1alpha1",
            "kind": "Tree",
            "metadata": {"name": name},
            "spec": {"pool": "p"} | spec,
        }


@pytest.fixture(scope="module")
def kind(api: Api) -> Iterator[Kind]:
    made = Kind()
    api.post(CRDS, made.crd()).ok()
    wait_for("the resource is served", lambda: api.get(made.path).code == 200)
    yield made
    api.delete(made.definition).ok()


@pytest.fixture
def trees(api: Api, kind: Kind) -> Iterator[str]:
    yield kind.path
    for each in api.get(kind.path).ok()["items"]:
        api.delete(f"{kind.path}/{each['metadata']['name']}").ok()


# -- pods, leases, events, nodes: what the daemons and their stand-ins write


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


def test_a_gated_pod_is_not_bound(api: Api, pods: str) -> None:
    api.post(pods, pod("a", schedulingGates=[GATE])).ok()
    message = bind(api, pods, "a", "node-a").refused(409, "Conflict")
    assert "non-empty .spec.schedulingGates" in message


# -- resourceSlices and DeviceClasses: what a publishing driver can get wrong


SLICES = f"{DRA}/resourceslices"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("1024Mi", "1Gi"),
        ("5Gi", "5Gi"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1500", "1500"),
        ("2000", "2k"),
        ("1536Mi", "1536Mi"),
        ("1e3", "1e3"),
        ("100Ki", "100Ki"),
        ("0Gi", "0"),
        ("0.5Gi", "512Mi"),
    ],
)
def test_quantities_become_canonical(
    api: Api, unique: str, cleanup: Callable[[str], str], sent: str, kept: str
) -> None:
    body = resource_slice(unique, device(capacity={"memory": {"value": sent}}))
    created = api.post(SLICES, body).ok()
    cleanup(f"{SLICES}/{unique}")
    assert created["spec"]["devices"][0]["capacity"]["memory"]["value"] == kept
