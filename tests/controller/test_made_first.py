"""Pods with the scheduling gate that are bound only once their slices are made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.lifecycle.failures.made_first import ANSWER_SECONDS
from dra.common.resources import PODS, Obj
from dra.gpu.inventory import ClaimRef, FailedClaim, Gpu, Instance, InstanceState
from dra.gpu.mignode import to_mignode
from dra.gpu.names import MigDevice, parse_device
from dra.kube.left_out import FIRST_SECONDS
from tests.controller.bench import Bench
from tests.controller.objects import DRIVER, FINALIZER, claim, gpu, inventory, pod, versioned
from tests.dra.gpus import A100

GATE = {"name": FINALIZER}
TIME = "2026-01-01T00:10:00.{:06d}Z"


def config(bind_when: str) -> Obj:
    parameters = {
        "apiVersion": "mig.dra.dev/v1alpha1",
        "kind": "MigDeviceConfig",
        "preparation": {"bindWhen": bind_when},
    }
    return {"opaque": {"driver": DRIVER, "parameters": parameters}}


def waiting(*nodes: str, bind_when: str = "made", gated: bool = True) -> Bench:
    """A pod whose claim was allocated just now, on one of the nodes, each with two A100."""
    bench = Bench(*(nodes or ("node-a",)))
    for name in nodes or ("node-a",):
        says(bench, name)
    add(bench, "c", bind_when=bind_when, gated=gated)
    return bench


def add(bench: Bench, name: str, *, bind_when: str = "made", gated: bool = True) -> None:
    bench.claim(claim(name, config=[config(bind_when)] if bind_when else []))
    bench.pod(pod(f"pod-{name}", name, schedulingGates=[GATE] if gated else []))
    bench.run()


def gates(bench: Bench, name: str = "pod-c") -> list[Obj]:
    found: list[Obj] = bench.api.get(PODS, name)["spec"].get("schedulingGates", [])
    return found


def says(
    bench: Bench, node: str = "node-a", *, made: str = "", failed: str = "", claim_name: str = "c"
) -> None:
    """A node says that the slice of a claim is there, as the state ``made``, or when it failed."""
    ref = ClaimRef("default", claim_name, f"uid-{claim_name}")
    gpus = [gpu(0, node), gpu(1, node)]
    if made:
        device = parse_device(bench.devices(claim_name)[0])
        assert isinstance(device, MigDevice)
        gpus[device.minor] = _with_slice(gpus[device.minor], device, ref, made)
    failures = (FailedClaim(ref, failed),) if failed else ()
    said = replace(inventory(node, *gpus), failed_claims=failures)
    bench.cluster.set_mignode(versioned(to_mignode(said)))
    bench.run()


def _with_slice(known: Gpu, device: MigDevice, ref: ClaimRef, state: str) -> Gpu:
    profile = A100.by_id(device.profile_id)
    assert profile is not None
    placement = next(p for p in profile.placements if p.start == device.start)
    made = Instance(placement, InstanceState(state), profile.id, profile.name, claim=ref)
    return replace(known, instances=(made,))


def test_the_gate_is_lifted_once_the_slice_is_made() -> None:
    bench = waiting()
    assert bench.devices("c")
    assert gates(bench) == [GATE]
    says(bench, made="preparing")
    assert gates(bench) == [GATE]
    says(bench, made="prepared")
    assert gates(bench) == []


@pytest.mark.parametrize("bind_when", ["allocated", ""])
def test_without_the_wish_it_is_lifted_at_once(bind_when: str) -> None:
    assert gates(waiting(bind_when=bind_when)) == []


def test_a_pod_without_the_gate_is_allocated_as_ever() -> None:
    bench = waiting(gated=False)
    assert bench.devices("c")
    bench.run(seconds=2 * ANSWER_SECONDS)
    assert bench.devices("c")


def test_what_could_not_be_made_is_placed_on_another_gpu_and_the_pod_waits_on() -> None:
    bench = waiting()
    (before,) = bench.devices("c")
    says(bench, failed=TIME.format(1))
    (after,) = bench.devices("c")
    assert {parse_device(d).minor for d in (before, after)} == {0, 1}
    assert gates(bench) == [GATE]
    assert "AllocationTakenBack" in bench.recorder.reasons("c")
    says(bench, failed=TIME.format(1))
    assert bench.devices("c") == [after], "what the node said before is of the place before"
    says(bench, made="prepared")
    assert gates(bench) == []


def test_where_no_gpu_is_left_on_the_node_another_node_is_taken() -> None:
    bench = waiting("node-a", "node-b")
    first = bench.node_of("c")
    says(bench, first, failed=TIME.format(1))
    for number in (2, 3):
        if bench.node_of("c") == first:
            says(bench, first, failed=TIME.format(number))
    assert bench.node_of("c") != first
    assert gates(bench) == [GATE]


def test_a_node_that_says_nothing_is_not_waited_for_long() -> None:
    bench = waiting()
    bench.run(seconds=ANSWER_SECONDS - 0.1)
    assert gates(bench) == [GATE]
    bench.run(seconds=0.1)
    assert gates(bench) == []


def test_after_a_failure_other_pods_wait_for_that_gpu_too_for_a_while() -> None:
    bench = waiting("node-a")
    says(bench, failed=TIME.format(1))
    says(bench, failed=TIME.format(2))
    assert bench.devices("c") == []
    bench.run(seconds=2 * FIRST_SECONDS)
    add(bench, "n", bind_when="")
    assert bench.devices("n")
    assert gates(bench, "pod-n") == [GATE]
    says(bench, made="prepared", claim_name="n")
    assert gates(bench, "pod-n") == []


def test_the_next_leader_goes_on_waiting() -> None:
    bench = waiting()
    new = bench.succeeded_by("node-a")
    says(new)
    assert gates(new) == [GATE]
    says(new, made="prepared")
    assert gates(new) == []
