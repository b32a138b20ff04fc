"""Late writes of a former leader: none gives a slice away that somebody else has."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import pytest

from controller import times
from controller.leader.fence import Fence
from controller.write.requests import NotLeadingError
from dra.claims.stored import LARGEST
from dra.common.resources import RESOURCE_CLAIMS, Obj, Resource
from dra.kube.errors import ConflictError, ForbiddenError, InvalidError, KubeError, UnavailableError
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.desk import Desk, at_desk, settle, wants
from tests.controller.helpers.objects import DRIVER, FINALIZER, allocated, claim, pod, request
from tests.controller.helpers.stored import Stored

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


def refusing(bench: Bench, error: KubeError) -> list[str]:
    """From now on all writes are refused; returns the list of attempts."""
    attempts: list[str] = []

    def refuse(what: str) -> KubeError:
        attempts.append(what)
        return error

    bench.api.refuse = refuse
    return attempts


def test_an_allocation_that_comes_after_the_fence_is_refused() -> None:
    late, new, desk = takeover()
    raise_fence(new, desk, new.fence())
    settle(new, desk)
    with pytest.raises(ConflictError):
        late()
    assert new.devices("d")
    assert not new.devices("c")


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


def test_without_such_a_claim_nothing_is_written() -> None:
    bench, desk = at_desk("node-a")
    bench.claim(claim("waits"))
    bench.claim(allocated(claim("has"), "node-a", "gpu-0-mig-1g5gb-19-0"))
    unallocated(bench)
    bench.pod({**pod("p-c", "c"), "status": {"phase": "Succeeded"}})
    fence = bench.fence()
    assert fence.stands()
    assert not fence.work()
    assert not desk.jobs
    assert fence.due == inf


def test_a_claim_that_is_being_deleted_is_fenced() -> None:
    bench, desk = at_desk("node-a")
    obj = claim("c")
    obj["metadata"] |= {"finalizers": [FINALIZER], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    bench.claim(obj)
    bench.pod(pod("p", "c"))
    raise_fence(bench, desk, bench.fence())
    assert mark_of(bench)


@pytest.mark.parametrize(
    "error", [UnavailableError("no answer"), ConflictError("too busy", status=409)]
)
def test_what_may_pass_is_tried_again_after_a_pause(error: KubeError) -> None:
    bench, desk = at_desk("node-a")
    unallocated(bench)
    attempts = refusing(bench, error)
    fence = bench.fence()
    raise_fence(bench, desk, fence)
    assert len(attempts) == 1
    assert not fence.stands()
    bench.api.refuse = lambda _: None
    assert bench.time < fence.due < inf
    bench.time = fence.due
    raise_fence(bench, desk, fence)
    assert fence.stands()
    assert mark_of(bench)


def test_a_claim_that_is_too_large_is_neither_fenced_nor_allocated_and_its_pod_told_why() -> None:
    bench, desk = at_desk("node-a")
    trim = Stored(RESOURCE_CLAIMS)
    for name, size in {"large": 2 * LARGEST, "small": LARGEST // 2}.items():
        obj = claim(name)
        labels = {f"l{n}": "v" * 60 for n in range(size // 70)}
        obj["metadata"] |= {"finalizers": [FINALIZER], "labels": labels}
        bench.cluster.set_claim(trim(bench.api.put(RESOURCE_CLAIMS, obj)))
        bench.pod(pod(f"p-{name}", name))
    fence = bench.fence()
    raise_fence(bench, desk, fence)
    assert (mark_of(bench, "large"), mark_of(bench, "small")) == (None, "fence")
    settle(bench, desk)
    assert bench.devices("small")
    assert not bench.devices("large")
    assert any("takes more than 128 KiB" in message for *_, message in bench.recorder.events)
    found = bench.api.get(RESOURCE_CLAIMS, "small")
    grown = {**found, "metadata": {**found["metadata"], "labels": labels | {"x": "y" * LARGEST}}}
    assert FINALIZER in trim(grown)["metadata"]["finalizers"], "what is allocated is cleaned up"


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


def test_whoever_leads_no_more_fences_nothing() -> None:
    bench, desk = at_desk("node-a")
    unallocated(bench)
    fence = bench.fence()
    assert fence.work()
    bench.leads = False
    desk.work_off()
    with pytest.raises(NotLeadingError):
        fence.absorb()
    assert mark_of(bench) is None
