"""The scheduler stand-in against an API server: claims that others allocate, and nodes."""

from __future__ import annotations

from collections.abc import Iterator
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


@pytest.mark.usefixtures("two_nodes")
def test_an_allocated_claim_binds_its_pod_to_the_claims_node_and_reserves_it(api: KubeApi) -> None:
    pod = _pod_with_claim(api)
    _says(api, "a", "cannot allocate all claims")
    allocate(api, "a-claim", "node-b")
    _bound(api, "a", "node-b")
    reserved = get_claim(api, "a-claim")["status"]["reservedFor"]
    assert [c["uid"] for c in reserved] == [pod["metadata"]["uid"]]


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
