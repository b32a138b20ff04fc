"""What a node's plugin can do with its service account, and above all what not."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.api import Api, ApiError
from hack.cluster.chart import NAMESPACE, find, render
from hack.cluster.installation import Installation, apply
from sim.processes import wait_for
from tests.cluster.harness.accounts import PLUGIN, acting, changed_role, mignode, node_owner
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
    made = plugin.create(mignode("node-a", owner=node_owner(admin, "node-a")))
    made["metadata"]["labels"] = {"written": "by-the-plugin"}
    made = plugin.request("PUT", f"{MIGNODES}/node-a", body=made)
    made["status"] = {"driverVersion": "570.1"}
    written = plugin.request("PUT", f"{MIGNODES}/node-a/status", body=made)
    assert written["status"] == {"driverVersion": "570.1"}
    watched = f"{MIGNODES}?fieldSelector=metadata.name%3Dnode-a"
    assert len(plugin.request("GET", watched)["items"]) == 1
    admin.delete("MigNode", "node-a")


def test_a_mignode_is_taken_over_of_another_driver(plugin: Api, admin: Api) -> None:
    made = mignode("node-a", owner=node_owner(admin, "node-a"))
    before = admin.create({**made, "spec": {**made["spec"], "driver": "other.example"}})
    plugin.request("PUT", f"{MIGNODES}/node-a", body=before | {"spec": made["spec"]})
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
        assert "the plugin on node 'node-a' may only write mignodes of that node" in text
    assert admin.request("GET", foreign_mignode) == found


def test_a_plugin_cannot_put_its_node_into_another_nodes_pool(plugin: Api) -> None:
    where = f"{MIGNODES}?dryRun=All"
    status, text = refusal(plugin, "POST", where, body=mignode("node-a", pool="node-b"))
    assert status == 403
    assert "the pool of mignodes must be named as its node, node-a, not 'node-b'" in text


WISHES: list[tuple[str, Obj]] = [
    ("drain", {"reason": "driver 580"}),
    ("takeover", {"wish": "take", "since": "2026-01-01T00:00:00Z"}),
]


@pytest.mark.parametrize(("field", "wish"), WISHES, ids=[field for field, _ in WISHES])
def test_a_plugin_changes_nothing_of_what_administrators_wish(
    plugin: Api, admin: Api, field: str, wish: Obj
) -> None:
    fresh = mignode("node-a", owner=node_owner(admin, "node-a"))
    wished = fresh | {"spec": fresh["spec"] | {field: wish}}
    assert refusal(plugin, "POST", f"{MIGNODES}?dryRun=All", body=wished)[0] == 403
    made = plugin.create(fresh)
    where = f"{MIGNODES}/node-a"
    for before, after in ((None, wish), (wish, None)):
        body = admin.request("PATCH", where, body={"spec": {field: before}}, content=MERGE)
        spec = {k: v for k, v in made["spec"].items() if k != field}
        wanted = body | {"spec": spec | ({field: after} if after else {})}
        status, text = refusal(plugin, "PUT", where, body=wanted)
        assert status == 403
        assert "spec.drain and spec.takeover are set by administrators only" in text
        plugin.request("PUT", where, body=body | {"spec": body["spec"]})
    admin.delete("MigNode", "node-a")


def test_no_label_is_remembered_for_a_handback_but_those_of_other_managers(admin: Api) -> None:
    body = mignode("node-a")
    labels = [{"key": "node-role.kubernetes.io/control-plane", "value": ""}]
    body["spec"]["takeover"] = {**WISHES[1][1], "labels": labels}
    status, text = refusal(admin, "POST", f"{MIGNODES}?dryRun=All", body=body)
    assert status == 422
    assert "spec.takeover.labels[0].key" in text


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
    by_policy = status == 403 and "may only write resourceclaims of that node" in text
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
        assert "entries of driver mig.dra.dev and of its own pool only" in text

        body = devices(allocate("node-b"))["body"]
        _, text = refusal(plugin, "PATCH", where, body=body, content=MERGE)
        assert "may only write resourceclaims of that node" in text


def resource_slice(
    node: str = "node-a", *, driver: str = DRIVER, pool: str = "", name: str = "", **spec: Any
) -> Obj:
    offered = {"name": pool or node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"0000-{driver}-{node}"},
        "spec": {"driver": driver, "nodeName": node, "pool": offered, **spec},
    }


def event(**fields: Any) -> Obj:
    """An event of the plugin on node-a, about a pod in a namespace of the cluster's own."""
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "kube-system"},
        "involvedObject": {"kind": "Pod", "namespace": "kube-system", "name": "p"},
        "reason": "SliceNotMade",
        "message": "m",
        "type": "Normal",
        "source": {"component": DRIVER, "host": "node-a"},
        "reportingComponent": DRIVER,
        "reportingInstance": "node-a",
        **fields,
    }


