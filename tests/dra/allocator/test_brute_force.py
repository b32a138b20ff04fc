"""Random small states and pods: what is decided is what trying everything finds."""

from __future__ import annotations

import os
import random

import pytest

from dra.allocator.allocate import Allocator
from dra.allocator.explain.judge import explain
from dra.allocator.ongoing import Budget
from dra.allocator.problem import Decision
from dra.allocator.search.combine import FittingGpu, first_fit
from dra.allocator.search.constraints import ConstraintRules
from dra.cel.offers import Offer
from tests.controller.helpers.deciding import decide, problem
from tests.controller.helpers.objects import claim, cluster, gpu, mignode, request, with_gpus
from tests.dra.allocator.smallstates import (
    AskedClaim,
    can_be,
    choices_of,
    random_claims,
    random_gpus,
    serves,
)

PARENT = "device.attributes['mig.dra.dev'].parentUUID"
SEEDS = int(os.environ.get("BRUTE_FORCE_SEEDS", "250"))


@pytest.mark.parametrize("part", range(2))
def test_the_first_alternative_that_fits_is_found_and_nothing_is_given_up(part: int) -> None:
    known, different = cluster("node-a"), list[str]()
    for seed in range(part, SEEDS, 2):
        draw = random.Random(seed)
        gpus, claims = random_gpus(draw, "node-a"), random_claims(draw)
        known.set_mignode(mignode("node-a", *gpus))
        found = problem(known, *(c.body for c in claims))
        allocator = Allocator(known.fleet, known.hosts)
        outcome = allocator.outcome(found)
        assert outcome.given_up is None, seed
        assert outcome.decision is None or outcome.decision.given_up is None, seed
        every = choices_of(claims)
        wanted = next((c for c in every if serves(gpus, claims, c)), None)
        asked = [{a.name: 1 if a.everything else a.count for a in r} for r in wanted or ()]
        if _taken(outcome.decision, claims) != asked:
            different.append(f"{seed}: {outcome.decision} instead of {asked}")
        if outcome.decision is not None and not can_be(gpus, claims, outcome.decision.picks):
            different.append(f"{seed}: {outcome.decision} cannot be")
        if explain(found, allocator, full=True).fits != bool(wanted):
            different.append(f"{seed}: it is explained otherwise")
    assert not different


def _taken(decision: Decision | None, claims: list[AskedClaim]) -> list[dict[str, int]]:
    """The requests served, by claim, with their number of devices; of all such, the number."""
    if decision is None:
        return []
    everything = {a.name for c in claims for choice in c.choices for a in choice if a.everything}
    found = []
    for asked in claims:
        name = asked.body["metadata"]["name"]
        requests = [p.request for p in decision.picks if p.claim.name == name]
        found.append({r: 1 if r in everything else requests.count(r) for r in requests})
    return found


ONE_GIB = "device.attributes['mig.dra.dev'].profile.startsWith('1g')"
HARD = {
    "any and 1g": (
        1,
        [request("a", "mig.dra.dev", count=2), request("b", "mig.dra.dev", ONE_GIB, count=2)],
    ),
    "three sizes": (
        4,
        [
            request("a", "mig-1g.10gb", count=2),
            request("b", "mig-min-10gb", count=2),
            request("c", "mig-min-20gb", count=2),
        ],
    ),
    "many of any": (
        8,
        [
            request(f"r{n}", "mig.dra.dev", f"{PARENT} != 'GPU-node-a-{n}'", count=3)
            for n in range(5)
        ],
    ),
}


@pytest.mark.parametrize("name", HARD)
def test_empty_gpus_serve_what_first_fit_would_serve(name: str) -> None:
    gpus, requests = HARD[name]
    known = with_gpus(*(gpu(n) for n in range(gpus)))
    assert decide(known, claim("c", *requests)) is not None


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_gpu_is_given_whole_once(gpus: int) -> None:
    [state] = with_gpus(gpu(0)).fleet.nodes["node-a"].gpus
    fitting = FittingGpu(state, [(Offer(None),)] * 2, ConstraintRules({}, {}, {}))
    assert (first_fit([fitting] * gpus, (1, 1), Budget()) is not None) is (gpus == 2)
