"""Claims that their node cannot prepare: moved while nobody holds them, told of otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from dra.claims.conditions import PREPARE_FAILED
from dra.common.resources import RESOURCE_CLAIMS, Obj
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import (
    DRIVER,
    allocated,
    claim,
    gpu,
    instance,
    mignode,
    pod,
)

DEVICE = "gpu-0-mig-1g5gb-19-4"
WHY = "MIG mode of gpu-0 is off"


def failed(
    node: str = "node-a",
    *,
    device: str = DEVICE,
    driver: str = DRIVER,
    reason: str = PREPARE_FAILED,
    finalizer: bool = True,
    **status: Any,
) -> Obj:
    """A claim allocated on a node that says of a device of it what ``reason`` says."""
    body = allocated(claim("c"), node, DEVICE, finalizer=finalizer)
    condition = {"type": "Ready", "status": "False", "reason": reason, "message": WHY}
    shown = {"driver": driver, "pool": f"{node}-pool", "device": device, "conditions": [condition]}
    body["status"] |= {"devices": [shown], **status}
    return body


def node_of(bench: Bench) -> str:
    """Where the claim is allocated; empty if it is not."""
    allocation = bench.api.get(RESOURCE_CLAIMS, "c").get("status", {}).get("allocation")
    if allocation is None:
        return ""
    (term,) = allocation["nodeSelector"]["nodeSelectorTerms"]
    return str(term["matchFields"][0]["values"][0])


RESERVED = [{"resource": "pods", "name": "p", "uid": "uid-p"}]


@pytest.mark.parametrize("spec", [{"nodeName": "node-a"}, {}])
def test_a_bound_or_reserved_pod_is_told_what_to_do_and_its_claim_stays(spec: Obj) -> None:
    bench = Bench("node-a", "node-b")
    bench.pod(pod("p", "c", **spec))
    bench.claim(failed(reservedFor=RESERVED))
    bench.run(seconds=200)
    assert node_of(bench) == "node-a"
    assert bench.api.writes == []
    told = [m for kind, _, r, m in bench.recorder.events if (kind, r) == ("Pod", PREPARE_FAILED)]
    if spec:
        (message,) = told
        assert WHY in message
        assert "delete the pod and create it again" in message
        assert PREPARE_FAILED in bench.recorder.reasons("c")
    else:
        assert told == []


def test_a_pod_that_is_bound_but_not_yet_reserved_keeps_its_claim() -> None:
    bench = Bench("node-a", "node-b")
    bench.pod(pod("p", "c", nodeName="node-a"))
    bench.claim(failed())
    bench.run()
    assert node_of(bench) == "node-a"


@pytest.mark.parametrize("is_evicted", [False, True])
def test_a_pod_of_a_controller_is_told_that_another_takes_its_place_or_is_evicted(
    *, is_evicted: bool
) -> None:
    bench = Bench("node-a", "node-b", evict_failed=is_evicted)
    body = pod("p", "c", nodeName="node-a")
    body["metadata"]["ownerReferences"] = [
        {"kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
    ]
    bench.pod(body)
    bench.claim(failed(reservedFor=RESERVED))
    bench.run()
    told = any("its controller makes another" in m for *_, m in bench.recorder.events)
    assert (told, len(bench.api.evicted)) == (not is_evicted, int(is_evicted))


@pytest.mark.parametrize(
    "other",
    [
        {"reason": "XidError"},
        {"driver": "gpu.example.com"},
        {"device": "gpu-0-mig-1g5gb-19-0"},
        {"finalizer": False},
    ],
    ids=["other reason", "other driver", "device of an earlier allocation", "not allocated by us"],
)
def test_only_our_word_on_our_allocation_moves_a_claim(other: Obj) -> None:
    bench = Bench("node-a", "node-b")
    bench.pod(pod("p", "c"))
    bench.claim(failed(**other))
    bench.run(seconds=100)
    assert node_of(bench) == "node-a"
    assert bench.api.writes == []


def test_what_is_left_on_the_node_is_waited_for() -> None:
    bench = Bench("node-a", "node-b")
    left = gpu(instances=(instance("1g.5gb", 4, uid="uid-c", state="orphan"),))
    bench.cluster.set_mignode(mignode("node-a", left))
    bench.pod(pod("p", "c"))
    bench.claim(failed())
    bench.run()
    assert node_of(bench) == "node-a"
    bench.cluster.set_mignode(mignode("node-a"))
    bench.run()
    assert node_of(bench) == "node-b"
