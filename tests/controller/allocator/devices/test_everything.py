"""``allocationMode: All``: every device of a node, or none."""

from __future__ import annotations

from dra.claims.reasons import Reason
from tests.controller.helpers.deciding import decide, devices, why
from tests.controller.helpers.objects import (
    claim,
    gpu,
    request,
    with_gpus,
)

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


def test_all_is_counted_with_the_other_requests_of_its_claim() -> None:
    known = with_gpus(*(gpu(n) for n in range(4)), *(gpu(n, mig=False) for n in range(4, 9)))
    slices, whole = request("a", "mig-1g.5gb", **ALL), request("b", "gpu.dra.dev", count=5)
    found = why(known, claim("c", slices, whole))
    assert found.reason is Reason.UNSUPPORTED
    assert "33 devices" in found.message
    assert len(devices(decide(known, claim("c", slices), claim("d", whole)))) == 33
