"""Claims that kube-scheduler allocates get the label by which their node watches them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from dra.claims.allocation import node_label
from dra.common.resources import RESOURCE_CLAIMS, Obj
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.fakeapi import own_allocation
from tests.controller.helpers.objects import DRIVER, allocated, claim

LABEL = node_label(DRIVER)
DEVICE = "gpu-0-mig-1g5gb-19-4"
CLAIM = "resourceclaims"
SCHEDULER = "kube-scheduler"


def scheduled(name: str = "c", node: str = "node-a", **status: Any) -> Obj:
    """A claim that kube-scheduler allocated to a node, reserved for a pod unless said otherwise."""
    body = allocated(claim(name), node, DEVICE, finalizer=False)
    reserved = [{"resource": "pods", "name": "p", "uid": "uid-p"}]
    body["status"] |= {"reservedFor": reserved, **status}
    own_allocation(body, SCHEDULER)
    return body


def label_of(bench: Bench, name: str = "c") -> str | None:
    labels = bench.api.get(RESOURCE_CLAIMS, name)["metadata"].get("labels", {})
    found: str | None = labels.get(LABEL)
    return found


def test_it_is_labelled_with_one_write_and_left_alone_from_then_on() -> None:
    bench = Bench("node-a")
    bench.claim(scheduled())
    bench.run()
    assert label_of(bench) == "node-a"
    assert bench.api.writes == [CLAIM]
    known = copy.deepcopy(bench.api.get(RESOURCE_CLAIMS, "c"))
    bench.claim({**known, "spec": {**known["spec"]}})
    bench.run(seconds=60)
    assert bench.api.writes == [CLAIM]


def _deleting(body: Obj) -> None:
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def _of_another_driver(body: Obj) -> None:
    for result in body["status"]["allocation"]["devices"]["results"]:
        result["driver"] = "gpu.example.com"


def _of_another_pool(body: Obj) -> None:
    for result in body["status"]["allocation"]["devices"]["results"]:
        result["pool"] = "elsewhere"


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["status"].pop("reservedFor"),
        lambda body: own_allocation(body, f"{DRIVER}/controller"),
        lambda body: body["metadata"].update(labels={LABEL: "node-a"}),
        _deleting,
        _of_another_driver,
        _of_another_pool,
    ],
    ids=["no pod", "ours", "labelled", "deleted", "another driver", "another pool"],
)
def test_nothing_is_written_to_others(change: Callable[[Obj], object]) -> None:
    bench = Bench("node-a")
    asked: list[str] = []
    bench.api.refuse = asked.append  # also what would change nothing
    body = scheduled()
    change(body)
    bench.claim(body)
    bench.run()
    assert asked == []
