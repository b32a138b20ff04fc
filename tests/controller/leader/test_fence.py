"""Late writes of a former leader: none gives a slice away that somebody else has."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from controller import times
from controller.leader.fence import Fence
from dra.common.resources import RESOURCE_CLAIMS, Obj, Resource
from dra.kube.errors import ForbiddenError, InvalidError, KubeError, UnavailableError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.desk import Desk, at_desk, settle, wants
from tests.controller.helpers.objects import DRIVER, FINALIZER, claim, pod, request

FENCE = f"{DRIVER}/fence"


def late_allocation(old: Bench, desk: Desk) -> Callable[[], Obj]:
    """Have what ``old`` decides sent, and not arrive; returns what makes it arrive."""
    kept: list[Callable[[], Obj]] = []
    send = old.api.patch

    def patch(resource: Resource, name: str, body: Any, **more: Any) -> Obj:
        if more.get("subresource") != "status":
            return send(resource, name, body, **more)
        kept.append(partial(send, resource, name, copy.deepcopy(body), **more))
        raise UnavailableError("no answer")

    old.api.patch = patch  # type: ignore[method-assign]
    old.run()
    desk.work_off()
    old.api.patch = send  # type: ignore[method-assign]
    (late,) = kept
    return late


def takeover() -> tuple[Callable[[], Obj], Bench, Desk]:
    """A late allocation of the whole GPU to ``c``, and the next leader, which has listed.

    It prefers ``d``, which wants the same.
    """
    old, desk = at_desk("node-a")
    wants(old, "c", priority=1)
    late = late_allocation(old, desk)
    wants(old, "d", priority=2)
    successor = Desk()
    return late, old.succeeded_by("node-a", send=successor.send), successor


def raise_fence(bench: Bench, desk: Desk, fence: Fence) -> None:
    """Do what can be done now."""
    for _ in range(100):
        if not fence.work() and not desk.jobs:
            return
        desk.work_off()
        fence.absorb()
    raise AssertionError("the fence does not come to rest")


def unallocated(bench: Bench, name: str = "c") -> Obj:
    """A claim that an allocation may be on its way to, which a pod names."""
    obj = claim(name, request("r", "mig-7g.40gb"))
    obj["metadata"]["finalizers"] = [FINALIZER]
    bench.pod(pod(f"p-{name}", name))
    return bench.claim(obj)


def mark_of(bench: Bench, name: str = "c") -> str | None:
    found = bench.api.get(RESOURCE_CLAIMS, name)["metadata"].get("annotations", {})
    mark: str | None = found.get(FENCE)
    return mark


def test_an_allocation_that_comes_while_the_fence_is_raised_counts() -> None:
    late, new, desk = takeover()
    fence = new.fence()
    while fence.work():
        pass
    late()
    desk.work_off()
    fence.absorb()
    assert fence.stands()
    settle(new, desk)
    assert new.devices("c")
    assert not new.devices("d")


def test_a_claim_without_an_answer_holds_others_up_for_a_while_if_others_have_one() -> None:
    bench, desk = at_desk("node-a")
    for name in ("slow", "quick"):
        unallocated(bench, name)
    fence = bench.fence()
    patch = bench.api.patch

    def answer(resource: Resource, name: str, body: Any, **more: Any) -> Obj:
        if name == "slow":
            raise UnavailableError("the read operation timed out")
        return patch(resource, name, body, **more)

    bench.api.patch = answer  # type: ignore[method-assign]
    raise_fence(bench, desk, fence)
    assert not fence.stands()
    bench.time += 2 * times.FENCE
    raise_fence(bench, desk, fence)
    assert fence.stands()
    assert mark_of(bench, "quick")


@pytest.mark.parametrize(
    "error",
    [InvalidError("spec: immutable", status=422), ForbiddenError("a policy says no", status=403)],
)
def test_a_claim_that_cannot_be_changed_is_named_and_the_others_are_fenced(
    error: KubeError, caplog: pytest.LogCaptureFixture
) -> None:
    bench, desk = at_desk("node-a")
    unallocated(bench, "first")
    unallocated(bench, "second")
    left = [error]
    bench.api.refuse = lambda _: left.pop() if left else None
    fence = bench.fence()
    raise_fence(bench, desk, fence)
    assert fence.stands()
    assert (mark_of(bench, "first"), mark_of(bench, "second")) == (None, "fence")
    (record,) = [r for r in caplog.records if "claim not fenced" in r.message]
    assert record.__dict__["claim"] == "default/first"


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "another"])
def test_a_claim_that_is_gone_or_another_needs_no_fence(
    *, gone: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bench, desk = at_desk("node-a")
    obj = unallocated(bench)
    if gone:
        del bench.api.objects["resourceclaims", "c"]
    else:
        bench.api.put(RESOURCE_CLAIMS, {**obj, "metadata": {**obj["metadata"], "uid": "another"}})
    fence = bench.fence()
    raise_fence(bench, desk, fence)
    assert bench.api.writes == []
    assert "not fenced" not in caplog.text
