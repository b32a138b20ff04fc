"""A restore of etcd takes the cluster back: what was known from later versions is not kept."""

from __future__ import annotations

import copy

import pytest

from dra.common.resources import RESOURCE_CLAIMS
from dra.kube.reflector import Change
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, pod, request


@pytest.mark.parametrize("rewound", [True, False])
def test_an_allocation_of_later_than_the_snapshot_is_forgotten(*, rewound: bool) -> None:
    """Without a restore an older state is one that a slow watch still reports."""
    bench = Bench("node-a")
    before = copy.deepcopy(bench.claim(claim("c", request("r", "mig-7g.40gb"))))
    bench.pod(pod("p", "c"))
    bench.run()
    assert bench.devices("c")
    after = bench.api.get(RESOURCE_CLAIMS, "c")
    assert int(before["metadata"]["resourceVersion"]) < int(after["metadata"]["resourceVersion"])
    bench.api.objects["resourceclaims", "c"] = before
    change = Change("modified", after, before, rewound=rewound)
    bench.cluster.apply(RESOURCE_CLAIMS, change)
    known = bench.cluster.claims["default", "c"].claim
    assert (known.allocation is None) == rewound
    bench.remove_pod("p")
    bench.ask("q", "other", request("r", "mig-7g.40gb"))
    bench.run(seconds=1.0)
    assert bool(bench.devices("other")) == rewound
