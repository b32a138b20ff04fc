"""What a node's plugin can do with its service account, and above all what not."""

from __future__ import annotations

import copy

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api
from hack.cluster.chart import NAMESPACE, find, render
from hack.cluster.installation import Installation
from sim.processes import wait_for
from tests.cluster.harness.accounts import PLUGIN, acting, changed_role, mignode
from tests.cluster.rbac.requests import (
    CLAIMS,
    CLASSES,
    DRIVER,
    MERGE,
    MIGNODES,
    SLICES,
    allocation,
    devices,
    refusal,
    status_of,
)


def test_a_plugin_writes_its_own_mignode(plugin: Api, admin: Api) -> None:
    made = plugin.create(mignode("node-a"))
    made["metadata"]["labels"] = {"written": "by-the-plugin"}
    made = plugin.request("PUT", f"{MIGNODES}/node-a", body=made)
    made["status"] = {"driverVersion": "570.1"}
    written = plugin.request("PUT", f"{MIGNODES}/node-a/status", body=made)
    assert written["status"] == {"driverVersion": "570.1"}
    watched = f"{MIGNODES}?fieldSelector=metadata.name%3Dnode-a"
    assert len(plugin.request("GET", watched)["items"]) == 1
    admin.delete("MigNode", "node-a")


def test_a_plugin_is_refused_on_another_nodes_mignode(
    plugin: Api, admin: Api, foreign_mignode: str
) -> None:
    found = admin.request("GET", foreign_mignode)
    stolen = found | {"status": {"driverVersion": "0"}}
    answers = [
        refusal(plugin, "POST", MIGNODES, body=mignode("node-c")),
        refusal(plugin, "PUT", foreign_mignode, body=found | {"spec": mignode("node-a")["spec"]}),
        refusal(plugin, "PUT", f"{foreign_mignode}/status", body=stolen),
    ]
    for status, text in answers:
        assert status == 403
        assert "the plugin on node 'node-a' may only write the MigNode of that name" in text
    assert admin.request("GET", foreign_mignode) == found


def test_a_plugin_cannot_put_its_node_into_another_nodes_pool(plugin: Api) -> None:
    where = f"{MIGNODES}?dryRun=All"
    status, text = refusal(plugin, "POST", where, body=mignode("node-a", pool="node-b"))
    assert status == 403
    assert "spec.pool" in text


def test_a_plugin_changes_nothing_of_what_is_drained(plugin: Api, admin: Api) -> None:
    fresh = mignode("node-a")
    drained = fresh | {"spec": fresh["spec"] | {"drain": {"gpus": ["gpu-0"]}}}
    assert refusal(plugin, "POST", f"{MIGNODES}?dryRun=All", body=drained)[0] == 403
    made = plugin.create(fresh)
    where = f"{MIGNODES}/node-a"
    for before, after in (({}, {"gpus": ["gpu-0"]}), ({"reason": "driver 580"}, None)):
        change = {"spec": {"drain": before or None}}
        body = admin.request("PATCH", where, body=change, content=MERGE)
        spec = {k: v for k, v in made["spec"].items() if k != "drain"}
        wanted = body | {"spec": spec | ({"drain": after} if after else {})}
        status, text = refusal(plugin, "PUT", where, body=wanted)
        assert status == 403
        assert "spec.drain is set by administrators only" in text
        plugin.request("PUT", where, body=body | {"spec": body["spec"]})
    admin.delete("MigNode", "node-a")


def test_a_token_that_names_no_node_writes_no_mignode(installation: Installation) -> None:
    unbound = acting(installation, PLUGIN)
    for name in ("node-a", ""):
        body = mignode(name or "x")
        status, text = refusal(unbound, "POST", f"{MIGNODES}?dryRun=All", body=body)
        assert status == 403
        assert "the plugin on node ''" in text


@pytest.mark.parametrize("claim", ["node-a"], indirect=True)
def test_a_plugin_shows_the_devices_of_its_nodes_claims(plugin: Api, claim: Obj) -> None:
    written = plugin.request("PATCH", status_of(claim, manager="plugin"), **devices(claim))
    assert written["status"]["devices"][0]["data"] == {"migUUID": "MIG-1"}
    assert written["status"]["allocation"] == claim["status"]["allocation"]


@pytest.mark.parametrize("claim", ["node-b"], indirect=True)
def test_a_plugin_is_refused_on_another_nodes_claims(plugin: Api, claim: Obj, admin: Api) -> None:
    status, text = refusal(plugin, "PATCH", status_of(claim, manager="plugin"), **devices(claim))
    by_kubernetes = status == 422 and "resourceclaims/driver" in text  # 1.36 and newer
    by_policy = status == 403 and "claims that are allocated to that node" in text
    assert by_kubernetes or by_policy, text
    after = admin.get("ResourceClaim", claim["metadata"]["name"])
    assert "devices" not in after["status"]


