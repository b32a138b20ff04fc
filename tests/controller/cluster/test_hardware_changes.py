"""Device classes follow the hardware; nodes that cannot be read, or are drained."""

from __future__ import annotations

import copy

import pytest

from dra.common.resources import RESOURCE_CLAIMS, Obj
from dra.kube.reflector import Change
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import (
    claim,
    gpu,
    mignode,
    pod,
    request,
)


def drained(node_name: str, *gpus: str) -> Obj:
    """A node with two GPUs of which some, or all where none is named, are drained."""
    body = mignode(node_name, gpu(0, node_name), gpu(1, node_name))
    spec = {**body["spec"], "drain": {"gpus": list(gpus), "reason": "driver 580"}}
    return {**body, "spec": spec}


def test_a_resumed_node_serves_who_waits() -> None:
    bench = Bench("node-a")
    bench.cluster.set_mignode(drained("node-a"))
    bench.serve("c", "c")
    assert not bench.devices("c")
    bench.cluster.set_mignode(mignode("node-a", gpu(0, "node-a"), gpu(1, "node-a")))
    bench.run()
    assert bench.devices("c")


# -- a restore of etcd takes the cluster back: what was known from later versions is not kept


@pytest.mark.parametrize("rewound", [True, False])
def test_an_allocation_of_later_than_the_snapshot_is_forgotten(*, rewound: bool) -> None:
    """Without a restore an older state is one that a slow watch still reports."""
    bench = Bench("node-a")
    before = copy.deepcopy(bench.claim(claim("c", request("r", "mig-7g.40gb"))))
    bench.pod(pod("p", "c"))
    bench.run()
    assert bench.devices("c")
    after = bench.api.get(RESOURCE_CLAIMS, "c")
    assert int(before["metadata"]["resourceVersion"]) < int(after["metadata"]["resourceVersion"])
    bench.api.objects["resourceclaims", "c"] = before
    change = Change("modified", after, before, rewound=rewound)
    bench.cluster.apply(RESOURCE_CLAIMS, change)
    known = bench.cluster.claims["default", "c"].claim
    assert (known.allocation is None) == rewound
    bench.remove_pod("p")
    bench.ask("q", "other", request("r", "mig-7g.40gb"))
    bench.run(seconds=1.0)
    assert bool(bench.devices("other")) == rewound
