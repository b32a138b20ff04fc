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


def chosen(known: Cluster, *claims: Obj) -> tuple[str, list[str]]:
    decision = decide(known, *claims)
    assert decision is not None
    return decision.node, devices(decision)


def test_a_pod_that_few_nodes_would_do_gets_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dra.allocator.allocate.MANY", 1)
    known = cluster("node-a", "node-b")
    known.set_node(versioned(node("node-a", unschedulable=True)))
    known.set_mignode(mignode("node-a", gpu(0, "node-a", idle=(SMALL,))))
    known.set_mignode(mignode("node-b", gpu(0, "node-b"), gpu(1, "node-b", idle=(SMALL,))))
    wanted = claim("c", request(), config=[opaque("spread")])
    assert chosen(known, wanted) == ("node-b", ["gpu-1-mig-1g5gb-19-2"])
