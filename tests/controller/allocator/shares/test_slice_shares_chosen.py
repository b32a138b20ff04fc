"""Slices chosen for shares: packed or spread, held back, and counted by the next leader."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from dra.allocator.allocate import Allocator
from dra.gangs.planning import memory_in_use
from tests.controller.allocator.shares.sliceshares import (
    PART,
    asking,
    bench,
    configured,
    given,
    shared,
)
from tests.controller.allocator.shares.test_shares import place
from tests.controller.helpers.deciding import decide, devices, plan, problem
from tests.controller.helpers.objects import (
    allocated,
    claim,
    instance,
    mignode,
    opaque,
    request,
    versioned,
    with_gpus,
)


@pytest.mark.parametrize(
    ("policy", "expected"), [("sws", PART), ("best-fit", PART), ("spread", "gpu-1")]
)
def test_shares_are_packed_or_spread(policy: str, expected: str) -> None:
    known = with_gpus(shared(0), shared(1))
    known.set_claim(versioned(allocated(claim("g", asking()), "node-a", PART)))
    config = configured(placement={"policy": policy})
    (found,) = devices(decide(known, claim("a", asking(), config=config)))
    assert found.startswith(expected)


def test_shares_of_more_claims_than_can_be_tried_everywhere_are_packed() -> None:
    known = with_gpus(shared(0, 3))
    found = decide(known, *[claim(f"c{n}", asking("2Gi")) for n in range(6)])
    assert len({*devices(found)}) == 3, "two of 2 GiB fit one of 1g.5gb"
    assert {d.partition("-mig-")[2].partition("-")[0] for d in devices(found)} == {"1g5gb"}


@pytest.mark.parametrize(
    ("instances", "joins"),
    [
        ([], True),
        ([instance("1g.5gb", 0, uid="g")], True),
        ([instance("1g.5gb", 0, uid="g"), instance("1g.5gb", 0, uid="ended")], True),
        ([instance("1g.5gb", 0, uid="g", state="lost")], False),
        ([structs.replace(instance("1g.5gb", 0, uid="g"), unhealthy="XID 79")], False),
        ([instance("1g.5gb", 0, uid="ended", state="reclaiming")], False),
        ([instance("1g.5gb", 0)], False),
    ],
)
def test_a_slice_that_goes_or_is_broken_is_not_joined(instances: list[Any], *, joins: bool) -> None:
    known = with_gpus(shared(instances=tuple(instances)))
    given = claim("g", asking())
    given["metadata"]["uid"] = "g"
    known.set_claim(versioned(allocated(given, "node-a", PART)))
    (found,) = devices(decide(known, claim("a", asking())))
    assert (found == PART) is joins


def test_a_slice_for_a_share_is_held_back_where_the_fewest_have_to_end() -> None:
    known = with_gpus(shared(0, 2))
    for device in ("3g20gb-9-4", "1g5gb-19-0", "1g5gb-19-1"):
        given(known, device, f"gpu-0-mig-{device}")
    found = problem(known, claim("a", asking("15Gi")))
    planned = plan(found, Allocator(known.fleet, known.hosts))
    assert planned is not None
    assert memory_in_use(planned, known.fleet) == 2
    assert [p.device for p in planned.picks] == ["gpu-0-mig-3g20gb-9-0-share"]


def test_the_next_leader_counts_the_same_with_and_without_consumed_capacity() -> None:
    for kept in (True, False):
        on = bench(shared(0, 2))
        first = place(on, "a", asking("1Gi"))
        stored = on.api.objects["resourceclaims", "a"]
        if not kept:  # as an API server does that has no consumable capacity
            result = stored["status"]["allocation"]["devices"]["results"][0]
            del result["consumedCapacity"], result["shareID"]
        new = on.succeeded_by("node-a")
        new.cluster.set_mignode(mignode("node-a", shared(0, 2)))
        new.run()
        second = place(new, "b", asking("3Gi"))
        assert (second["device"] == first["device"]) is kept, "else it is one part in two"


def test_a_slice_that_is_shared_already_counts_once_beside_a_claim_with_another_policy() -> None:
    """It counted twice for the policy of the shares, which then knew no price for a place."""
    known = with_gpus(shared(0, 2))
    given(known, "g", "gpu-0-mig-4g20gb-5-0-share")
    alone = claim("alone", request("r", "mig-1g.5gb"), config=[opaque("spread")])
    decision = decide(known, alone, claim("joins", asking("1Gi")), claim("begins", asking("1Gi")))
    assert len(devices(decision)) == 3
