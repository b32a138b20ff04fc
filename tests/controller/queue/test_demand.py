"""What has been asked for so far is known again after a restart."""

from __future__ import annotations

from dra.allocator.score import Demand
from tests.controller.helpers.objects import allocated, claim, cluster, versioned
from tests.dra.gpus import A100


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
