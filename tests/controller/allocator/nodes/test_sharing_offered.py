"""Claims whose devices are to be shared: only nodes that can serve that are asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dra.claims.sharing import OFFERED
from dra.common.resources import PODS, Obj
from dra.gpu.inventory import HOST_USERS_ONLY
from dra.gpu.mignode import to_mignode
from dra.gpu.shares import HAMI_CORE, ShareOffer
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.deciding import decide, why
from tests.controller.helpers.objects import (
    DRIVER,
    claim,
    cluster,
    first_available,
    gpu,
    inventory,
    mignode,
    pod,
    request,
    versioned,
)
from tests.controller.helpers.stored import Stored

SHARE = "gpu-share.dra.dev"


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


@pytest.mark.parametrize("named", ["r", "r/shared"])
def test_of_alternatives_the_one_is_taken_that_a_node_serves(named: str) -> None:
    either = first_available("r", ("shared", "mig-1g.5gb", {}), ("alone", "mig-2g.10gb", {}))
    wanted = claim("c", either, config=[strategy("MPS", named)])
    known = cluster("node-a")
    decision = decide(known, wanted)
    if named == "r":
        assert decision is None
        return
    assert decision is not None
    assert [p.request for p in decision.picks] == ["r/alone"]
    known.set_mignode(offering("node-a", "MPS"))
    decision = decide(known, wanted)
    assert decision is not None
    assert [p.request for p in decision.picks] == ["r/shared"]


def test_a_pod_that_waits_for_a_strategy_is_served_once_a_node_has_it() -> None:
    bench = Bench("node-a")
    bench.claim(claim("c", config=[strategy("MPS")]))
    bench.pod(pod("p", "c"))
    bench.serve("q", "plain")
    assert bench.devices("c") == []
    assert bench.devices("plain")
    bench.cluster.set_mignode(offering("node-a", "MPS"))
    bench.run()
    assert bench.devices("c")


def test_shares_of_several_sizes_go_where_one_limit_for_all_is_not_all_there_is() -> None:
    sizes = [
        request(name, SHARE, capacity={"requests": {"memory": size}})
        for name, size in {"a": "5Gi", "b": "10Gi"}.items()
    ]
    known = cluster("node-a")

    def shared(enforcer: str) -> None:
        gpus = [gpu(n, mig=False, sharing=ShareOffer(4, enforcer)) for n in range(2)]
        known.set_mignode(mignode("node-a", *gpus))

    shared(HAMI_CORE)
    assert decide(known, claim("c", *sizes)) is None
    assert "one limit for all devices" in why(known, claim("c", *sizes)).message
    assert decide(known, claim("c", sizes[0])) is not None
    shared("none")
    assert decide(known, claim("c", *sizes)) is not None


@pytest.mark.parametrize(
    ("users", "fits"),
    [
        ({"containers": 1}, True),
        ({"containers": 2}, False),
        ({"containers": 1, "initContainers": 1}, False),
    ],
)
def test_a_claim_that_several_containers_use_goes_where_hami_core_does_not_count(
    users: dict[str, int], *, fits: bool
) -> None:
    uses = {"claims": [{"name": "c"}]}
    spec = {
        kind: [{"name": f"{kind}-{n}", "image": "x", "resources": uses} for n in range(count)]
        for kind, count in users.items()
    }
    known, wanted = cluster("node-a"), claim("c", request("r", SHARE))
    gpus = [gpu(0, mig=False, sharing=ShareOffer(4, HAMI_CORE)), gpu(1)]
    known.set_mignode(mignode("node-a", *gpus))
    assert (decide(known, wanted, **spec) is not None) is fits
    if not fits:
        assert "write a claim for each container" in why(known, wanted, **spec).message
    known.set_mignode(mignode("node-a", gpu(0, mig=False, sharing=ShareOffer(4))))
    assert decide(known, wanted, **spec) is not None


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


def test_the_condition_of_a_pod_with_its_own_users_says_what_keeps_it_waiting() -> None:
    bench = Bench("node-a")
    only = replace(inventory("node-a"), capabilities=(HOST_USERS_ONLY,))
    bench.cluster.set_mignode(versioned(to_mignode(only)))
    bench.claim(claim("c"))
    bench.pod(Stored(PODS)(versioned(pod("p", "c", hostUsers=False))))
    bench.run()
    bench.run(seconds=2.0)
    assert bench.devices("c") == []
    assert "hostUsers: false" in bench.condition("p")["message"]
    bench.cluster.set_mignode(versioned(to_mignode(inventory("node-a"))))
    bench.run()
    assert bench.devices("c")
