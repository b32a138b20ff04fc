"""Allocations that a node takes back: where they go, and how often a node is asked again."""

from __future__ import annotations

from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, pod, versioned


def test_all_claims_of_a_pod_move_when_one_is_taken_back() -> None:
    bench = Bench("node-a", "node-b")
    for name in ("one", "two"):
        bench.claim(claim(name))
    bench.pod(pod("p", "one", "two"))
    bench.run()
    assert bench.node_of("one") == bench.node_of("two") == "node-a"
    bench.change_claim("one", allocation=None)
    bench.run()
    assert bench.node_of("one") == bench.node_of("two") == "node-b"
    assert "AllocationTakenBack" in bench.recorder.reasons("one")
    assert "AllocationTakenBack" not in bench.recorder.reasons("two")


def test_a_claim_that_somebody_uses_does_not_move() -> None:
    bench = Bench("node-a", "node-b")
    for name in ("one", "two"):
        bench.claim(claim(name))
    bench.pod(pod("p", "one", "two"))
    bench.run()
    consumers = [{"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in ("p", "q")]
    bench.change_claim("two", reservedFor=consumers)
    bench.change_claim("one", allocation=None)
    bench.run()
    assert bench.node_of("two") == "node-a"
    assert bench.devices("one") == []


def test_where_others_have_to_end_for_a_pod_it_is_tried_once_more() -> None:
    """kube-scheduler has them end when it takes the allocation back, as the claim was before."""
    bench = Bench()
    for name in ("a", "b"):
        bench.add_node(name, cpu="4")
        bench.cluster.set_pod(versioned(pod(f"on-{name}", cpu="4", nodeName=name)))
    bench.ask("p", "c", cpu="3", priority=100)
    nodes = []
    for _ in range(3):
        bench.run()
        nodes.append(bench.node_of("c"))
        bench.change_claim("c", allocation=None)
    assert nodes == ["a", "a", "b"]
    messages = [m for _, _, reason, m in bench.recorder.events if reason == "AllocationTakenBack"]
    assert "a is tried once more" in messages[0]
    bench.run()
    assert bench.node_of("c") == "b"
    bench.change_claim("c", allocation=None)
    bench.run()
    assert bench.devices("c") == [], "it is let pass once on each node"
