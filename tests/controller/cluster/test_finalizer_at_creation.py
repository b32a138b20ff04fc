"""Claims that have our finalizer from their creation, and claims of others that have it."""

from __future__ import annotations

from typing import Any

import pytest

from dra.claims.claims import SCHEDULER_FINALIZER
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import FINALIZER, claim, pod, request

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


def test_without_such_a_policy_an_unused_claim_loses_it() -> None:
    """The way back, and what makes its deletion depend on nobody."""
    bench = Bench("node-a")
    bench.claim(born("c"))
    bench.run()
    assert bench.finalizers("c") == []


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
