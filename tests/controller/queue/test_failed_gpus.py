"""GPUs on which a slice could not be made: nothing else is placed there for a while."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller import times
from controller.queue.refusals import BY_GPU
from dra.gpu.inventory import FailedClaim, Gpu
from dra.gpu.mignode import to_mignode
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import (
    allocated,
    claim,
    gpu,
    instance,
    inventory,
    pod,
    versioned,
)

TIME = "2026-01-01T00:10:00.{:06d}Z"
BEST = [gpu(0, instances=(instance("1g.5gb", 6),)), gpu(1)]
"""Of these the first is taken for a small slice."""


REFUSING = "GPU-node-a-0"

FIRST = times.GPU_FAILED[0]


def fails(
    bench: Bench,
    number: int,
    *gpus: Gpu,
    claim_name: str = "c",
    ready: bool = True,
    by: str = REFUSING,
) -> None:
    """node-a says that a claim on its gpu-0 was refused once more, by that GPU."""
    uid = f"uid-{claim_name}"
    failed = FailedClaim("default", claim_name, uid, TIME.format(number), gpu=by)
    said = replace(inventory("node-a", *(gpus or BEST)), failed_claims=(failed,), ready=ready)
    bench.cluster.set_mignode(versioned(to_mignode(said)))
    bench.run()


def with_claim() -> Bench:
    """Claims c and d that are allocated at 0 and 1 of gpu-0; their pods are bound."""
    bench = Bench("node-a")
    for start, name in enumerate("cd"):
        bench.claim(allocated(claim(name), "node-a", f"gpu-0-mig-1g5gb-19-{start}"))
        bound = pod(f"p-{name}", name, nodeName="node-a")
        bench.pod({**bound, "status": {"phase": "Pending"}})
    bench.run()
    bench.cluster.set_mignode(versioned(to_mignode(inventory("node-a", *BEST))))
    bench.run()
    return bench


def place(bench: Bench, name: str) -> str:
    """The GPU that another pod gets a slice on; empty if it waits."""
    bench.serve(f"pod-{name}", name)
    return next((device.partition("-mig")[0] for device in bench.devices(name)), "")


def is_out(bench: Bench) -> bool:
    """True if nothing is given out of the first GPU."""
    return bench.cluster.fleet.nodes["node-a"].gpus[0].blocked == BY_GPU


def test_after_a_failure_another_gpu_is_taken_for_a_while() -> None:
    bench = with_claim()
    fails(bench, 1)
    assert place(bench, "n") == "gpu-1"
    bench.run(seconds=FIRST - 1)
    assert place(bench, "o") == "gpu-1"
    bench.run(seconds=1)
    assert not is_out(bench)


@pytest.mark.parametrize("by", ["", "GPU-node-a-1", "GPU-elsewhere"])
def test_a_failure_that_is_not_of_the_gpu_that_a_claim_has_leaves_none_out(by: str) -> None:
    bench = with_claim()
    fails(bench, 1, by=by)
    assert place(bench, "n") == "gpu-0"
    assert bench.cluster.fleet.nodes["node-a"].gpus[1].blocked == ""


def test_a_gpu_that_refuses_one_claim_again_and_again_has_refused_one() -> None:
    bench = with_claim()
    fails(bench, 1)
    for number in range(2, 12):
        bench.run(seconds=FIRST / 10)
        fails(bench, number)
    assert not is_out(bench)
    assert place(bench, "n") == "gpu-0"


def test_the_next_claim_that_a_gpu_refuses_has_it_stay_out_twice_as_long() -> None:
    bench = with_claim()
    fails(bench, 1)
    bench.run(seconds=FIRST)
    fails(bench, 1)
    assert not is_out(bench)
    fails(bench, 2, claim_name="d")
    bench.run(seconds=2 * FIRST - 1)
    assert is_out(bench)
    bench.run(seconds=1)
    assert not is_out(bench)


def test_what_shows_by_itself_is_not_remembered() -> None:
    bench = with_claim()
    held = gpu(0, instances=(instance("1g.5gb", 0, uid="x"), instance("1g.5gb", 6)))
    fails(bench, 1, held, gpu(1))
    assert place(bench, "n") == "gpu-0"
    fails(bench, 2, ready=False)
    bench.cluster.set_mignode(versioned(to_mignode(inventory("node-a", *BEST))))
    bench.run()
    assert place(bench, "o") == "gpu-0"


def test_a_failure_of_a_claim_that_is_not_there_says_nothing_of_a_gpu() -> None:
    bench = with_claim()
    fails(bench, 1, claim_name="other")
    assert place(bench, "n") == "gpu-0"
