"""Requests by size get the smallest profile that is large enough."""

from __future__ import annotations

import pytest

from dra.claims.reasons import Reason
from dra.common.resources import Obj
from dra.gpu.geometry import Geometry
from tests.controller.helpers.deciding import decide, why
from tests.controller.helpers.objects import (
    claim,
    cluster,
    gpu,
    mignode,
    request,
    with_gpus,
)
from tests.dra.gpus import profile

TWICE = Geometry(
    (
        profile("1g.18gb", 19, slices=1, memory=16384, starts=[0, 1, 2, 3, 4, 5, 6], size=1),
        profile("3g.71gb", 9, slices=3, memory=71168, starts=[0, 4], size=4),
        profile("7g.141gb", 0, slices=7, memory=143104, starts=[0], size=8),
    )
)
"""A GPU with more memory a slice than an A100."""


def test_memory_beyond_every_profile_names_the_largest() -> None:
    known = cluster("node-a", "node-b")
    known.set_mignode(mignode("node-b", gpu(0, "node-b", geometry=TWICE)))
    capacity = {"requests": {"memory": "200Gi"}}
    found = why(known, claim("c", request("r", "mig.dra.dev", capacity=capacity)))
    assert found.reason is Reason.NO_SUCH_PROFILE
    assert "the largest is 7g.141gb with 143104Mi" in found.message


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (request("r", "gpu.dra.dev"), "GPUs whose MIG mode is off are: none"),
        (request("r", "gpu-share.dra.dev"), "on nodes that give shares (--gpu-shares) are: none"),
        (
            request("r", "gpu.dra.dev", capacity={"requests": {"shares": "1"}}),
            "ask for memory and cores, by the class gpu-share.dra.dev or mig-share.dra.dev",
        ),
    ],
)
def test_a_request_for_whole_gpus_or_shares_gets_the_reason_that_is_true_of_them(
    asked: Obj, told: str
) -> None:
    assert told in why(with_gpus(gpu(0)), claim("c", asked)).message


def test_a_request_by_memory_gets_the_smallest_profile_of_all_products() -> None:
    twelve = "device.capacity['mig.dra.dev'].memory.compareTo(quantity('12Gi')) >= 0"
    asked = claim("c", request("r", "mig.dra.dev", twelve))
    decision = decide(with_gpus(gpu(0)), asked)
    assert decision is not None
    assert decision.picks[0].profile == "3g.20gb"
    known = cluster("node-a", "node-b")
    known.set_mignode(mignode("node-a", gpu(0, geometry=TWICE)))
    decision = decide(known, asked)
    assert decision is not None
    assert (decision.node, decision.picks[0].profile) == ("node-a", "1g.18gb")
    by_field = request("r", "mig.dra.dev", capacity={"requests": {"memory": "12Gi"}})
    decision = decide(with_gpus(gpu(0)), claim("c", by_field))
    assert decision is not None
    assert decision.picks[0].profile == "3g.20gb"
