"""When a claim's allocation ends, and when our finalizer goes."""

from __future__ import annotations

import pytest

from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import FINALIZER, claim, gpu, instance, mignode, pod, request


def test_an_ended_claim_keeps_its_place_until_the_node_shows_no_slice_of_it() -> None:
    bench = Bench("node-a")
    bench.serve("p", "c", request("r", "mig-3g.20gb"))
    start = int(bench.devices("c")[0].rpartition("-")[2])
    held = instance("3g.20gb", start, uid="uid-c")
    bench.cluster.set_mignode(mignode("node-a", gpu(0, instances=(held,))))
    bench.delete_pod("p")
    bench.run(seconds=100)
    assert bench.devices("c")
    bench.cluster.set_mignode(mignode("node-a"))
    bench.run()
    assert bench.devices("c") == []
    assert bench.finalizers("c") == []


@pytest.mark.parametrize("how", ["node gone", "slice gone"])
def test_a_deleted_claim_is_released(how: str) -> None:
    bench = Bench("node-a")
    bench.serve("p", "c")
    held = instance("1g.5gb", 0, uid="uid-c", state="reclaiming")
    bench.cluster.set_mignode(mignode("node-a", gpu(0, instances=(held,))))
    bench.delete_claim("c")
    bench.delete_pod("p")
    bench.run(seconds=100)
    assert bench.finalizers("c") == [FINALIZER]
    if how == "node gone":
        bench.cluster.remove_node("node-a")
    else:
        bench.cluster.set_mignode(mignode("node-a"))
    bench.run()
    assert bench.finalizers("c") == []


def test_a_pods_own_claim_is_left_to_be_deleted_with_it() -> None:
    bench = Bench("node-a")
    body = claim("c")
    body["metadata"]["ownerReferences"] = [
        {"kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}
    ]
    bench.claim(body)
    bench.pod(pod("p", "c"))
    bench.run()
    bench.delete_pod("p")
    bench.run()
    assert bench.devices("c")
    bench.run(seconds=5.1)
    assert bench.devices("c") == []
