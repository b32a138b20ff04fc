"""``firstAvailable``: the first alternative that fits somewhere is taken."""

from __future__ import annotations

from itertools import product

import pytest

from dra.claims.reasons import Reason
from dra.claims.wants import MAX_CHOICES, choices
from dra.common.resources import RESOURCE_CLAIMS
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.deciding import decide, problem, why
from tests.controller.helpers.objects import (
    DRIVER,
    claim,
    cluster,
    device_class,
    filled,
    first_available,
    opaque,
    pod,
    versioned,
    with_gpus,
)

BIG_OR_SMALL = first_available("r", ("big", "mig-3g.20gb", {}), ("small", "mig-1g.5gb", {}))


def test_an_alternative_may_ask_for_several_devices_and_is_bound_by_constraints() -> None:
    asked = first_available("r", ("one", "mig-7g.40gb", {}), ("two", "mig-3g.20gb", {"count": 2}))
    decision = decide(with_gpus(filled(0, 0), filled(1, 0)), claim("c", asked))
    assert decision is not None
    assert [p.request for p in decision.picks] == ["r/two", "r/two"]
    same = [{"matchAttribute": "mig.dra.dev/parentUUID", "requests": ["r/two"]}]
    found = why(with_gpus(filled(0, 0), filled(1, 0)), claim("c", asked, constraints=same))
    assert "no other alternative fits either" in found.message


def test_an_alternative_that_no_node_has_does_not_hide_why_another_waits() -> None:
    known = with_gpus(filled(0, 0, 4))
    strange = "device.attributes['mig.dra.dev'].profile == '9g.1gb'"
    asked = first_available(
        "r",
        ("strange", "mig.dra.dev", {"selectors": [{"cel": {"expression": strange}}]}),
        ("big", "mig-7g.40gb", {}),
    )
    found = why(known, claim("c", asked))
    assert found.reason is Reason.WAITING
    assert "no room for 7g.40gb" in found.message


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (8, 8, 8), (8, 8, 8, 8)])
def test_choices_come_by_the_sum_of_their_ranks_each_once(sizes: tuple[int, ...]) -> None:
    requests = [
        first_available(f"r{i}", *((f"s{n}", "mig-1g.5gb", {}) for n in range(size)))
        for i, size in enumerate(sizes)
    ]
    found = problem(cluster("node-a"), claim("c", *requests)).claims
    ranks = [
        tuple(int(w.request.rpartition("/s")[2]) for w in chosen.wants)
        for (chosen,) in choices(found)
    ]
    everything = sorted(product(*(range(s) for s in sizes)), key=lambda r: (sum(r), r))
    assert ranks == everything[:MAX_CHOICES]


def test_the_allocation_names_the_subrequest_and_carries_what_belongs_to_it() -> None:
    bench = Bench("node-a")
    toleration = {"key": "example.com/hot", "operator": "Exists"}
    asked = first_available(
        "r",
        ("big", "mig-9g.90gb", {}),
        ("small", "mig-1g.5gb", {"tolerations": [toleration]}),
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
