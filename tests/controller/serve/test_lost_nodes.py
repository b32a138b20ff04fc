"""Allocations on nodes that are gone or tainted before their pod is bound."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from api.mignode import SILENT_SECONDS
from controller import times
from dra.kube.timing import rfc3339
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import mignode, node, pod

TAINT = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def goes(bench: Bench) -> None:
    bench.cluster.remove_node("node-a")


def is_not_ready(bench: Bench) -> None:
    obj = node("node-a", taints=[TAINT])
    obj["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    bench.cluster.set_node(obj)


def is_cordoned(bench: Bench) -> None:
    bench.cluster.set_node(node("node-a", unschedulable=True))


def allocated(**spec: Any) -> Bench:
    """A claim that is allocated on node-a, for a pod that nobody has bound; node-b comes later."""
    bench = Bench("node-a")
    bench.serve("p", "c", **spec)
    assert bench.node_of("c") == "node-a"
    return bench


def and_node_b(bench: Bench) -> None:
    other = Bench("node-b")
    facts, gpus = other.cluster.hosts.facts["node-b"], other.cluster.fleet.nodes["node-b"]
    bench.cluster.set_node(node("node-b"))
    bench.cluster.hosts.set_node(facts)
    bench.cluster.fleet.set_inventory(gpus.inventory)
    bench.cluster.make_room()


@pytest.mark.parametrize("happens", [goes, is_not_ready, is_cordoned])
def test_what_nobody_uses_is_given_up_and_placed_elsewhere(
    happens: Callable[[Bench], None],
) -> None:
    bench = allocated()
    and_node_b(bench)
    happens(bench)
    bench.run(seconds=1.0)
    assert bench.node_of("c") == "node-a", "the node may come back at once"
    bench.run(seconds=times.NODE_LOST)
    bench.run(seconds=1.0)
    assert bench.node_of("c") == "node-b"
    assert "AllocationTakenBack" in bench.recorder.reasons("c")


@pytest.mark.parametrize("happens", [goes, is_not_ready, is_cordoned])
def test_a_node_that_comes_back_in_time_keeps_it(happens: Callable[[Bench], None]) -> None:
    bench = allocated()
    and_node_b(bench)
    happens(bench)
    bench.run(seconds=times.NODE_LOST / 2)
    bench.cluster.set_node(node("node-a"))
    bench.run(seconds=1.0)
    bench.run(seconds=times.NODE_LOST)
    assert bench.node_of("c") == "node-a"
    happens(bench)
    bench.run(seconds=times.NODE_LOST / 2)
    assert bench.node_of("c") == "node-a", "the time away is counted anew"


def test_a_pod_that_tolerates_the_taint_keeps_it_and_may_be_placed_there() -> None:
    bench = allocated(tolerations=[{"key": TAINT["key"], "operator": "Exists"}])
    is_not_ready(bench)
    for _ in range(3):
        bench.run(seconds=times.NODE_LOST)
    assert bench.node_of("c") == "node-a"
    for name, tolerations in (("tolerates", [{"operator": "Exists"}]), ("does-not", [])):
        bench.ask(f"p-{name}", name, tolerations=tolerations)
    bench.run()
    assert bench.node_of("tolerates") == "node-a"
    assert not bench.devices("does-not")


def test_a_claim_that_several_pods_wait_with_is_given_up_too() -> None:
    bench = allocated()
    bench.pod(pod("other", "c"))
    and_node_b(bench)
    bench.run()
    goes(bench)
    bench.run()
    bench.run(seconds=times.NODE_LOST)
    bench.run(seconds=1.0)
    assert bench.node_of("c") == "node-b"


def test_a_claim_stays_where_one_of_its_pods_tolerates_the_taint() -> None:
    bench = allocated()
    bench.pod(pod("other", "c", tolerations=[{"operator": "Exists"}]))
    is_not_ready(bench)
    for _ in range(3):
        bench.run(seconds=times.NODE_LOST)
    assert bench.node_of("c") == "node-a"


def test_a_node_with_a_silent_plugin_comes_last_and_heartbeats_bring_no_work() -> None:
    bench = Bench("node-a", "node-b")

    def beat(name: str, *, ago: float) -> None:
        obj = mignode(name)
        then = bench.world.requests.now() - timedelta(seconds=ago)
        obj["status"]["lastHeartbeatTime"] = rfc3339(then)
        bench.cluster.set_mignode(obj)

    for name in ("node-a", "node-b"):
        beat(name, ago=0.0)
    bench.run(seconds=1.0)
    beat("node-a", ago=SILENT_SECONDS - 20)
    assert not bench.cluster.take_effects().room, "a heartbeat makes no room"
    beat("node-a", ago=SILENT_SECONDS + 20)
    beat("node-b", ago=0.0)
    for number in range(8):  # the eighth finds no room elsewhere
        bench.serve(f"p{number}", f"c{number}")
    assert [bench.node_of(f"c{n}") for n in range(8)] == ["node-b"] * 7 + ["node-a"]
    beat("node-b", ago=SILENT_SECONDS + 20)
    assert bench.cluster.silent_nodes(bench.world.requests.now()) == set(), "all are: none is last"


@pytest.mark.parametrize("happens", [goes, is_not_ready, is_cordoned])
def test_a_pod_that_is_bound_keeps_it(happens: Callable[[Bench], None]) -> None:
    bench = allocated()
    bound = pod("p", "c", nodeName="node-a")
    bench.pod(bound)
    happens(bench)
    for _ in range(3):
        bench.run(seconds=times.NODE_LOST)
    assert bench.node_of("c") == "node-a"


def test_a_claim_that_another_pod_uses_stays() -> None:
    bench = allocated()
    bench.pod(pod("other", "c", nodeName="node-a"))
    goes(bench)
    for _ in range(3):
        bench.run(seconds=times.NODE_LOST)
    assert bench.node_of("c") == "node-a"
