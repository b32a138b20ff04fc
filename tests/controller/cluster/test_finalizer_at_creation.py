"""Claims that have our finalizer from their creation, and claims of others that have it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from dra.claims.claims import SCHEDULER_FINALIZER, read_claim
from dra.claims.reasons import Reason
from dra.common.resources import RESOURCE_CLAIMS
from dra.kube.errors import InvalidError, KubeError, UnavailableError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.fakeapi import own_allocation
from tests.controller.helpers.objects import (
    DRIVER,
    FINALIZER,
    claim,
    pod,
    request,
)
from tests.controller.helpers.stored import Stored

CLAIM, STATUS = "resourceclaims", "resourceclaims/status"


def born(name: str, *requests: dict[str, Any], finalizers: tuple[str, ...] = ()) -> dict[str, Any]:
    """A claim as the admission policy makes it."""
    body = claim(name, *requests)
    body["metadata"]["finalizers"] = [*finalizers, FINALIZER]
    return body


def test_such_a_claim_is_allocated_by_a_single_write() -> None:
    bench = Bench("node-a", finalizer_at_creation=True, eager_creation=False)
    bench.claim(born("c"))
    bench.pod(pod("p", "c"))
    bench.run()
    assert bench.devices("c")
    assert bench.api.writes == [STATUS]


def test_it_keeps_the_finalizer_while_nobody_uses_it_and_it_is_not_allocated() -> None:
    bench = Bench("node-a", finalizer_at_creation=True)
    bench.claim(born("c"))
    bench.run(seconds=100)
    assert bench.api.writes == []
    bench.pod(pod("p", "c"))
    bench.run()
    bench.delete_pod("p")
    bench.api.writes.clear()
    bench.run(seconds=100)
    assert bench.devices("c") == []
    assert bench.api.writes == [STATUS], "and nothing is written after its allocation has ended"


@pytest.mark.parametrize("refused", [0, 1])
def test_what_may_have_been_allocated_for_a_pod_that_is_gone_is_free_for_others(
    refused: int,
) -> None:
    bench = Bench("node-a", finalizer_at_creation=True)
    bench.claim(born("c", request("r", "mig-7g.40gb")))
    bench.pod(pod("p", "c"))
    bench.api.refuse = lambda what: UnavailableError("no answer") if what == STATUS else None
    bench.run()
    bench.delete_pod("p")
    answers: list[KubeError | None] = [InvalidError("no", status=422)] * refused
    bench.api.refuse = lambda _: answers.pop() if answers else None
    bench.run()
    assert not answers
    bench.claim(born("d", request("r", "mig-7g.40gb")))
    bench.pod(pod("q", "d"))
    bench.run(seconds=1)
    assert bench.devices("d")


def test_without_such_a_policy_an_unused_claim_loses_it() -> None:
    """The way back, and what makes its deletion depend on nobody."""
    bench = Bench("node-a")
    bench.claim(born("c"))
    bench.run()
    assert bench.finalizers("c") == []


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("at_creation", [True, False])
def test_a_claim_that_goes_before_it_is_allocated_is_released(
    *, used: bool, at_creation: bool
) -> None:
    bench = Bench("node-a", finalizer_at_creation=at_creation)
    bench.claim(born("c", request("r", "mig-7g.40gb", count=2)))
    if used:
        bench.pod(pod("p", "c"))
    bench.run()
    bench.delete_claim("c")
    bench.run()
    assert bench.finalizers("c") == []
    assert bench.devices("c") == []


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("at_creation", [True, False])
def test_a_claim_that_asks_for_nothing_of_ours_does_not_keep_it(
    *, used: bool, at_creation: bool
) -> None:
    bench = Bench("node-a", finalizer_at_creation=at_creation)
    bench.claim(born("c", request("r", "somebody-else")))
    if used:
        bench.pod(pod("p", "c"))
    bench.run()
    assert bench.finalizers("c") == []
    assert bench.api.writes == [CLAIM]


@pytest.mark.parametrize("reserved", [True, False])
@pytest.mark.parametrize("at_creation", [True, False])
def test_what_kube_scheduler_allocated_is_not_ours_to_end(
    *, reserved: bool, at_creation: bool
) -> None:
    bench = Bench("node-a", finalizer_at_creation=at_creation)
    bench.claim(born("c"))
    bench.pod(pod("p", "c"))
    bench.run()
    body = copy.deepcopy(bench.api.get(RESOURCE_CLAIMS, "c"))
    body["metadata"]["finalizers"] = [SCHEDULER_FINALIZER, FINALIZER]
    own_allocation(body, "kube-scheduler")
    if not reserved:
        del body["status"]["reservedFor"]
        bench.remove_pod("p")
    bench.claim(body)
    bench.run(seconds=100)
    assert bench.finalizers("c") == [SCHEDULER_FINALIZER]
    assert bench.devices("c")


def test_what_kube_scheduler_takes_back_of_its_own_excludes_no_node() -> None:
    bench = Bench("node-a")
    bench.claim(born("c"))
    bench.pod(pod("p", "c"))
    bench.run()
    body = copy.deepcopy(bench.api.get(RESOURCE_CLAIMS, "c"))
    body["metadata"]["finalizers"] = [SCHEDULER_FINALIZER, FINALIZER]
    own_allocation(body, "kube-scheduler")
    bench.cluster.set_claim(bench.api.put(RESOURCE_CLAIMS, body))
    bench.change_claim("c", allocation=None, reservedFor=None)
    bench.run()
    assert Reason.TAKEN_BACK not in bench.recorder.reasons("c")
    assert bench.devices("c"), "its node is tried again at once"


def test_what_we_allocated_is_ours_whatever_finalizers_a_user_sets() -> None:
    bench = Bench("node-a")
    body = born("c")
    body["metadata"]["finalizers"] = [SCHEDULER_FINALIZER, FINALIZER]
    bench.claim(body)
    bench.pod(pod("p", "c"))
    bench.run()
    assert bench.devices("c")
    bench.api.writes.clear()
    bench.run(seconds=200)
    assert bench.api.writes == [], "our finalizer stays as long as the allocation"
    assert FINALIZER in bench.finalizers("c")


def test_what_is_taken_back_of_ours_excludes_the_node_whatever_finalizers_a_user_sets() -> None:
    bench = Bench("node-a")
    body = born("c")
    body["metadata"]["finalizers"] = [SCHEDULER_FINALIZER, FINALIZER]
    bench.claim(body)
    bench.pod(pod("p", "c"))
    bench.run()
    for _ in range(20):
        if bench.devices("c"):
            bench.change_claim("c", allocation=None, reservedFor=None)
        bench.run(seconds=1)
    assert Reason.TAKEN_BACK in bench.recorder.reasons("c")
    assert len(bench.api.writes) < 10, "the node is left out for longer each time"


def test_whose_an_allocation_is_outlives_the_controller_that_made_it() -> None:
    bench = Bench("node-a")
    body = born("c")
    body["metadata"]["finalizers"] = [SCHEDULER_FINALIZER, FINALIZER]
    bench.claim(body)
    bench.pod(pod("p", "c"))
    bench.run()
    known = bench.succeeded_by("node-a").cluster.claims["default", "c"].claim
    assert not known.by_others(DRIVER)
    trimmed = Stored(RESOURCE_CLAIMS)(bench.api.get(RESOURCE_CLAIMS, "c"))
    assert not read_claim(trimmed).by_others(DRIVER)
    assert "managedFields" not in trimmed["metadata"]
