"""What others do between a request and its answer: to the claim, to the pod, to the leadership."""

from __future__ import annotations

import copy

import pytest

from controller.write.requests import NotLeadingError
from dra.common.resources import RESOURCE_CLAIMS
from dra.kube.errors import KubeError, ObjectNotFoundError
from tests.controller.helpers.desk import (
    after_write,
    at_desk,
    on_write,
    served_half,
    settle,
    wants,
    watch,
)
from tests.controller.helpers.objects import FINALIZER, claim, request

STATUS = "resourceclaims/status"


def test_a_claim_that_changes_meanwhile_is_decided_anew() -> None:
    bench, desk = at_desk("node-a", "node-b")
    wants(bench, "c")
    bench.run()

    def change() -> None:
        bench.api.put(RESOURCE_CLAIMS, bench.api.get(RESOURCE_CLAIMS, "c"))

    on_write(bench, STATUS, change)
    settle(bench, desk)
    assert not bench.devices("c")
    watch(bench, "c")
    settle(bench, desk, seconds=1)
    assert bench.devices("c")
    assert bench.api.writes == ["resourceclaims", STATUS]


def test_the_watch_may_bring_the_finalizer_before_the_allocation_is_answered() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()

    def meanwhile() -> None:
        watch(bench, "c")
        wants(bench, "d")
        bench.run()

    on_write(bench, STATUS, meanwhile)
    settle(bench, desk)
    assert bench.devices("c")
    assert not bench.devices("d")


def test_a_claim_that_goes_meanwhile_is_forgotten_and_its_place_is_free() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()

    def gone() -> None:
        del bench.api.objects["resourceclaims", "c"]
        bench.cluster.remove_claim(("default", "c"))

    on_write(bench, STATUS, gone, ObjectNotFoundError("gone", status=404))
    settle(bench, desk)
    assert ("default", "c") not in bench.cluster.claims
    wants(bench, "d")
    settle(bench, desk)
    assert bench.devices("d")


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


def test_a_pod_that_goes_meanwhile_leaves_a_claim_that_is_freed() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()
    bench.delete_pod("c")
    bench.run()
    settle(bench, desk)
    assert bench.devices("c")
    bench.end_reservations()
    bench.run()
    settle(bench, desk)
    assert bench.api.writes.count(STATUS) == 2
    assert not bench.devices("c")
    assert bench.finalizers("c") == []


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


def test_an_allocation_that_is_taken_back_before_it_is_answered_goes_elsewhere() -> None:
    bench, desk = at_desk("node-a", "node-b")
    wants(bench, "c")
    bench.run()
    desk.work_off()
    watch(bench, "c")
    bench.change_claim("c", allocation=None)
    settle(bench, desk)
    assert bench.node_of("c") == "node-b"
    assert bench.recorder.reasons("c").count("AllocationTakenBack") == 1


def test_what_is_taken_back_and_looked_at_before_the_answer_goes_elsewhere() -> None:
    bench, desk = at_desk("node-a", "node-b")
    wants(bench, "c")
    bench.run()

    def meanwhile() -> None:
        watch(bench, "c")
        bench.change_claim("c", allocation=None, reservedFor=None)
        bench.run()

    after_write(bench, STATUS, meanwhile)
    settle(bench, desk)
    assert bench.node_of("c") == "node-b"


def test_a_claim_that_is_deleted_before_its_deallocation_is_answered_is_released() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    settle(bench, desk)
    bench.delete_pod("c")

    def deleted() -> None:
        obj = copy.deepcopy(bench.api.get(RESOURCE_CLAIMS, "c"))
        obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        bench.claim(obj)
        bench.run()

    after_write(bench, STATUS, deleted)
    settle(bench, desk)
    assert bench.finalizers("c") == []


def test_a_deallocation_of_ours_that_is_watched_before_it_is_answered_is_nobodys_refusal() -> None:
    bench, desk = served_half()
    bench.run(seconds=1)
    desk.work_off()
    watch(bench, "one")
    settle(bench, desk)
    assert bench.node_of("one") == bench.node_of("two") == "node-b"
    assert "AllocationTakenBack" not in bench.recorder.reasons("one")


def test_a_state_that_the_watch_brings_late_does_not_undo_an_answer() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()
    before = copy.deepcopy(bench.api.get(RESOURCE_CLAIMS, "c"))
    settle(bench, desk)
    bench.cluster.set_claim(before)
    wants(bench, "d")
    settle(bench, desk)
    assert bench.devices("c")
    assert not bench.devices("d")