@pytest.mark.parametrize("claim", ["", "node-a"], indirect=True)
def test_a_plugin_can_neither_allocate_nor_deallocate(plugin: Api, claim: Obj) -> None:
    allocated = claim.get("status", {}).get("allocation")
    body = {"status": {"allocation": None if allocated else allocation("node-a")}}
    status, _ = refusal(plugin, "PATCH", status_of(claim), body=body, content=MERGE)
    assert status in {403, 422}


@pytest.mark.parametrize("claim", ["node-a"], indirect=True)
def test_the_policy_on_claims_holds_without_the_checks_of_kubernetes_1_36(
    installation: Installation, plugin: Api, claim: Obj, admin: Api
) -> None:
    """The role is widened until only the policy is left, as on 1.34 and 1.35."""
    role = copy.deepcopy(find(render(), "ClusterRole", "kubelet-plugin"))
    wide = ["update", "patch"]
    role["rules"] += [
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims/binding", "resourceclaims/driver"],
            "verbs": [
                *wide,
                *(f"{node}-node:{v}" for node in ("associated", "arbitrary") for v in wide),
            ],
        }
    ]
    where, name = status_of(claim), claim["metadata"]["name"]
    with changed_role(installation, role):
        body = {"status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}}
        status, text = wait_for(
            "widened role",
            lambda: (
                found
                if "status.devices only"
                in (found := refusal(plugin, "PATCH", where, body=body, content=MERGE))[1]
                else None
            ),
        )
        assert status == 403

        def allocate(node: str, *more: Obj) -> Obj:
            found = allocation(node)
            found["devices"]["results"] += more
            for value in (None, found):
                body = {"status": {"allocation": value}}
                made = admin.patch("ResourceClaim", name, body, subresource="status")
            return made

        foreign = {"driver": "other.example", "pool": "p", "device": "d"}
        allocate("node-a", {"request": "slice", **foreign})
        body = {"status": {"devices": [foreign]}}
        _, text = refusal(plugin, "PATCH", where, body=body, content=MERGE)
        assert "entries of driver mig.dra.dev only" in text

        body = devices(allocate("node-b"))["body"]
        _, text = refusal(plugin, "PATCH", where, body=body, content=MERGE)
        assert "claims that are allocated to that node" in text


def resource_slice(node: str, *, driver: str = DRIVER, **spec: object) -> Obj:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-{driver}"},
        "spec": {"driver": driver, "nodeName": node, "pool": pool, **spec},
    }


def test_a_plugin_publishes_slices_of_its_own_node_and_driver_only(plugin: Api, admin: Api) -> None:
    offering = resource_slice("node-a", devices=[{"name": "gpu-0"}])
    status, text = refusal(plugin, "POST", SLICES, body=offering)
    assert (status, "ResourceSlices have no devices" in text) == (403, True)
    plugin.create(resource_slice("node-a"))
    own = f"{SLICES}/{resource_slice('node-a')['metadata']['name']}"
    other = admin.create(resource_slice("node-b"))
    there = f"{SLICES}/{other['metadata']['name']}"
    answers = [
        refusal(plugin, "POST", SLICES, body=resource_slice("node-c")),
        refusal(plugin, "PUT", there, body=other),
        refusal(plugin, "DELETE", there),
    ]
    for status, text in answers:
        assert status == 403
        assert "may only write ResourceSlices of that node" in text
    foreign = resource_slice("node-a", driver="other.example")
    status, text = refusal(plugin, "POST", SLICES, body=foreign)
    assert (status, "of driver mig.dra.dev" in text) == (403, True)
    plugin.request("DELETE", own)
    admin.request("DELETE", there)


@pytest.mark.parametrize(
    ("method", "where"),
    [
        ("GET", "/api/v1/pods"),
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/events"),
        ("GET", "/apis/resource.k8s.io/v1/resourceclaimtemplates"),
        ("PATCH", "/api/v1/nodes/node-a"),
        ("POST", "/api/v1/namespaces/default/pods"),
        ("POST", CLASSES),
        ("PATCH", f"{CLAIMS}/x"),
        ("GET", f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"),
    ],
)
def test_a_plugin_has_no_business_with_other_objects(method: str, where: str, plugin: Api) -> None:
    body = None if method == "GET" else {"metadata": {"name": "x"}}
    content = MERGE if method == "PATCH" else "application/json"
    assert refusal(plugin, method, where, body=body, content=content)[0] == 403


def test_a_plugin_reads_what_nvidias_driver_publishes_of_its_node(plugin: Api) -> None:
    selector = "fieldSelector=spec.nodeName%3Dnode-a%2Cspec.driver%3Dgpu.nvidia.com"
    assert plugin.request("GET", f"{SLICES}?{selector}")["items"] == []
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {
            "resourceAttributes": {
                "group": "resource.k8s.io",
                "resource": "resourceslices",
                "verb": "watch",
            }
        },
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert plugin.request("POST", path, body=review)["status"]["allowed"] is True
