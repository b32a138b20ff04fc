"""Which allocations may still be made when a leader ends."""

from __future__ import annotations

import pytest

from dra.common.resources import RESOURCE_CLAIMS
from dra.kube.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    KubeError,
    ObjectNotFoundError,
    UnavailableError,
)
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.desk import STATUS, Desk, at_desk, settle, wants, watch
from tests.controller.helpers.fakeapi import once
from tests.controller.helpers.objects import claim

NO_ANSWER = UnavailableError("no answer")


def left(bench: Bench) -> list[str]:
    """The claims of which an allocation may still be made."""
    return [str(ref) for ref in bench.writer.may_be_made(bench.cluster.claims)]


def refused(error: Exception) -> tuple[Bench, Desk]:
    """A leader whose first allocation ended like that."""
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()
    bench.api.refuse = once(STATUS, error)  # type: ignore[arg-type]
    desk.work_off()
    return bench, desk


def unanswered() -> tuple[Bench, Desk]:
    bench, desk = refused(NO_ANSWER)
    bench.run()
    return bench, desk


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("no answer"),
        UnavailableError("internal error", status=500),
        UnavailableError("bad gateway", status=502),
        UnavailableError("shutting down", status=503),
        UnavailableError("the request did not complete in time", status=504),
        UnavailableError("the answer is no JSON object", status=200),
        KubeError("request timeout", status=408),
        KubeError("found elsewhere", status=302),
        ValueError("a mistake of ours"),
    ],
    ids=repr,
)
def test_what_was_sent_and_not_answered_may_still_be_made(error: Exception) -> None:
    bench, _ = refused(error)
    assert left(bench) == ["default/c"]


@pytest.mark.parametrize(
    "error",
    [
        InvalidError("no", status=422),
        InvalidError("resourceclaims/binding", status=422),
        ForbiddenError("no", status=403),
        ObjectNotFoundError("gone", status=404),
        ConflictError("stale", status=409),
        UnavailableError("too many requests", status=429),
    ],
    ids=repr,
)
def test_what_was_refused_is_not_made(error: Exception) -> None:
    bench, _ = refused(error)
    assert left(bench) == []


def test_a_finalizer_that_was_not_answered_brings_no_allocation() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()
    bench.api.refuse = once("resourceclaims", NO_ANSWER)
    desk.work_off()
    assert left(bench) == []


def test_what_is_made_when_it_is_sent_again_needs_no_answer_to_the_first() -> None:
    bench, desk = unanswered()
    bench.run(seconds=1)
    desk.work_off()  # the answer is not taken any more
    assert bench.devices("c")
    assert left(bench) == []


@pytest.mark.parametrize(
    "error", [InvalidError("no", status=422), ConflictError("no", status=409), NO_ANSWER], ids=repr
)
def test_what_is_refused_when_it_is_sent_again_may_still_come_of_the_first(
    error: KubeError,
) -> None:
    bench, desk = unanswered()
    bench.api.refuse = once(STATUS, error)
    settle(bench, desk, seconds=1)
    assert not bench.devices("c")
    assert left(bench) == ["default/c"]


def test_an_answer_that_was_lost_is_known_from_the_watch() -> None:
    bench, desk = at_desk("node-a")
    wants(bench, "c")
    bench.run()
    bench.api.lost = once(STATUS, NO_ANSWER)
    desk.work_off()
    assert bench.devices("c")
    assert left(bench) == ["default/c"], "not known yet"
    watch(bench, "c")
    assert left(bench) == []


def test_what_fits_a_claim_no_more_that_has_changed_is_not_made() -> None:
    bench, _ = unanswered()
    bench.claim(bench.api.get(RESOURCE_CLAIMS, "c"))
    assert left(bench) == []


@pytest.mark.parametrize("another", [False, True])
def test_what_was_sent_to_a_claim_that_is_gone_is_not_made(*, another: bool) -> None:
    bench, _ = unanswered()
    bench.cluster.remove_claim(("default", "c"))
    if another:
        obj = claim("c")
        obj["metadata"]["uid"] = "another"
        bench.claim(obj)
    assert left(bench) == []


def test_a_claim_that_is_gone_is_not_remembered() -> None:
    bench, _ = unanswered()
    there = bench.cluster.claims["default", "c"].obj
    bench.cluster.remove_claim(("default", "c"))
    bench.run()
    bench.cluster.set_claim(there)
    assert left(bench) == []
