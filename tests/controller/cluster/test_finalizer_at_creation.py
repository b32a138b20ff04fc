"""Claims that have our finalizer from their creation, and claims of others that have it."""

from __future__ import annotations

from typing import Any

from dra.claims.claims import SCHEDULER_FINALIZER
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import FINALIZER, claim, pod

STATUS = "resourceclaims/status"


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
