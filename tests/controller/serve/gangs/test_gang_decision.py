"""Decisions for gangs: places for all beside each other, and the books as they were before."""

from __future__ import annotations

from math import inf
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.cluster.cluster import Cluster
from dra.gangs.decision import GangOutcome
from tests.controller.helpers.objects import (
    claim,
    cluster,
    pod,
    request,
)
from tests.controller.serve.gangs.gangs import decided, decision, member, problems


def books(known: Cluster) -> Any:
    """All that a decision may leave behind."""
    nodes = known.fleet.nodes.items()
    residents = known.hosts.residents
    return (
        {n: [s.traits for s in node.gpus] for n, node in nodes},
        {n: sorted(known.fleet.claims_on(n)) for n, _ in nodes},
        {n: dict(known.hosts.used(n)) for n, _ in nodes},
        {key: residents.find(key) for key in known.pods},
        known.fleet.demand,
    )


def places(outcome: GangOutcome) -> list[tuple[str, str]]:
    return [
        (p.node, pick.device) for p in outcome.placed if p.decision for pick in p.decision.picks
    ]


def test_pods_that_share_a_claim_go_where_it_is_decided() -> None:
    known = cluster("node-a", "node-b")
    shared = claim("shared", request("r", "mig-3g.20gb"))
    asked = problems(known, *((shared, pod(f"g-{n}", "shared")) for n in range(3)))
    found = decided(known, asked, 3)
    assert found.fits
    assert len({p.node for p in found.placed}) == 1
    assert [p.decision is None for p in found.placed] == [False, True, True]


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(
        st.sampled_from(["1g.5gb", "2g.10gb", "3g.20gb", "7g.40gb"]), min_size=1, max_size=8
    ),
    others=st.lists(st.sampled_from(["1g.5gb", "2g.10gb", "3g.20gb"]), max_size=3),
    steps=st.sampled_from([1, 120, inf]),
)
def test_no_two_get_the_same_and_nothing_stays(
    sizes: list[str], others: list[str], steps: float
) -> None:
    known = cluster("node-a", "node-b")
    asked = problems(known, *(member("g", n, size) for n, size in enumerate(sizes)))
    taken = problems(known, *(member("o", n, size) for n, size in enumerate(others)))
    ongoing = decision(known, asked, len(asked))
    before = books(known)
    found = ongoing.go_on(steps=steps)
    while found is None:
        if taken:
            each = taken.pop()
            for placed in decided(known, [each], 1).placed:
                ref = each.claims[0].claim.ref
                assert placed.decision is not None
                known.fleet.hold(ref, placed.decision.allocation(ref, known.driver))
            before = books(known)
        assert books(known) == before
        found = ongoing.go_on(steps=steps)
    assert books(known) == before
    assert found.fits == (len(found.placed) == len(sizes))
    for placed in found.placed if found.fits else ():
        assert placed.decision is not None
        state = known.fleet.nodes[placed.node].gpu(placed.decision.picks[0].gpu)
        ref = placed.rest.claims[0].claim.ref
        slot = placed.decision.picks[0].placement
        assert state is not None
        assert slot is not None
        assert not state.usage.mask & slot.mask
        known.fleet.hold(ref, placed.decision.allocation(ref, known.driver))
