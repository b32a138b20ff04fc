"""Allocations on nodes that are gone or tainted before their pod is bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from controller import times
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import node, pod

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
def test_a_pod_that_is_bound_keeps_it(happens: Callable[[Bench], None]) -> None:
    bench = allocated()
    bound = pod("p", "c", nodeName="node-a")
    bench.pod(bound)
    happens(bench)
    for _ in range(3):
        bench.run(seconds=times.NODE_LOST)
    assert bench.node_of("c") == "node-a"
