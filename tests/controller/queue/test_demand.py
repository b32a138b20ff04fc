"""What has been asked for so far is known again after a restart."""

from __future__ import annotations

import pytest

from dra.allocator.score import Demand
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import allocated, claim, cluster, request, versioned
from tests.dra.gpus import A100


def test_a_fresh_controller_learns_the_mix_from_the_allocations_that_there_are() -> None:
    bench = Bench("node-a", "node-b")
    for number, profile in enumerate(["1g.5gb", "3g.20gb", "1g.5gb", "2g.10gb"]):
        bench.serve(f"p{number}", f"c{number}", request("r", f"mig-{profile}"))
    fresh = cluster("node-a", "node-b")
    for (plural, _), obj in bench.api.objects.items():
        if plural == "resourceclaims":
            fresh.set_claim(obj)
    assert fresh.fleet.demand.shares(A100) == Demand().shares(A100)
    fresh.learn_demand()
    before = bench.cluster.fleet.demand.shares(A100)
    assert fresh.fleet.demand.shares(A100) == pytest.approx(before)


def test_later_allocations_weigh_more_whatever_the_names() -> None:
    fresh = cluster("node-a")
    expected = Demand()
    for name, device, at in (
        ("z-old", "gpu-0-mig-1g5gb-19-0", "2026-01-01T00:00:00Z"),
        ("a-new", "gpu-0-mig-3g20gb-9-4", "2026-01-02T00:00:00Z"),
    ):
        obj = allocated(versioned(claim(name)), "node-a", device)
        obj["status"]["allocation"]["allocationTimestamp"] = at
        fresh.set_claim(obj)
    fresh.learn_demand()
    expected.observe("1g.5gb")
    expected.observe("3g.20gb")
    assert fresh.fleet.demand.shares(A100) == expected.shares(A100)


def test_what_is_not_a_slice_of_ours_counts_for_nothing() -> None:
    fresh = cluster("node-a")
    for name, node, device in (
        ("whole", "node-a", "gpu-0"),
        ("odd", "node-a", "who-knows"),
        ("gone", "node-x", "gpu-0-mig-1g5gb-19-0"),
        ("strange", "node-a", "gpu-0-mig-9g90gb-99-0"),
    ):
        fresh.set_claim(allocated(versioned(claim(name)), node, device))
    fresh.learn_demand()
    assert fresh.fleet.demand.shares(A100) == Demand().shares(A100)
