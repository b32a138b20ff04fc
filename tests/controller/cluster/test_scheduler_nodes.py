"""Nodes that kube-scheduler allocates, beside ours: left alone, and told of."""

from __future__ import annotations

import pytest

from dra.common.resources import RESOURCE_CLAIMS
from dra.gpu.inventory import AllocatorKind, Gpu
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import gpu, instance, mignode, node, request


def scheduled(bench: Bench, name: str) -> None:
    bench.cluster.set_node(node(name))
    bench.cluster.set_mignode(mignode(name, allocator=AllocatorKind.SCHEDULER))


def test_where_kube_scheduler_allocates_every_node_only_classes_are_written() -> None:
    bench = Bench()
    scheduled(bench, "theirs")
    bench.ask("p", "c")
    bench.run(seconds=100)
    assert set(bench.api.writes) == {"deviceclasses"}
    assert bench.recorder.events == []


@pytest.mark.parametrize(
    "full",
    [
        gpu(node="ours", mig=False),
        gpu(node="ours", instances=(instance("7g.40gb", 0, state="foreign"),)),
    ],
)
def test_a_pod_for_which_our_nodes_have_no_room_is_told_of_the_others(full: Gpu) -> None:
    bench = Bench("ours")
    bench.cluster.set_mignode(mignode("ours", full))
    scheduled(bench, "theirs")
    bench.serve("p", "c", request("r", "mig-1g.5gb"))
    (message,) = (text for _, about, _, text in bench.recorder.events if about == "p")
    assert "theirs: kube-scheduler allocates its GPUs" in message
    assert "allocation" not in bench.api.get(RESOURCE_CLAIMS, "c").get("status", {})
