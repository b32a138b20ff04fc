"""Idle slices that MigNodes show, in the decisions of the allocator."""

from __future__ import annotations

import pytest

from controller.cluster.cluster import Cluster
from dra.common.resources import Obj
from dra.gpu.geometry import Placement
from dra.gpu.inventory import IdleInstance
from tests.controller.helpers.deciding import decide, devices
from tests.controller.helpers.objects import (
    claim,
    cluster,
    gpu,
    mignode,
    node,
    opaque,
    request,
    versioned,
)

SMALL = IdleInstance(Placement(2, 1), "default", 19)
HALF = IdleInstance(Placement(0, 4), "default", 9)
NODES = [f"node-{letter}" for letter in "abcdefgh"]


def world(*idle: IdleInstance) -> Cluster:
    """Eight nodes of one GPU each; on the last, slices are idle."""
    known = cluster(*NODES)
    known.set_mignode(mignode("node-h", gpu(0, "node-h", idle=idle)))
    return known


def chosen(known: Cluster, *claims: Obj) -> tuple[str, list[str]]:
    decision = decide(known, *claims)
    assert decision is not None
    return decision.node, devices(decision)


@pytest.mark.parametrize("policy", ["sws", "best-fit", "spread"])
def test_a_claim_gets_the_idle_slice_of_its_namespace(policy: str) -> None:
    wanted = claim("c", request(), config=[opaque(policy)])
    assert chosen(world(SMALL), wanted) == ("node-h", ["gpu-0-mig-1g5gb-19-2"])
    theirs = IdleInstance(SMALL.placement, "other", SMALL.profile_id)
    assert chosen(world(theirs), wanted) == chosen(world(), wanted)


def test_a_pod_that_few_nodes_would_do_gets_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra.allocator.allocate.MANY", 1)
    known = cluster("node-a", "node-b")
    known.set_node(versioned(node("node-a", unschedulable=True)))
    known.set_mignode(mignode("node-a", gpu(0, "node-a", idle=(SMALL,))))
    known.set_mignode(mignode("node-b", gpu(0, "node-b"), gpu(1, "node-b", idle=(SMALL,))))
    wanted = claim("c", request(), config=[opaque("spread")])
    assert chosen(known, wanted) == ("node-b", ["gpu-1-mig-1g5gb-19-2"])


def test_idle_slices_are_in_nobody_s_way() -> None:
    known = cluster("node-a")
    idle = tuple(IdleInstance(Placement(start, 1), "other", 19) for start in range(7))
    known.set_mignode(mignode("node-a", gpu(idle=idle)))
    assert chosen(known, claim("c", request("r", "mig-7g.40gb")))[1] == ["gpu-0-mig-7g40gb-0-0"]
