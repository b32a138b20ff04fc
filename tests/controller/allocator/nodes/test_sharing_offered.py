"""Claims whose devices are to be shared: only nodes that can serve that are asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dra.claims.sharing import OFFERED
from dra.common.resources import Obj
from dra.gpu.inventory import HOST_USERS_ONLY
from dra.gpu.mignode import to_mignode
from tests.controller.helpers.deciding import decide, why
from tests.controller.helpers.objects import (
    DRIVER,
    claim,
    cluster,
    gpu,
    inventory,
    mignode,
    request,
    versioned,
)


def strategy(name: str, *requests: str, kind: str = "MigDeviceConfig") -> Obj:
    parameters = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": kind, "sharing": {"strategy": name}}
    named = {"requests": list(requests)} if requests else {}
    return {**named, "opaque": {"driver": DRIVER, "parameters": parameters}}


def offering(node: str, *strategies: str, **fields: Any) -> Obj:
    capabilities = tuple(OFFERED[each] for each in strategies)
    return versioned(to_mignode(replace(inventory(node, **fields), capabilities=capabilities)))


def test_a_node_that_does_not_serve_a_strategy_is_not_asked_and_the_reason_told() -> None:
    known = cluster("node-a", "node-b")
    wanted = claim("c", config=[strategy("MPS")])
    assert decide(known, wanted) is None
    assert "does not serve sharing.strategy 'MPS'" in why(known, wanted).message
    known.set_mignode(offering("node-a", "TimeSlicing"))
    known.set_mignode(offering("node-b", "MPS"))
    decision = decide(known, wanted)
    assert decision is not None
    assert decision.node == "node-b"
    bound = decide(known, wanted, nodeName="node-a")
    assert bound is None


def test_time_slices_of_a_whole_gpu_are_asked_for_likewise() -> None:
    known = cluster("node-a")
    known.set_mignode(mignode("node-a", gpu(mig=False)))
    whole = request("r", "gpu.dra.dev")
    wanted = claim("c", whole, config=[strategy("TimeSlicing", kind="GpuConfig")])
    assert decide(known, wanted) is None
    serving = replace(inventory("node-a", gpu(mig=False)), capabilities=("SharingTimeSlicing",))
    known.set_mignode(versioned(to_mignode(serving)))
    assert decide(known, wanted) is not None


def test_a_pod_with_its_own_users_is_not_placed_where_no_device_node_can_be_made() -> None:
    known = cluster("node-a")
    only = replace(inventory("node-a"), capabilities=(HOST_USERS_ONLY,))
    known.set_mignode(versioned(to_mignode(only)))
    wanted = claim("c")
    assert decide(known, wanted, hostUsers=False) is None
    assert "hostUsers: false" in why(known, wanted, hostUsers=False).message
    assert decide(known, wanted, hostUsers=False, nodeName="node-a") is None
    assert decide(known, wanted, hostUsers=True) is not None
    known.set_mignode(versioned(to_mignode(inventory("node-a"))))
    assert decide(known, wanted, hostUsers=False) is not None, "older plugins do not say it"
