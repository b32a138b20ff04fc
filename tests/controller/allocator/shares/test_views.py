"""adminAccess: claims that look at whole GPUs and hold nothing."""

from __future__ import annotations

import pytest

from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import (
    FINALIZER,
    claim,
    gpu,
    mignode,
    node,
    pod,
    request,
)

EVERY = request("look", "gpu.dra.dev", adminAccess=True, allocationMode="All")
WHOLE = request("r", "mig-7g.40gb")


def full(*nodes: str, gpus: int = 1) -> Bench:
    """Every GPU is held, in MIG mode."""
    bench = Bench(*nodes)
    for name in nodes:
        bench.cluster.set_mignode(mignode(name, *(gpu(n, name) for n in range(gpus))))
        for number in range(gpus):
            bench.ask(f"{name}-{number}", f"{name}-{number}", WHOLE)
    bench.run()
    return bench


def test_all_gpus_of_a_node_are_looked_at_whoever_holds_them() -> None:
    bench = full("a", gpus=2)
    bench.serve("monitor", "view", EVERY)
    found = bench.results("view")
    assert [(r["device"], r["adminAccess"]) for r in found] == [("gpu-0", True), ("gpu-1", True)]
    assert bench.finalizers("view") == [FINALIZER]


@pytest.mark.parametrize(
    ("requests", "told"),
    [
        ([request("look", "mig-1g.5gb", adminAccess=True)], "use class gpu.dra.dev"),
        ([request("look", "gpu.dra.dev", adminAccess=True, count=2)], "a smaller count"),
    ],
)
def test_what_cannot_be_looked_at_is_told(requests: list[object], told: str) -> None:
    bench = full("a")
    bench.claim(claim("view", *requests))  # type: ignore[arg-type]
    bench.pod(pod("monitor", "view"))
    bench.run()
    assert not bench.devices("view")
    (reason, message) = bench.recorder.events[-1][2:]
    assert reason == "NothingToLookAt"
    assert told in message


def test_a_node_where_the_monitor_cannot_run_is_named() -> None:
    bench = full("a")
    bench.cluster.set_node(node("a", unschedulable=True))
    bench.serve("monitor", "view", EVERY)
    assert "a: node unschedulable" in bench.recorder.events[-1][3]


def test_a_pod_that_would_look_and_hold_is_told_to_be_two() -> None:
    bench = Bench("a")
    bench.claim(claim("view", EVERY))
    bench.claim(claim("c"))
    bench.pod(pod("p", "c", "view"))
    bench.run()
    assert not bench.devices("view")
    assert not bench.devices("c")
    assert "use two pods" in bench.recorder.events[-1][3]
    assert bench.recorder.events[-1][:3] == ("ResourceClaim", "view", "UnsupportedRequest")
