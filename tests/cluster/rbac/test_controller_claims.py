"""Writes of the controller to claims, with its service account, and above all those refused."""

from __future__ import annotations

import copy
import itertools
import json
from functools import partial
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api, ApiError, collection
from hack.cluster.chart import find, render
from hack.cluster.installation import Installation
from sim.processes import wait_for
from tests.cluster.harness.accounts import changed_role
from tests.cluster.rbac.requests import (
    CLAIMS,
    DRIVER,
    MERGE,
    allocation,
    device_class,
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
    with changed_role(installation, role):
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
    with changed_role(installation, role):
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
    body: Obj = {
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


# -- who gets the controller's finalizer when it is created: the chart's MutatingAdmissionPolicy


OURS_FROM_BIRTH = "mig.dra.dev/allocation"


_NUMBERS = itertools.count()


def asks(device_class: str) -> Obj:
    return {"name": "r", "exactly": {"deviceClassName": device_class}}


def either(*classes: str) -> Obj:
    alternatives = [{"name": f"a{n}", "deviceClassName": c} for n, c in enumerate(classes)]
    return {"name": "r", "firstAvailable": alternatives}


def finalizers(api: Api, *requests: Obj, **metadata: Any) -> list[str]:
    """Those of a new claim with such requests."""
    body: Obj = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"born-{next(_NUMBERS)}", **metadata},
        "spec": {"devices": {"requests": list(requests)}},
    }
    found: list[str] = api.create(body)["metadata"].get("finalizers", [])
    return found


@pytest.fixture
def guarded(admin: Api) -> Api:
    """The API, once the policy is in force."""
    wait_for("policy", partial(finalizers, admin, asks("mig-1g.5gb")))
    return admin


@pytest.mark.parametrize("request_", [asks("mig-1g.5gb"), either("other.dev", "mig-min-10gb")])
def test_a_claim_of_ours_has_it(guarded: Api, request_: Obj) -> None:
    assert finalizers(guarded, request_) == [OURS_FROM_BIRTH]


def test_it_comes_to_what_is_there(guarded: Api) -> None:
    found = finalizers(guarded, asks("mig.dra.dev"), finalizers=["example.com/mine"])
    assert sorted(found) == ["example.com/mine", OURS_FROM_BIRTH]
    assert finalizers(guarded, asks("gpu.dra.dev"), finalizers=[OURS_FROM_BIRTH]) == [
        OURS_FROM_BIRTH
    ]


def test_a_claim_for_an_extended_resource_has_it_not(guarded: Api) -> None:
    made_by_scheduler = {"resource.kubernetes.io/extended-resource-claim": "true"}
    assert finalizers(guarded, asks("mig-1g.5gb"), annotations=made_by_scheduler) == []


# -- and parameters without white space, as every later patch encodes them

PROTOBUF = "application/vnd.kubernetes.protobuf"


@pytest.mark.parametrize("kind", ["ResourceClaim", "DeviceClass"])
def test_parameters_are_stored_as_a_patch_encodes_them(guarded: Api, kind: str) -> None:
    """kube-scheduler copies the bytes of both into allocations, which may not change."""
    parameters = {"apiVersion": "mig.dra.dev/v1alpha1", "kind": "GpuConfig"}
    config = {"config": [{"opaque": {"driver": "mig.dra.dev", "parameters": parameters}}]}
    devices = {"devices": {"requests": [asks("other.example")], **config}}
    body: Obj = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": f"blanks-{next(_NUMBERS)}"},
        "spec": config if kind == "DeviceClass" else devices,
    }
    path = collection(kind)
    guarded.request("POST", path, body=json.dumps(body, indent=2))
    headers = {**guarded.headers, "Accept": PROTOBUF}
    path = f"{path}/{body['metadata']['name']}"
    stored = guarded._answer("GET", path, headers=headers, timeout=15.0).data
    assert json.dumps(parameters, separators=(",", ":")).encode() in stored
    guarded.patch(kind, body["metadata"]["name"], {"metadata": {"labels": {"a": "b"}}})
