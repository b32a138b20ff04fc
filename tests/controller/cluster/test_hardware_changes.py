"""Device classes follow the hardware; nodes that cannot be read, or are drained."""

from __future__ import annotations

from dra.common.resources import Obj
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import (
    device_class,
    gpu,
    mignode,
    request,
    versioned,
)


def test_a_class_of_the_same_name_that_is_not_ours_is_left_alone_and_told() -> None:
    bench = Bench()
    mine = device_class("mig-1g.5gb", "device.driver == 'mig.dra.dev'")
    bench.cluster.set_class(versioned(mine))
    bench.add_node("node-a")
    bench.run()
    assert "mig-1g.5gb" not in bench.classes()
    assert "mig-3g.20gb" in bench.classes()
    assert bench.recorder.reasons("mig-1g.5gb") == ["DeviceClassConflict"]


def drained(node_name: str, *gpus: str) -> Obj:
    """A node with two GPUs of which some, or all where none is named, are drained."""
    body = mignode(node_name, gpu(0, node_name), gpu(1, node_name))
    spec = {**body["spec"], "drain": {"gpus": list(gpus), "reason": "driver 580"}}
    return {**body, "spec": spec}


def test_nothing_is_placed_on_a_drained_gpu() -> None:
    bench = Bench("node-a")
    bench.cluster.set_mignode(drained("node-a", "gpu-0"))
    for name in "abc":
        bench.ask(name, name, request("r", "mig-3g.20gb"))
    bench.run()
    placed = [d.partition("-mig-")[0] for name in "ab" for d in bench.devices(name)]
    assert placed == ["gpu-1", "gpu-1"]
    assert not bench.devices("c")
    assert "gpu-0 drained: driver 580" in bench.recorder.events[-1][3]


def test_a_resumed_node_serves_who_waits() -> None:
    bench = Bench("node-a")
    bench.cluster.set_mignode(drained("node-a"))
    bench.serve("c", "c")
    assert not bench.devices("c")
    bench.cluster.set_mignode(mignode("node-a", gpu(0, "node-a"), gpu(1, "node-a")))
    bench.run()
    assert bench.devices("c")
