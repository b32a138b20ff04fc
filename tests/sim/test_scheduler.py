"""The scheduler stand-in against an API server: claims that others allocate, and nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dra.common.resources import NODES, PODS, Obj
from dra.kube.client import KubeApi
from sim.scheduler import Scheduler
from tests.helpers.waiting import wait_for
from tests.sim import standins
from tests.sim.standins import allocate, get_claim, get_pod, holds_for


@pytest.fixture
def scheduler(api: KubeApi) -> Iterator[Scheduler]:
    scheduler = Scheduler(api)
    scheduler.start()
    yield scheduler
    scheduler.stop()


@pytest.fixture
def two_nodes(api: KubeApi, scheduler: Scheduler) -> None:
    for name in ("node-a", "node-b"):
        standins.create_node(api, name)
    standins.create_class(api)


def _node(api: KubeApi, name: str) -> str:
    return str(get_pod(api, name)["spec"].get("nodeName", ""))


def _bound(api: KubeApi, name: str, node: str) -> None:
    wait_for(f"{name} bound", lambda: _node(api, name))
    assert _node(api, name) == node


def _condition(api: KubeApi, name: str) -> str:
    conditions = get_pod(api, name).get("status", {}).get("conditions", ())
    return next(
        (c["message"] for c in conditions if c["type"] == "PodScheduled" and "message" in c), ""
    )


def _says(api: KubeApi, name: str, text: str) -> None:
    wait_for(
        f"condition {text!r}, not {_condition(api, name)!r}", lambda: text in _condition(api, name)
    )


def _pod_with_claim(api: KubeApi, name: str = "a", **spec: Any) -> Obj:
    standins.create_claim(api, f"{name}-claim")
    return api.create(
        PODS, standins.pod(name, claim={"resourceClaimName": f"{name}-claim"}, **spec)
    )


def _wants(cpu: str) -> Callable[[Obj], Obj]:
    def change(pod: Obj) -> Obj:
        pod["spec"]["containers"][0]["resources"] |= {"requests": {"cpu": cpu}}
        return pod

    return change


@pytest.mark.usefixtures("two_nodes")
def test_a_claim_that_nobody_allocated_makes_the_pod_wait_with_the_reason(api: KubeApi) -> None:
    _pod_with_claim(api)
    _says(api, "a", "0/2 nodes are available: 2 cannot allocate all claims.")


@pytest.mark.usefixtures("two_nodes")
def test_an_allocated_claim_binds_its_pod_to_the_claims_node_and_reserves_it(api: KubeApi) -> None:
    pod = _pod_with_claim(api)
    _says(api, "a", "cannot allocate all claims")
    allocate(api, "a-claim", "node-b")
    _bound(api, "a", "node-b")
    reserved = get_claim(api, "a-claim")["status"]["reservedFor"]
    assert [c["uid"] for c in reserved] == [pod["metadata"]["uid"]]


@pytest.mark.usefixtures("two_nodes")
def test_an_allocation_without_timestamp_is_never_bound(api: KubeApi) -> None:
    _pod_with_claim(api)
    allocate(api, "a-claim", "node-b", timestamp=False)
    _says(api, "a", "immutable")
    assert _node(api, "a") == ""


@pytest.mark.usefixtures("two_nodes")
def test_a_gated_pod_is_left_alone(api: KubeApi) -> None:
    _pod_with_claim(api, schedulingGates=[{"name": "test"}])
    allocate(api, "a-claim", "node-a")
    assert holds_for(0.4, lambda: "reservedFor" not in get_claim(api, "a-claim")["status"])
    assert _node(api, "a") == ""
    api.patch(PODS, "a", {"spec": {"schedulingGates": None}}, namespace="default")
    _bound(api, "a", "node-a")


@pytest.mark.usefixtures("two_nodes")
def test_an_allocation_to_a_node_that_the_pod_cannot_use_is_taken_back(api: KubeApi) -> None:
    _pod_with_claim(api, nodeSelector={"name": "node-b"})
    allocate(api, "a-claim", "node-a")
    wait_for("erasure", lambda: "allocation" not in get_claim(api, "a-claim").get("status", {}))
    allocate(api, "a-claim", "node-b")
    _bound(api, "a", "node-b")


@pytest.mark.usefixtures("two_nodes")
def test_an_allocation_is_taken_back_when_its_node_is_full_and_another_is_not(api: KubeApi) -> None:
    api.create(PODS, _wants("3")(standins.pod("big", nodeSelector={"name": "node-a"})))
    _bound(api, "big", "node-a")
    standins.create_claim(api, "c")
    api.create(PODS, _wants("2")(standins.pod("a", claim={"resourceClaimName": "c"})))
    allocate(api, "c", "node-a")
    wait_for("erasure", lambda: "allocation" not in get_claim(api, "c").get("status", {}))


@pytest.mark.usefixtures("two_nodes")
def test_an_allocation_stays_when_no_node_has_what_the_pod_needs_besides(api: KubeApi) -> None:
    standins.create_claim(api, "c")
    api.create(PODS, _wants("100")(standins.pod("a", claim={"resourceClaimName": "c"})))
    allocate(api, "c", "node-a")
    _says(api, "a", "2 insufficient cpu")
    assert holds_for(0.4, lambda: "allocation" in get_claim(api, "c")["status"])


@pytest.mark.usefixtures("two_nodes")
def test_pods_go_to_the_node_with_the_most_room(api: KubeApi) -> None:
    api.create(PODS, _wants("1")(standins.pod("first", nodeSelector={"name": "node-a"})))
    _bound(api, "first", "node-a")
    api.create(PODS, _wants("1")(standins.pod("second")))
    _bound(api, "second", "node-b")


@pytest.mark.usefixtures("scheduler")
def test_taints_and_cordons_keep_pods_away_until_they_are_gone(api: KubeApi) -> None:
    standins.create_node(
        api, "tainted", taints=[{"key": "k", "value": "v", "effect": "NoSchedule"}]
    )
    standins.create_node(api, "cordoned", unschedulable=True)
    api.create(PODS, standins.pod("a"))
    _says(api, "a", "1 node unschedulable, 1 untolerated taint k=v:NoSchedule")
    tolerations = [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}]
    api.create(PODS, standins.pod("b", tolerations=tolerations))
    _bound(api, "b", "tainted")
    api.patch(NODES, "cordoned", {"spec": {"unschedulable": None}})
    _bound(api, "a", "cordoned")


@pytest.mark.usefixtures("scheduler")
def test_a_full_node_takes_the_next_pod_when_one_leaves(api: KubeApi) -> None:
    standins.create_node(api, "node-a", cpu="1")
    api.create(PODS, _wants("1")(standins.pod("first")))
    _bound(api, "first", "node-a")
    api.create(PODS, _wants("1")(standins.pod("second")))
    _says(api, "second", "1 insufficient cpu")
    api.delete(PODS, "first", namespace="default", grace_seconds=0)
    _bound(api, "second", "node-a")