def with_metadata(body: Obj, **metadata: Any) -> Obj:
    return {**body, "metadata": {**body["metadata"], **metadata}}


def owner(kind: str = "Node", name: str = "node-a", **more: Any) -> list[Obj]:
    return [{"apiVersion": "v1", "kind": kind, "name": name, "uid": "u", **more}]


EVENTS_IN_KUBE_SYSTEM = "/api/v1/namespaces/kube-system/events"
OF_CONTROLLER = {"component": f"{DRIVER}/controller", "host": "node-a"}
EVERYWHERE = resource_slice(allNodes=True)
del EVERYWHERE["spec"]["nodeName"]
NOT_ITS_OWN: dict[str, tuple[str, Obj, str]] = {
    "slice of another node": (SLICES, resource_slice("node-b"), "of that node, not of 'node-b'"),
    "slice of all nodes": (SLICES, EVERYWHERE, "of that node, not of ''"),
    "empty slice in another's pool": (SLICES, resource_slice(pool="node-b"), "not 'node-b'"),
    "slice of another driver": (
        SLICES,
        resource_slice(driver="other.example"),
        "may only write resourceslices of driver mig.dra.dev",
    ),
    "name of another's slice": (
        SLICES,
        resource_slice(name=f"0000-{DRIVER}-node-b"),
        "is named by four digits and '-mig.dra.dev-node-a'",
    ),
    "name of another's slice that ends as its own": (
        SLICES,
        resource_slice(name=f"0000-{DRIVER}-x-{DRIVER}-node-a"),
        "is named by four digits",
    ),
    "slice that stays when its node goes": (
        SLICES,
        with_metadata(resource_slice(), ownerReferences=owner("Pod", "p")),
        "have that Node for their owner",
    ),
    "slice that nobody can delete": (
        SLICES,
        with_metadata(resource_slice(), finalizers=["a.example/b"]),
        "no finalizers",
    ),
    "MigNode of another driver": (
        MIGNODES,
        {**mignode("node-a"), "spec": {**mignode("node-a")["spec"], "driver": "other.example"}},
        "may only write mignodes of driver mig.dra.dev",
    ),
    "MigNode of no Node": (
        MIGNODES,
        with_metadata(mignode("node-a"), ownerReferences=[]),
        "have that Node for their owner",
    ),
    "MigNode of another Node": (
        MIGNODES,
        with_metadata(mignode("node-a"), ownerReferences=owner(name="node-b")),
        "have that Node for their owner",
    ),
    "MigNode that keeps its Node": (
        MIGNODES,
        with_metadata(mignode("node-a"), ownerReferences=owner(blockOwnerDeletion=True)),
        "have that Node for their owner",
    ),
    "MigNode that nobody can delete": (
        MIGNODES,
        with_metadata(mignode("node-a"), finalizers=["a.example/b"]),
        "no finalizers",
    ),
    "event of the controller": (
        EVENTS_IN_KUBE_SYSTEM,
        event(source=OF_CONTROLLER),
        f"may only write events of driver {DRIVER}",
    ),
    "event that the controller reports": (
        EVENTS_IN_KUBE_SYSTEM,
        event(reportingComponent=f"{DRIVER}/controller"),
        "in its own name only",
    ),
    "event of kubelet": (
        EVENTS_IN_KUBE_SYSTEM,
        event(source={"component": "kubelet", "host": "node-a"}),
        f"may only write events of driver {DRIVER}",
    ),
    "event of another node": (
        EVENTS_IN_KUBE_SYSTEM,
        event(source={"component": DRIVER, "host": "node-b"}),
        "of that node, not of 'node-b'",
    ),
    "event that another node reports": (
        EVENTS_IN_KUBE_SYSTEM,
        event(reportingInstance="node-b"),
        "in its own name only",
    ),
    "event that keeps its namespace": (
        EVENTS_IN_KUBE_SYSTEM,
        with_metadata(event(), finalizers=["a.example/b"]),
        "no finalizers",
    ),
}


