"""Allocated pods that no scheduler binds: what they keep from others, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from controller import times
from dra.common.resources import PODS, Obj
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import FINALIZER, claim, node, pod, request

ZONE = "topology.kubernetes.io/zone"
ALONE: Obj = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": ZONE, "labelSelector": {}, "namespaceSelector": {}}
        ]
    }
}


def add(bench: Bench, name: str, *claims: str, **spec: Any) -> bool:
    """Add a pod, with a claim of its own unless others are named; True if that is allocated."""
    if not claims:
        bench.claim(claim(name))
    bench.pod(pod(name, *(claims or (name,)), **spec))
    bench.run()
    return bool(bench.devices((claims or (name,))[0]))


@pytest.fixture
def bench() -> Bench:
    made = Bench("node-a")
    made.cluster.set_node(node("node-a", labels={ZONE: "z"}))
    return made


@pytest.mark.parametrize("gated", [False, True])
def test_a_pod_of_a_scheduler_that_is_not_named_gets_nothing_and_is_told_the_remedy(
    bench: Bench, *, gated: bool
) -> None:
    gates = {"schedulingGates": [{"name": FINALIZER}]} if gated else {}
    assert not add(bench, "p", cpu="7", schedulerName="nobody\x1b[2J", **gates)
    bench.run(seconds=60)
    told = bench.condition("p")
    assert told["reason"] == "WaitingForScheduler"
    assert "chart: schedulers" in told["message"]
    assert "\x1b" not in told["message"]
    assert add(bench, "other", cpu="2")


def test_a_pod_that_is_bound_needs_no_scheduler(bench: Bench) -> None:
    assert add(bench, "p", schedulerName="nobody", nodeName="node-a")


@pytest.mark.parametrize("wants", [{"cpu": "7"}, {"affinity": ALONE}])
def test_what_an_allocated_pod_asks_for_is_kept_free_for_a_minute(
    bench: Bench, wants: dict[str, Any]
) -> None:
    assert add(bench, "p", **wants)
    assert not add(bench, "other", cpu="2")
    bench.run(seconds=times.CHARGED - 1)
    assert not bench.devices("other")
    bench.run(seconds=1.0)
    assert bench.devices("other")
    assert bench.devices("p")


@pytest.mark.parametrize(
    "spec",
    [{}, {"schedulerName": "nobody"}, {"schedulingGates": [{"name": "example.com/mine"}]}],
    ids=["default", "nobody", "gated"],
)
def test_a_pod_takes_nothing_where_a_claim_of_others_that_it_names_happens_to_be(
    bench: Bench, spec: dict[str, Any]
) -> None:
    assert add(bench, "p")
    bench.bind("p", "node-a")
    for number in range(3):
        add(bench, f"more-{number}", "p", cpu="64", affinity=ALONE, **spec)
    assert add(bench, "other", cpu="2")


def test_what_no_scheduler_takes_up_is_given_back_and_tried_again_after_a_pause(
    bench: Bench,
) -> None:
    bench.claim(claim("p", request("r", "mig-7g.40gb")))
    assert add(bench, "p", "p")
    add(bench, "beside", "p")
    assert not add(bench, "other")
    bench.run(seconds=times.POD_NOT_BOUND - 1)
    assert bench.devices("p")
    bench.run(seconds=1.0)
    bench.run(seconds=1.0)
    assert not bench.devices("p")
    assert bench.devices("other")
    assert "WaitingForScheduler" in bench.recorder.reasons("p")
    bench.delete_pod("other")
    bench.delete_pod("beside")
    bench.run(seconds=10.0)
    assert not bench.devices("p")
    bench.run(seconds=times.POD_HINDERED_AGAIN[0])
    assert bench.devices("p")


def test_a_pod_for_which_kube_scheduler_makes_room_may_take_longer(bench: Bench) -> None:
    assert add(bench, "p")
    bench.pod({**bench.api.get(PODS, "p"), "status": {"nominatedNodeName": "node-a"}})
    bench.run(seconds=times.POD_BINDING - 1)
    assert bench.devices("p")
    bench.run(seconds=1.0)
    bench.run(seconds=1.0)
    assert not bench.devices("p")
