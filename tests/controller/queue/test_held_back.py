"""Slices are held back for all who were overtaken too often, and not for ever."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from controller import times
from controller.queue import line
from controller.queue.line import OVERTAKEN
from dra.allocator.allocate import OngoingDecision
from tests.controller.helpers.bench import Bench
from tests.controller.helpers.objects import claim, gpu, mignode, node, pod, request
from tests.controller.queue.test_overtaking import Stream

HOUR = 3600


def big(bench: Bench, name: str, profile: str = "7g.40gb", *, count: int = 1, **spec: Any) -> None:
    """A pod that waits for much, older than any of the stream."""
    bench.claim(claim(name, request("r", f"mig-{profile}", count=count)))
    body = pod(f"p-{name}", name, cpu="10m", **spec)
    body["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"
    bench.pod(body)
    bench.run()


def with_two_gpus(name: str) -> Bench:
    bench = Bench(name)
    bench.cluster.set_node(node(name, cpu="64", labels={"name": name}))
    bench.cluster.set_mignode(mignode(name, gpu(0, name), gpu(1, name)))
    bench.run()
    return bench


def for_ever(bench: Bench, name: str = "for-ever", **spec: Any) -> None:
    """A small slice that nobody gives back."""
    bench.serve(f"p-{name}", name, cpu="10m", **spec)
    bench.bind(f"p-{name}", bench.node_of(name))


SLICES = 13
"""Those of two GPUs beside the one that nobody gives back."""


def gone(bench: Bench, name: str) -> None:
    bench.delete_pod(f"p-{name}")
    bench.api.objects.pop(("resourceclaims", name), None)
    bench.cluster.remove_claim(("default", name))


def idle_share(stream: Stream, seconds: int, step: float) -> float:
    """The part of the slices that is idle while somebody waits for one, over the time."""
    idle, end = 0.0, stream.bench.time + seconds
    while stream.bench.time < end:
        stream.bench.run(seconds=step - 1)
        stream.second()
        idle += step * (SLICES - len(stream.running)) / SLICES if stream.waiting else 0.0
    return idle / seconds


@pytest.mark.parametrize("waiting", [1, 4])
def test_what_does_not_move_is_used_by_others(waiting: int) -> None:
    """The time for which a claim is waited for is that of all together."""
    bench = with_two_gpus("node-a")
    for_ever(bench)
    stream = Stream(bench, life=300)
    for _ in range(3):
        stream.second()
    for number in range(waiting):
        big(bench, f"both-{number}", count=2)
    assert idle_share(stream, HOUR, 60.0) < 0.3
    assert "NextInLine" in bench.recorder.reasons("both-0")


@pytest.mark.parametrize(
    ("waiter_too", "at_first"), [(False, True), (True, False)], ids=["blocker", "both"]
)
def test_pods_that_are_made_anew_keep_little_idle(*, waiter_too: bool, at_first: bool) -> None:
    """A small claim of high priority moves into what is held back for the tenant's own big pod.

    So what is waited for is another each time. It was half of the slices, for ever.
    """
    bench = with_two_gpus("node-a")
    stream = Stream(bench, life=10)
    for _ in range(20):
        stream.second()
    seconds, idle, small, waiter = 350, 0, "", ""
    for second in range(seconds):
        if second % 50 == 0:
            last, small = small, f"blocks-{second}"
            if last and not at_first:
                gone(bench, last)
            bench.serve(f"p-{small}", small, cpu="10m", priority=100)
            if last and at_first:
                gone(bench, last)
            if waiter and waiter_too:
                gone(bench, waiter)
            if not waiter or waiter_too:
                waiter = f"waits-{second}"
                big(bench, waiter, count=2)
        stream.second()
        if bench.devices(small):
            bench.bind(f"p-{small}", bench.node_of(small))
        idle += SLICES - len(stream.running) if stream.waiting else 0
        assert not bench.devices(waiter)
    assert "NextInLine" in bench.recorder.reasons(waiter if not waiter_too else "waits-0")
    assert idle / seconds / SLICES < 0.3


def held(name: str) -> tuple[Bench, Stream]:
    """A bench on which slices are held back for a pod, and a stream that waits for that."""
    bench = Bench("node-a")
    stream = Stream(bench, life=5)
    for _ in range(5):
        stream.second()
    big(bench, name)
    for _ in range(OVERTAKEN + 3):
        stream.second()
    assert "NextInLine" in bench.recorder.reasons(name)
    return bench, stream


def test_a_pod_whose_look_fails_releases_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _, stream = held("big")
    assert stream.waiting
    go_on = OngoingDecision.go_on

    def fails(ongoing: OngoingDecision, **steps: Any) -> Any:
        if ongoing.problem.pod.key[1] == "p-big":
            raise LookupError("a bug")
        return go_on(ongoing, **steps)

    monkeypatch.setattr(OngoingDecision, "go_on", fails)
    for _ in range(3):
        stream.second()
    assert len(stream.waiting) <= 1


def test_a_hold_lasts_while_what_it_waits_for_goes_on_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench("node-a")
    for number in range(7):
        bench.ask(f"p-job-{number}", f"job-{number}")
    bench.run()
    for number in range(7):
        bench.bind(f"p-job-{number}", "node-a")
    big(bench, "big")
    stream = Stream(bench, life=10**6)
    monkeypatch.setattr(line, "OVERTAKEN", 0)
    monkeypatch.setattr(times, "OVERTAKEN_ONCE", inf)
    bench.run(seconds=61)
    for number in range(7):
        bench.run(seconds=times.HOLD[0] - 10)
        stream.second()
        assert not stream.running
        bench.delete_pod(f"p-job-{number}")
        bench.lose_claim(f"job-{number}")
        bench.run()
    bench.run(seconds=1)
    assert bench.devices("big")
