"""What others do between a request and its answer: to the claim, to the pod, to the leadership."""

from __future__ import annotations

import pytest

from controller.write.requests import NotLeadingError
from dra.kube.errors import KubeError
from tests.controller.helpers.desk import (
    at_desk,
    served_half,
    settle,
    wants,
    watch,
)
from tests.controller.helpers.objects import FINALIZER, claim, request

STATUS = "resourceclaims/status"


def test_another_claim_of_the_same_name_is_not_taken_for_the_one_that_was_written() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()
    desk.work_off()  # answered, but the answer is not taken before the claim is another
    other = claim("c", request("r", "mig-1g.5gb"))
    other["metadata"]["uid"] = "another"
    bench.claim(other)
    bench.run()
    known = bench.cluster.claims["default", "c"].claim
    assert (known.ref.uid, known.allocation) == ("another", None)


def test_nothing_more_is_written_when_leadership_is_lost_between_two_requests() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c", schedulingGates=[{"name": FINALIZER}])
    wants(bench, "d")
    bench.run()

    def stored() -> KubeError | None:
        bench.leads = False
        return None

    bench.api.lost = lambda _: stored()
    desk.work_off()
    with pytest.raises(NotLeadingError):
        bench.run()
    assert bench.api.writes == ["resourceclaims"]


def test_a_deallocation_of_ours_that_is_watched_before_it_is_answered_is_nobodys_refusal() -> None:
    bench, desk = served_half()
    bench.run(seconds=1)
    desk.work_off()
    watch(bench, "one")
    settle(bench, desk)
    assert bench.node_of("one") == bench.node_of("two") == "node-b"
    assert "AllocationTakenBack" not in bench.recorder.reasons("one")
