"""Which node, GPU and placement a pod's claims get."""

from __future__ import annotations

import pytest

from dra.allocator.allocate import Allocator
from dra.allocator.problem import Problem, examine
from dra.claims.classes import generated_classes
from dra.claims.reader import Reader
from dra.pods.pods import read_pod
from tests.controller.helpers.deciding import decide, devices, why
from tests.controller.helpers.objects import (
    DRIVER,
    allocated,
    claim,
    cluster,
    gpu,
    mignode,
    node,
    pod,
    request,
    versioned,
)

SAME_GPU = [{"matchAttribute": "mig.dra.dev/parentUUID"}]


@pytest.mark.parametrize(
    ("kind", "words"), [("matchAttribute", "the same"), ("distinctAttribute", "different")]
)
def test_a_device_without_the_attribute_satisfies_no_constraint(kind: str, words: str) -> None:
    body = claim("c", constraints=[{kind: "mig.dra.dev/colour"}])
    assert f"with {words} mig.dra.dev/colour" in why(cluster("node-a"), body).message


def test_a_whole_gpu_is_allocated_where_mig_is_off_and_only_once() -> None:
    known = cluster("node-a")
    known.set_mignode(mignode("node-a", gpu(0), gpu(1, mig=False)))
    whole = claim("c", request("r", "gpu.dra.dev"))
    assert devices(decide(known, whole)) == ["gpu-1"]
    known.set_claim(versioned(allocated(versioned(claim("old", request())), "node-a", "gpu-1")))
    reason = why(known, claim("d", request("r", "gpu.dra.dev")))
    assert "gpu-1 no room for gpu (blocked by claim default/old)" in reason.message


def test_claims_that_are_allocated_pin_the_node() -> None:
    known = cluster("node-a", "node-b")
    held = allocated(versioned(claim("old", request())), "node-b", "gpu-0-mig-1g5gb-19-0")
    decision = None
    known.set_claim(versioned(held))
    for body in generated_classes(DRIVER, ["1g.5gb"]):
        known.set_class(versioned(body))
    known.set_claim(versioned(claim("new")))
    body = versioned(pod("p", "old", "new"))
    known.set_pod(body)
    reader = Reader(DRIVER, known.fleet.kinds, known.classes)
    found = examine(read_pod(body), known, reader).found
    assert isinstance(found, Problem)
    decision = Allocator(known.fleet, known.hosts).decide(found)
    assert decision is not None
    assert decision.node == "node-b"
    assert [p.claim.name for p in decision.picks] == ["new"]


def test_pods_that_our_allocations_send_to_a_node_count_there_before_they_are_bound() -> None:
    known = cluster("node-a", "node-b")
    known.set_node(node("node-a", cpu="1"))
    held = allocated(versioned(claim("old", request())), "node-a", "gpu-0-mig-1g5gb-19-6")
    other = versioned(pod("other", "old", cpu="900m"))
    user = {"resource": "pods", "name": "other", "uid": other["metadata"]["uid"]}
    held["status"]["reservedFor"] = [user]
    known.set_claim(versioned(held))
    known.set_pod(other)
    decision = decide(known, claim("c"), cpu="200m")
    assert decision is not None
    assert decision.node == "node-b"