@pytest.mark.parametrize("name", NOT_ITS_OWN)
def test_a_plugin_makes_nothing_but_its_own(plugin: Api, name: str) -> None:
    where, body, told = NOT_ITS_OWN[name]
    status, text = refusal(plugin, "POST", f"{where}?dryRun=All", body=body)
    assert (status, told in text) == (403, True), text


def test_a_plugin_changes_nothing_of_another_and_gives_nothing_away(
    plugin: Api, admin: Api
) -> None:
    node = node_owner(admin, "node-a")
    mine = plugin.create(with_metadata(resource_slice(), ownerReferences=[node]))
    theirs = admin.create(resource_slice("node-b"))
    about = {"involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}}
    named = {"name": "e", "namespace": "default"}
    events = "/api/v1/namespaces/default/events"
    plugin.request("POST", events, body=event(metadata=named, **about))
    named = {"name": "f", "namespace": "default"}
    foreign = event(metadata=named, source=OF_CONTROLLER, **about)
    admin.request("POST", events, body=foreign)
    own, there = (f"{SLICES}/{each['metadata']['name']}" for each in (mine, theirs))
    source = {"source": event()["source"]}
    answers = [
        refusal(plugin, "PUT", there, body=theirs),
        refusal(plugin, "DELETE", there),
        refusal(plugin, "PATCH", f"{events}/f", body={"count": 2}, content=MERGE),
        refusal(plugin, "PATCH", f"{events}/f", body=source, content=MERGE),
        refusal(plugin, "PATCH", f"{events}/e", body={"source": OF_CONTROLLER}, content=MERGE),
    ]
    assert [status for status, _ in answers] == [403] * 5, answers
    assert plugin.request("PATCH", f"{events}/e", body={"count": 2}, content=MERGE)["count"] == 2
    changed = {**mine, "spec": {**mine["spec"], "pool": {**mine["spec"]["pool"], "generation": 2}}}
    plugin.request("PUT", own, body=changed)
    plugin.request("DELETE", own)
    for where in (there, f"{events}/e", f"{events}/f"):
        admin.request("DELETE", where)


@pytest.mark.parametrize("allocator", ["controller", "scheduler"])
def test_devices_are_offered_where_kube_scheduler_allocates_in_its_own_pool_alone(
    installation: Installation, plugin: Api, allocator: str
) -> None:
    offering = resource_slice(devices=[{"name": "gpu-0"}])
    stolen = resource_slice(pool="node-b", devices=[{"name": "gpu-0"}])
    if allocator == "controller":
        status, text = refusal(plugin, "POST", f"{SLICES}?dryRun=All", body=offering)
        assert (status, "ResourceSlices have no devices" in text) == (403, True)
        return
    with changed_policy(installation, {"allocator": "scheduler"}):
        wait_for("other policy", lambda: allowed(plugin, offering))
        status, text = refusal(plugin, "POST", f"{SLICES}?dryRun=All", body=stolen)
        assert (status, "must be named as its node" in text) == (403, True), text
    wait_for("usual policy", lambda: not allowed(plugin, offering))


def allowed(plugin: Api, body: Obj) -> bool:
    try:
        plugin.request("POST", f"{SLICES}?dryRun=All", body=body)
    except ApiError:
        return False
    return True


@contextlib.contextmanager
def changed_policy(installation: Installation, values: Obj) -> Iterator[None]:
    """The policies on the plugin as with other values, inside the block."""

    def put(objects: list[Obj]) -> None:
        for each in objects:
            if each["kind"] == "ValidatingAdmissionPolicy" and PLUGIN in each["metadata"]["name"]:
                apply(installation.api, each)

    put(render(values))
    try:
        yield
    finally:
        put(render(installation.values))


@pytest.mark.parametrize("claim", ["node-a"], indirect=True)
def test_a_plugin_shows_no_devices_of_another_pool(plugin: Api, claim: Obj, admin: Api) -> None:
    """Of a claim that is allocated to its node, with devices that are somebody else's."""
    name = claim["metadata"]["name"]
    stolen = allocation("node-a")
    stolen["devices"]["results"][0]["pool"] = "node-b"
    for value in (None, stolen):
        body = {"status": {"allocation": value}}
        made = admin.patch("ResourceClaim", name, body, subresource="status")
    status, text = refusal(plugin, "PATCH", status_of(claim, manager="plugin"), **devices(made))
    assert (status, "of its own pool only" in text) == (403, True), text


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
