"""Placement policies, per class, claim and request."""

from __future__ import annotations

from tests.controller.helpers.deciding import decide
from tests.controller.helpers.objects import (
    DRIVER,
    claim,
    device_class,
    filled,
    gpu,
    opaque,
    request,
    versioned,
    with_gpus,
)


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


def test_requests_of_one_claim_may_have_policies_of_their_own() -> None:
    known = with_gpus(gpu(0), filled(1, 0, 1, 2, 3))
    both = claim(
        "c", request("a"), request("b"), config=[opaque("spread", "a"), opaque("best-fit", "b")]
    )
    decision = decide(known, both)
    assert decision is not None
    assert {p.request: p.gpu for p in decision.picks} == {"a": "gpu-0", "b": "gpu-1"}


def test_the_policy_of_a_class_decides_for_its_claims() -> None:
    known = with_gpus(gpu(0), filled(1, 0, 1, 2, 3))
    expression = f"device.attributes['{DRIVER}'].profile == '1g.5gb'"
    for policy, expected in (("spread", "gpu-0"), ("best-fit", "gpu-1")):
        body = device_class(policy, f"device.driver == '{DRIVER}' && {expression}")
        body["spec"]["config"] = [opaque(policy)]
        known.set_class(versioned(body))
        decision = decide(known, claim(f"c-{policy}", request("r", policy)))
        assert decision is not None
        assert decision.picks[0].gpu == expected
