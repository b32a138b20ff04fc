"""Pods with the gate where a real kube-scheduler allocates: the controller nominates nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dra.common.resources import Obj
from hack.cluster.binaries import Binaries
from tests.cluster.harness.pods import pod
from tests.cluster.harness.schedulersite import FINALIZER, Site, node, site, template
from tests.cluster.harness.workload import SLEEPING

GATED: dict[str, Any] = {"schedulingGates": [{"name": FINALIZER}]}
GANGS = {"GenericWorkload": True, "GangScheduling": True}
GROUPS = "scheduling.k8s.io/v1alpha2"
NIC = "nic.example"
SLICES = ("mig-1g.5gb", "mig-2g.10gb", "mig-3g.20gb", "mig-7g.40gb")
CLASSES = (*SLICES, "gpu.dra.dev", "gpu-share.dra.dev", "mig-share.dra.dev")


@pytest.fixture(scope="module")
def steered(binaries: Binaries, root: Path) -> Iterator[Site]:
    """Three nodes of kube-scheduler with two GPUs each; it knows gangs too."""
    nodes = dict.fromkeys(("a", "b", "c", "whole", "shares"), ("scheduler", 2))
    off, shared = ("whole", "shares"), ("c", "shares")
    home = root / "st"
    with site(binaries, home, nodes, GANGS, apis=(GROUPS,), whole=off, shared=shared) as made:
        for name in nodes:
            made.wait(f"slices of {name}", lambda name=name: made.published(name))
        for name in CLASSES:
            template(made.api, name)
        yield made


@pytest.fixture
def pods(steered: Site) -> Iterator[list[str]]:
    """Names of pods that are deleted after the test, with their claims."""
    made: list[str] = []
    yield made
    for name in made:
        steered.api.delete("Pod", name, grace=0)
    steered.wait("end of all claims", lambda: steered.api.list("ResourceClaim") == [])


def named(api: Any, name: str, *requests: Obj, kind: str = "ResourceClaimTemplate") -> None:
    devices = {"devices": {"requests": list(requests)}}
    spec: Obj = {"spec": devices} if kind == "ResourceClaimTemplate" else devices
    group = {"apiVersion": "resource.k8s.io/v1", "kind": kind}
    api.create({**group, "metadata": {"name": name}, "spec": spec})


def sent_to(api: Any, name: str) -> str:
    """The node that was nominated for a pod."""
    conditions = api.get("Pod", name)["status"].get("conditions", [])
    said = (c["message"] for c in conditions if c["type"] == "mig.dra.dev/SentToScheduler")
    return str(next(said, ""))


def start(made: Site, pods: list[str], name: str, *templates: str, **spec: Any) -> None:
    claims = {f"c{n}": {"resourceClaimTemplateName": t} for n, t in enumerate(templates)}
    made.api.create(pod(name, SLEEPING, claims=claims, **{**GATED, **spec}))
    pods.append(name)


def bound(made: Site, names: Sequence[str]) -> None:
    """All are bound, where they were sent to."""
    made.wait("nodes", lambda: all(node(made.api, name) for name in names))
    assert {n: node(made.api, n) for n in names} == {n: sent_to(made.api, n) for n in names}
    made.assert_disjoint()


def test_whatever_a_pod_asks_for_it_is_bound_where_it_was_sent(
    steered: Site, pods: list[str]
) -> None:
    api = steered.api

    def one(name: str, device_class: str, **more: Any) -> Obj:
        return {"name": name, "exactly": {"deviceClassName": device_class, **more}}

    better = {"name": "better", "deviceClassName": "mig-7g.40gb", "count": 3}
    enough = {"name": "enough", "deviceClassName": "mig-2g.10gb"}
    named(api, "several", one("x", "mig-1g.5gb"), one("y", "mig-3g.20gb"), one("z", "mig-2g.10gb"))
    named(api, "two", one("x", "mig-4g.20gb", count=2))
    named(api, "either", {"name": "x", "firstAvailable": [better, enough]})
    named(api, "both", one("x", "mig-1g.5gb"), kind="ResourceClaim")
    start(steered, pods, "claims", "mig-1g.5gb", "mig-2g.10gb")
    for name in ("several", "two", "either"):
        start(steered, pods, name, name)
    shared = {"shared": {"resourceClaimName": "both"}}
    shared |= {"own": {"resourceClaimTemplateName": "mig-2g.10gb"}}
    for name in ("first", "second"):
        api.create(pod(name, SLEEPING, claims=shared, **GATED))
        pods.append(name)
    bound(steered, [each for each in pods if each not in ("first", "second")])
    steered.wait("nodes", lambda: node(api, "first") and node(api, "second"))
    assert node(api, "first") == node(api, "second")
    for claim in api.list("ResourceClaim"):
        managers = {
            entry["manager"]
            for entry in claim["metadata"]["managedFields"]
            if "f:allocation" in entry["fieldsV1"].get("f:status", {})
        }
        assert managers == {"kube-scheduler"}
    api.delete("ResourceClaim", "both", grace=0)


def test_more_pods_than_there_is_room_for_use_it_all_and_the_others_keep_the_gate(
    steered: Site, pods: list[str]
) -> None:
    for number in range(8):
        start(steered, pods, f"large-{number}", "mig-7g.40gb")
    steered.wait("six", lambda: sum(bool(node(steered.api, p)) for p in pods) == 6)
    waiting = [p for p in pods if not node(steered.api, p)]
    for name in waiting:
        assert steered.api.get("Pod", name)["spec"]["schedulingGates"], name
    freed = next(p for p in pods if p not in waiting)
    steered.api.delete("Pod", freed, grace=0)
    pods.remove(freed)
    steered.wait("one more", lambda: any(node(steered.api, p) for p in waiting))


def test_a_gang_that_kube_scheduler_knows_is_sent_together(steered: Site, pods: list[str]) -> None:
    group: Obj = {"apiVersion": GROUPS, "kind": "PodGroup", "metadata": {"name": "gang"}}
    steered.api.create(group | {"spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}})
    for number in range(3):
        spec = {"schedulingGroup": {"podGroupName": "gang"}}
        start(steered, pods, f"gang-{number}", "mig-3g.20gb", **spec)
    start(steered, pods, "alone", "mig-7g.40gb")
    bound(steered, ["alone"])
    assert not any(sent_to(steered.api, f"gang-{n}") for n in range(3)), "one is missing"
    start(steered, pods, "gang-3", "mig-3g.20gb", schedulingGroup={"podGroupName": "gang"})
    # kube-scheduler looks for a place for all of a gang, and need not keep to nominations.
    steered.wait("nodes", lambda: all(node(steered.api, name) for name in pods))
    assert all(sent_to(steered.api, f"gang-{n}") for n in range(4))
    steered.assert_disjoint()
    steered.api.delete("PodGroup", "gang", grace=0)


def test_a_quota_of_kubernetes_holds_and_a_pod_goes_on_when_it_has_room(
    steered: Site, pods: list[str]
) -> None:
    api, quota = steered.api, "/api/v1/namespaces/default/resourcequotas"
    classes = ("mig-1g.5gb", "gpu.dra.dev")
    hard = {f"{each}.deviceclass.resource.k8s.io/devices": "1" for each in classes}
    api.request("POST", quota, body={"metadata": {"name": "slices"}, "spec": {"hard": hard}})
    slices = f"{quota}/slices"
    steered.wait("quota", lambda: api.request("GET", slices).get("status", {}).get("hard"))
    start(steered, pods, "first", *classes[:1])
    start(steered, pods, "whole", *classes[1:])
    bound(steered, pods)
    start(steered, pods, "second", "mig-2g.10gb", *classes[:1])
    start(steered, pods, "another", *classes[1:])

    def told() -> bool:
        events = [e for e in api.list("Event") if e["reason"] == "FailedResourceClaimCreation"]
        texts = [e["message"] for e in events if "exceeded quota: slices" in e["message"]]
        return all(any(f"limited: {name}=1" in text for text in texts) for name in hard)

    steered.wait("reason", told)
    assert not any(sent_to(api, name) for name in pods[2:])
    for name in pods[:2]:
        api.delete("Pod", name, grace=0)
    bound(steered, pods[2:])
    api.request("DELETE", slices)


def test_a_pod_goes_where_another_driver_has_what_it_wants(steered: Site, pods: list[str]) -> None:
    api = steered.api
    selector = {"cel": {"expression": f"device.driver == '{NIC}'"}}
    kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": NIC}}
    api.create({**kind, "spec": {"selectors": [selector]}})
    pool = {"name": "c-nic", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": NIC, "nodeName": "c", "pool": pool, "devices": [{"name": "nic-0"}]}
    published: Obj = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    api.create({**published, "metadata": {"name": "c-nic"}, "spec": spec})
    named(api, "nic", {"name": "n", "exactly": {"deviceClassName": NIC}})
    start(steered, pods, "with-nic", "mig-1g.5gb", "nic")
    bound(steered, pods)
    assert node(api, "with-nic") == "c"
    api.delete("ResourceSlice", "c-nic", grace=0)


def test_a_pod_that_the_controller_is_wrong_about_is_bound_elsewhere_or_left_to_kube_scheduler(
    steered: Site, pods: list[str]
) -> None:
    """Of a port in use by a pod of another scheduler, say: here a taint that comes just then."""
    api = steered.api
    for name in ("a", "b"):
        api.patch("Node", name, {"spec": {"unschedulable": True}})
    start(steered, pods, "moved", "mig-1g.5gb")
    bound(steered, pods)
    assert node(api, "moved") == "c"
    for name in ("a", "b"):
        api.patch("Node", name, {"spec": {"unschedulable": None}})


def test_whole_gpus_and_shares_go_where_they_were_sent_until_all_are_given(
    steered: Site, pods: list[str]
) -> None:
    """Two whole GPUs, eight shares of two others, shares of slices beside slices."""
    api = steered.api
    for number in range(3):
        start(steered, pods, f"gpu-{number}", "gpu.dra.dev")
    for number in range(10):
        start(steered, pods, f"part-{number}", "gpu-share.dra.dev")
    for number in range(6):
        start(steered, pods, f"of-slice-{number}", "mig-share.dra.dev")
    start(steered, pods, "slice-and-share", "mig-2g.10gb", "mig-share.dra.dev")
    steered.wait("nodes", lambda: sum(bool(node(api, p)) for p in pods) == len(pods) - 3)
    waiting = [p for p in pods if not node(api, p)]
    assert sorted(p.rpartition("-")[0] for p in waiting) == ["gpu", "part", "part"]
    for name in waiting:
        assert api.get("Pod", name)["spec"]["schedulingGates"], name
    bound(steered, [p for p in pods if p not in waiting])


def test_without_the_controller_pods_with_the_gate_wait_and_others_do_not(
    steered: Site, pods: list[str]
) -> None:
    steered.driver.controller.stop()
    start(steered, pods, "gated", "mig-3g.20gb")
    for number in range(3):
        start(steered, pods, f"free-{number}", "mig-3g.20gb", schedulingGates=[])
    steered.wait("nodes", lambda: all(node(steered.api, name) for name in pods[1:]))
    assert steered.api.get("Pod", "gated")["spec"]["schedulingGates"]
    steered.driver.controller.start()
    bound(steered, ["gated"])


def test_pods_go_to_nodes_of_both_kinds_beside_pods_without_the_gate(
    binaries: Binaries, root: Path
) -> None:
    """Each pod ends once it has a node, so that all of them have one in the end."""
    kinds = [(each,) for each in (*SLICES[:3], *CLASSES[4:6])] + [SLICES[:2]]
    nodes = {f"{who}-{n}": (who, 2) for who in ("controller", "scheduler") for n in range(3)}
    off, shared = tuple(n for n in nodes if n[-1] != "0"), ("controller-2", "scheduler-2")
    seen: set[tuple[bool, str]] = set()
    with site(binaries, root / "bk", nodes, {}, whole=off, shared=shared) as made:
        for number in range(3):
            made.wait("slices", lambda number=number: made.published(f"scheduler-{number}"))
        for name in CLASSES:
            template(made.api, name)
        for number in range(120):
            free: dict[str, Any] = {"schedulingGates": []} if number % 4 == 0 else {}
            start(made, [], f"p-{number:03}", *kinds[number % len(kinds)], **free)

        def all_served() -> bool:
            made.assert_disjoint()
            left = made.api.list("Pod")
            for each in left:
                name, where = each["metadata"]["name"], each["spec"].get("nodeName")
                if where:
                    seen.add((int(name[2:]) % 4 > 0, where.partition("-")[0]))
                    made.api.delete("Pod", name, grace=0)
            return not left

        made.wait("service of all", all_served, timeout=240)
    assert seen >= {(True, "controller"), (True, "scheduler"), (False, "scheduler")}
