"""Of what is mirrored, no more is kept than the controller reads, and that is enough for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller.cluster.decoder import remembering
from dra.claims.claims import read_claim
from dra.claims.conditions import PREPARE_FAILED, failed_prepare, was_asked_for
from dra.common.resources import MIG_NODES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Obj
from dra.kube.reflector import Store
from dra.pods.pods import Pod, read_pod
from dra.pods.selectors import Company, NodeTerm, PodTerm, Spread
from hack.bench.objects import as_stored
from tests.controller.helpers.objects import DRIVER, allocated, claim, mignode, node, pod
from tests.controller.helpers.stored import Stored


def like(found: Pod) -> tuple[object, ...]:
    needs = found.needs
    return (
        *(found.key, found.uid, found.claims, found.node, found.gates, found.priority),
        *(found.created, found.phase, found.deleting),
        *(needs.requests, needs.node_selector, needs.affinity_terms, needs.tolerations),
        *(found.labels, found.volume_claims, found.nominated, needs.host_ports, needs.preempts),
        *map(plain, vars_of(needs.company)),
    )


def vars_of(company: Company) -> tuple[object, ...]:
    """The terms of a pod."""
    return tuple(getattr(company, name) for name in company.__slots__)


def plain(value: object) -> object:
    """Terms as values that can be compared."""
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if isinstance(value, PodTerm | Spread | NodeTerm):
        return {name: getattr(value, name) for name in value.__slots__}
    return value


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
TERM = {
    "topologyKey": "zone",
    "labelSelector": {"matchLabels": {"app": "web"}},
    "namespaces": ["team"],
    "namespaceSelector": {"matchLabels": {"of": "team"}},
}
AMONG_PODS = {
    "podAffinity": {PREFERRED: [{"weight": 3, "podAffinityTerm": TERM}]},
    "podAntiAffinity": {REQUIRED: [TERM]},
}
NODE_TERM = {"weight": 2, "preference": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
SPREAD = {
    "topologyKey": "zone",
    "labelSelector": {"matchLabels": {"app": "web"}},
    "maxSkew": 2,
    "minDomains": 3,
    "whenUnsatisfiable": "DoNotSchedule",
    "matchLabelKeys": ["version"],
    "nodeTaintsPolicy": "Honor",
}


def full_pod() -> Obj:
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    requests = {"requests": {"memory": "1Gi"}}
    body = pod(
        "p",
        "c",
        initContainers=[
            {"name": "i", "image": "none", "resources": requests, "restartPolicy": "Always"}
        ],
        overhead={"cpu": "10m"},
        resources={"limits": {"cpu": "2"}},
        nodeSelector={"disk": "ssd"},
        affinity={"nodeAffinity": required | {PREFERRED: [NODE_TERM]}, **AMONG_PODS},
        topologySpreadConstraints=[SPREAD],
        preemptionPolicy="Never",
        volumes=[
            {"name": "scratch", "emptyDir": {}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
            {"name": "own", "ephemeral": {"volumeClaimTemplate": {"spec": {"a": "b" * 500}}}},
        ],
        schedulingGates=[{"name": "other"}],
        nodeName="node-a",
        priority=7,
    )
    ports = [{"name": "web", "containerPort": 80, "hostPort": 80}, {"containerPort": 81}]
    body["spec"]["containers"][0]["ports"] = ports
    body["metadata"]["labels"] = {"app": "web", "version": "1"}
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ours = {"type": f"{DRIVER}/ClaimsAllocated", "status": "False", "reason": "Waiting"}
    body["status"] = {
        "phase": "Running",
        "nominatedNodeName": "node-a",
        "conditions": [ours],
        "resourceClaimStatuses": [{"name": "t", "resourceClaimName": "made"}],
    }
    body["spec"]["resourceClaims"].append({"name": "t", "resourceClaimTemplateName": "x"})
    return as_stored(PODS, body, 1)


def test_a_trimmed_pod_is_read_as_the_whole_one_and_is_much_smaller() -> None:
    whole = full_pod()
    trimmed = Stored(PODS)(whole)
    assert like(read_pod(trimmed)) == like(read_pod(whole))
    (condition,) = trimmed["status"]["conditions"]
    assert condition["type"] == f"{DRIVER}/ClaimsAllocated"
    assert len(json.dumps(trimmed)) < 0.5 * len(json.dumps(whole))


def test_of_a_pod_without_claims_is_kept_what_it_takes_and_whom_it_shuns() -> None:
    whole = full_pod()
    del whole["spec"]["resourceClaims"]
    trimmed = Stored(PODS)(whole)
    found, known = read_pod(trimmed), read_pod(whole)
    assert set(trimmed["spec"]) == {
        *("containers", "initContainers", "overhead", "resources", "affinity"),
        *("priority", "nodeName"),
    }
    assert (found.needs.requests, found.labels) == (known.needs.requests, known.labels)
    assert found.needs.host_ports == known.needs.host_ports != ()
    assert plain(found.needs.company.anti_affinity) == plain(known.needs.company.anti_affinity)
    assert found.needs.company.liked == ()


def test_a_trimmed_claim_is_read_as_the_whole_one() -> None:
    body = allocated(claim("c"), "node-a", "gpu-0-mig-1g5gb-19-4")
    body["metadata"]["ownerReferences"] = [{"kind": "Pod", "uid": "u", "controller": True}]
    condition = {"type": "Ready", "status": "False", "reason": PREPARE_FAILED, "message": "why"}
    (result,) = body["status"]["allocation"]["devices"]["results"]
    shown = {k: result[k] for k in ("driver", "pool", "device")} | {"conditions": [condition]}
    body["status"] |= {
        "devices": [shown],
        "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
    }
    whole = as_stored(RESOURCE_CLAIMS, body, 1)
    trimmed = Stored(RESOURCE_CLAIMS)(whole)
    assert read_claim(trimmed) == read_claim(whole)
    assert failed_prepare(trimmed, driver=DRIVER) == "why"
    assert trimmed["status"] == whole["status"]
    assert "managedFields" not in trimmed["metadata"]


def test_of_devices_that_are_as_they_should_be_it_is_kept_that_they_were_asked_for() -> None:
    body = allocated(claim("c"), "node-a", "gpu-0-mig-1g5gb-19-4")
    ready = {"type": "Ready", "status": "True", "reason": "Prepared"}
    lost = {"type": "Ready", "status": "False", "reason": "XidError"}
    for conditions, kept in (([ready], []), ([], None), ([ready, lost], [[ready, lost]])):
        device = {"driver": DRIVER, "pool": "p", "device": "d", "conditions": conditions}
        body["status"]["devices"] = [device]
        trimmed = Stored(RESOURCE_CLAIMS)(as_stored(RESOURCE_CLAIMS, body, 1))
        told = trimmed["status"].get("devices")
        assert (told and [d["conditions"] for d in told]) == kept
        assert was_asked_for(trimmed, driver=DRIVER) is (kept == [])
        assert trimmed["status"]["allocation"] == body["status"]["allocation"]


def test_the_pod_that_owns_a_claim_is_kept_and_the_rest_of_its_owner_is_not() -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}
    body = claim("c")
    body["metadata"]["ownerReferences"] = [owner]
    trimmed = Stored(RESOURCE_CLAIMS)(as_stored(RESOURCE_CLAIMS, body, 1))
    assert trimmed["metadata"]["ownerReferences"] == [
        {"kind": "Pod", "uid": "u", "controller": True}
    ]
    assert read_claim(trimmed).owner_pod_uid == "u"


def test_a_change_of_nothing_that_is_kept_of_a_pod_is_none() -> None:
    store, trim = Store(), Stored(PODS)
    before = as_stored(PODS, pod("p", "c"), 1)
    store.put(trim(before))
    changed = as_stored(PODS, pod("p", "c"), 2)
    changed["metadata"] |= {key: before["metadata"][key] for key in ("uid", "labels")}
    changed["status"] |= {"qosClass": "Burstable", "message": "soon"}
    assert store.put(trim(changed)) == []
    changed["spec"]["nodeName"] = "node-a"
    (change,) = store.put(trim(changed))
    assert change.kind == "modified"


def test_any_change_of_a_claim_is_one_as_writes_name_its_version() -> None:
    store, trim = Store(), Stored(RESOURCE_CLAIMS)
    body = as_stored(RESOURCE_CLAIMS, claim("c"), 1)
    store.put(trim(body))
    body["metadata"] |= {"labels": {"another": "label"}, "resourceVersion": "2"}
    (change,) = store.put(trim(body))
    assert change.new is not None
    assert change.new["metadata"]["resourceVersion"] == "2"


@pytest.mark.parametrize("resource", [NODES, MIG_NODES])
def test_of_nodes_the_mirror_remembers_only_which_they_are(resource: Any) -> None:
    body = as_stored(resource, node("node-a") if resource is NODES else mignode("node-a"), 5)
    store = Store(remembering(resource))
    (change,) = store.put(body)
    assert change.new is body
    kept = store.get("node-a")
    assert kept is not None
    assert set(kept) == {"metadata"}
    assert store.put(body) == []
    newer = {**body["metadata"], "resourceVersion": "6"}
    (change,) = store.put({**body, "metadata": newer})
    assert change.kind == "modified"


@pytest.mark.parametrize("body", [{"spec": {"containers": [None]}}, {"spec": []}])
def test_of_what_is_not_as_it_should_be_is_kept_which_it_is(body: Obj) -> None:
    body["metadata"] = {"name": "p", "namespace": "ns", "uid": "u"}
    assert Stored(PODS)(body) == {"metadata": body["metadata"]}


def test_of_a_slice_of_another_driver_only_what_it_offers_counts() -> None:
    store = Store(remembering(RESOURCE_SLICES))
    trim = Stored(RESOURCE_SLICES)
    spec: Obj = {"driver": "tape.example.com", "nodeName": "node-a", "devices": [{"name": "t0"}]}

    def changes(version: str, **changed: Any) -> int:
        metadata = {"name": "s", "uid": "u", "resourceVersion": version}
        pool = {"name": "p", "generation": int(version)}
        body = {"metadata": metadata, "spec": {**spec, "pool": pool, **changed}}
        return len(store.put(trim(body)))

    assert changes("1") == 1
    assert changes("2") == 0
    assert changes("3", devices=[{"name": "t0"}, {"name": "t1"}]) == 1
    anywhere = {**spec, "nodeName": None, "allNodes": True, "pool": {"name": "p"}}
    assert trim({"metadata": {"name": "s"}, "spec": anywhere})["spec"]["nodeName"] == ""
