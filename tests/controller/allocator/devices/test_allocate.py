"""Which node, GPU and placement a pod's claims get."""

from __future__ import annotations

from itertools import combinations

import pytest

from dra.allocator.gpustate import GpuState
from dra.allocator.score import Situation, Weights
from dra.claims.reasons import Reason
from dra.common.resources import RESOURCE_CLAIMS
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.deciding import decide, devices, why
from tests.controller.helpers.objects import (
    DRIVER,
    allocated,
    claim,
    cluster,
    device_class,
    filled,
    first_available,
    gpu,
    mignode,
    opaque,
    pod,
    request,
    versioned,
    with_gpus,
)


def test_a_whole_gpu_is_allocated_where_mig_is_off_and_only_once() -> None:
    known = cluster("node-a")
    known.set_mignode(mignode("node-a", gpu(0), gpu(1, mig=False)))
    whole = claim("c", request("r", "gpu.dra.dev"))
    assert devices(decide(known, whole)) == ["gpu-1"]
    known.set_claim(versioned(allocated(versioned(claim("old", request())), "node-a", "gpu-1")))
    reason = why(known, claim("d", request("r", "gpu.dra.dev")))
    assert "gpu-1 no room for gpu (blocked by claim default/old)" in reason.message


# -- ``firstAvailable``: the first alternative that fits somewhere is taken


def test_the_allocation_names_the_subrequest_and_carries_what_belongs_to_it() -> None:
    bench = Bench("node-a")
    toleration = {"key": "example.com/hot", "operator": "Exists"}
    asked = first_available(
        "r", ("big", "mig-9g.90gb", {}), ("small", "mig-1g.5gb", {"tolerations": [toleration]})
    )
    expression = f"device.driver == '{DRIVER}' && false"
    none = versioned(device_class("mig-9g.90gb", expression, config=[opaque("spread")]))
    bench.cluster.set_class(none)
    config = [opaque("best-fit", "r/small"), opaque("spread", "r/big")]
    bench.claim(claim("c", asked, config=config))
    bench.pod(pod("p", "c"))
    bench.run()
    allocation = bench.api.get(RESOURCE_CLAIMS, "c")["status"]["allocation"]
    (result,) = allocation["devices"]["results"]
    assert result["request"] == "r/small"
    assert result["tolerations"] == [toleration]
    assert [c["requests"] for c in allocation["devices"]["config"]] == [["r/small"]]


# -- ``allocationMode: All``: every device of a node, or none


ALL = {"allocationMode": "All"}


def test_all_of_slices_that_overlap_is_refused_with_the_remedy() -> None:
    found = why(with_gpus(gpu(0)), claim("c", request("r", "mig.dra.dev", **ALL)))
    assert found.reason is Reason.UNSUPPORTED
    for told in ("'r'", "overlap", "mig-1g.5gb", "gpu.dra.dev", "count"):
        assert told in found.message


def test_all_of_more_than_a_claim_holds_is_refused_with_the_numbers() -> None:
    found = why(with_gpus(*(gpu(n) for n in range(5))), claim("c", request("r", **ALL)))
    assert found.reason is Reason.UNSUPPORTED
    assert "35 devices" in found.message
    assert "32" in found.message


# -- ``matchAttribute``: devices that agree are found exactly when they exist, however many GPUs


# -- placement policies, per class, claim and request


ON_ONE_GPU = {"matchAttribute": "mig.dra.dev/parentUUID"}


def test_pairs_each_on_a_gpu_of_its_own_are_found_on_a_large_node() -> None:
    """GPUs to the power of pairs: more than anyone can try."""
    pairs = [(f"a{n}", f"b{n}") for n in range(6)]
    constraints = [{**ON_ONE_GPU, "requests": [*pair]} for pair in pairs]
    constraints += [
        {"distinctAttribute": "mig.dra.dev/parentUUID", "requests": [one[0], other[0]]}
        for one, other in combinations(pairs, 2)
    ]
    requests = [request(name, "mig-3g.20gb") for pair in pairs for name in pair]
    full = [filled(n, *range(7)) for n in range(5)]
    wanted = claim("c", *requests, constraints=constraints)
    decision = decide(with_gpus(*full, *(gpu(n) for n in range(5, 11))), wanted)
    assert decision is not None
    on = {pick.request: pick.gpu for pick in decision.picks}
    assert all(on[a] == on[b] for a, b in pairs)
    assert len(set(on.values())) == 6
    assert decide(with_gpus(*full, *(gpu(n) for n in range(5, 10))), wanted) is None


def test_claims_of_one_pod_are_each_placed_by_their_own_policy() -> None:
    """One goes to the fullest GPU, the other to the emptiest, whichever comes first."""
    for order in (("pack", "part"), ("part", "pack")):
        known = with_gpus(gpu(0), filled(1, 0, 1, 2, 3), filled(2, 0, 1))
        claims = {
            "pack": claim("pack", config=[opaque("best-fit")]),
            "part": claim("part", config=[opaque("spread")]),
        }
        decision = decide(known, *(claims[name] for name in order))
        assert decision is not None
        assert {p.claim.name: p.gpu for p in decision.picks} == {"pack": "gpu-1", "part": "gpu-0"}


def test_whatever_a_policy_sees_of_a_gpu_tells_gpus_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a lone slice and for several: what is known of a GPU is not taken for one unlike it."""
    real = GpuState.situation

    def seen(state: GpuState, weights: Weights) -> Situation:
        return real(state, weights)._replace(instances=100 * state.gpu.minor)

    monkeypatch.setattr(GpuState, "situation", seen)
    for requests in ([request("a")], [request("a"), request("b")]):
        decision = decide(with_gpus(*map(gpu, range(4))), claim("c", *requests))
        assert decision is not None
        assert {pick.gpu for pick in decision.picks} == {"gpu-3"}, "as full, with more instances"
